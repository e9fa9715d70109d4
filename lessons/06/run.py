"""Lesson 06: what became of a message. Run it: python lessons/06/run.py"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import replace
from urllib.parse import urlsplit

from pika.adapters.blocking_connection import BlockingChannel

from delivery.confirms import Answer, Outcome
from delivery.connection import BrokerSettings, connect
from delivery.lesson import Scene, play
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope
from delivery.routes import Route, topology_of
from delivery.topology import Queue, Topology, declare

KEY = "material.published.v1"


class Proxy:
    """A TCP connection to the broker. Once armed, it swallows the next *cut*, and is cut."""

    def __init__(self, url: str, cut: str) -> None:
        self.cut, self.armed, self.was_cut = cut, False, threading.Event()
        server, self._to = socket.create_server(("127.0.0.1", 0)), urlsplit(url)
        here = f"{self._to.netloc.rpartition('@')[0]}@127.0.0.1:{server.getsockname()[1]}"
        self.settings = BrokerSettings(url=self._to._replace(netloc=here).geturl())
        threading.Thread(target=self._join, args=(server,), daemon=True).start()

    def _join(self, server: socket.socket) -> None:
        here = server.accept()[0]
        there = socket.create_connection((self._to.hostname or "", self._to.port or 5672))
        threading.Thread(target=self._carry, args=("request", here, there), daemon=True).start()
        self._carry("reply", there, here)

    def _carry(self, what: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.armed and what == self.cut:
                    self.was_cut.set()
                    source.settimeout(0.2)  # swallow the rest of it, too
                else:
                    target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Stage:
    """A recipient's queue, one without room, and a message for each of three addresses."""

    def __init__(self, scene: Scene, channel: BlockingChannel) -> None:
        self.scene, self.channel = scene, channel
        route, full = Route("catalog", scene.namespace), scene.name("full")
        no_room = Queue(full, {"x-max-length": 0, "x-overflow": "reject-publish"})
        declare(channel.connection, topology_of([route]) + Topology(queues=(no_room,)))
        self.queues = (route.queue, full)
        self.right = Message(route.exchange, KEY, envelope("e1", KEY, timestamp=0), b"{}")
        self.mistyped = replace(self.right, routing_key="material.publish.v1")
        self.to_full = replace(self.right, exchange="", routing_key=full)

    def fact(self, what: str, told: str, expected: str) -> None:
        """State what the publisher was told, and what the broker has; take it out, too."""
        got = [self.channel.basic_get(queue, auto_ack=True)[0] for queue in self.queues]
        self.scene.fact(what, f"{told}, kept {sum(bool(each) for each in got)}", expected)


def fire(channel: BlockingChannel, to: Message) -> str:
    channel.basic_publish(to.exchange, to.routing_key, to.body, to.properties)  # the mistake
    return "sent"


def broken(scene: Scene) -> None:
    """The publisher takes a call that raised nothing for a message that arrived."""
    with connect(BrokerSettings(url=scene.url)) as connection:
        channel, sure = connection.channel(), connection.channel()
        sure.confirm_delivery()
        stage, proxy = Stage(scene, channel), Proxy(scene.url, "request")
        stage.fact("right address", fire(channel, stage.right), "sent, kept 1")
        stage.fact("mistyped address", fire(channel, stage.mistyped), "sent, kept 0")
        told = fire(sure, stage.mistyped)
        stage.fact("mistyped address, confirms but not mandatory", told, "sent, kept 0")
        stage.fact("full queue", fire(channel, stage.to_full), "sent, kept 0")
        doomed = connect(proxy.settings).channel()
        proxy.armed = True
        told, was_cut = fire(doomed, stage.right), proxy.was_cut.wait(10)
        stage.fact("connection cut before the broker had it", told, "sent, kept 0")
        scene.fact("  the connection was cut", was_cut, True)


def fixed(scene: Scene) -> None:
    """The publisher waits for the broker's answer, and keeps four answers apart."""
    settings = BrokerSettings(url=scene.url)

    def answer(to: Message, proxy: Proxy | None = None) -> str:
        with ConfirmedChannel(proxy.settings if proxy else settings) as sending:
            if proxy:
                proxy.armed = True
            return sending.send(to).outcome.value  # the cure

    with connect(settings) as connection:
        stage = Stage(scene, connection.channel())
        stage.fact("right address", answer(stage.right), "confirmed, kept 1")
        stage.fact("mistyped address", answer(stage.mistyped), "returned, kept 0")
        stage.fact("full queue", answer(stage.to_full), "refused, kept 0")
        for cut, before, kept in (
            ("request", "the broker had it", 0),
            ("reply", "the answer came", 1),
        ):
            told = answer(stage.right, proxy := Proxy(scene.url, cut))
            stage.fact(f"connection cut before {before}", told, f"unknown, kept {kept}")
            scene.fact("  the connection was cut", proxy.was_cut.wait(10), True)
        took = race(settings, stage.right, 300)
        faster = took["pipelined"] < took["one by one"]
        scene.fact("300 pipelined are confirmed sooner than 300 one by one", faster, True)


def race(settings: BrokerSettings, message: Message, count: int) -> dict[str, float]:
    """Return the seconds until *count* messages are confirmed, for each way of waiting."""
    todo = [replace(message, properties=envelope(f"e{n}", KEY, timestamp=0)) for n in range(count)]
    took = {}
    with ConfirmedChannel(settings, window=500) as sending:
        for name, size in (("one by one", 1), ("in batches of 100", 100), ("pipelined", count)):
            begun, answers = time.monotonic(), list[Answer]()
            for first in range(0, count, size):
                answers += sending.send_all(todo[first : first + size])
            took[name] = time.monotonic() - begun
            assert [each.outcome for each in answers] == [Outcome.CONFIRMED] * count
    return took


def cost(scene: Scene) -> None:
    """Time 5,000 confirmed messages in each of the three ways of waiting."""
    settings = BrokerSettings(url=scene.url)
    with connect(settings) as connection:
        took = race(settings, Stage(scene, connection.channel()).right, 5000)
    for name, seconds in took.items():
        ratio = took["one by one"] / seconds
        print(f"  {name}: {5000 / seconds:.0f}/s, {ratio:.1f} times one by one")


if __name__ == "__main__":
    play(broken, fixed, cost)
