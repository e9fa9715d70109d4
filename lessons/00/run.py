"""Lesson 00: a broker to work with. Run it: python lessons/00/run.py"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from socketserver import StreamRequestHandler, ThreadingTCPServer
from unittest.mock import patch
from urllib.parse import urlsplit

import pika
from pika.exceptions import AMQPError

from delivery.checks import port
from delivery.doctor import diagnose
from delivery.lesson import Scene, play
from delivery.process import free_ports
from delivery.ready import probe

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it logs every refusal with a traceback
LOST = "StreamLostError: ('Transport indicated EOF',)"
REFUSED = "Login was refused using authentication mechanism PLAIN. For details see the broker"
LOGIN = f"ConnectionClosedByBroker: (403) 'ACCESS_REFUSED - {REFUSED} logfile.'"
VHOST = "ConnectionClosedByBroker: (530) 'NOT_ALLOWED - vhost no-such not found'"
# Behind each door: does anything listen, what the text of pika's error is, the cause by its name.
DOORS = {
    "nobody listens": (False, "(an empty line)", "ConnectionRefusedError"),
    "a web server listens": (True, LOST, "IncompatibleProtocolError"),
    "guest": (True, LOGIN, "ProbableAuthenticationError"),
    "no such virtual host": (True, VHOST, "ProbableAccessDeniedError"),
}
FIXES = {"Docker": "start Docker", "broker image": "start Docker", "clock": "synchronise both"}


class WebServer(StreamRequestHandler):
    """Some other program: it speaks HTTP, and its clock is an hour late."""

    timeout = 0.2  # seconds; RabbitMQ's own web port waits 5 s for a request that never comes

    def handle(self) -> None:
        with suppress(OSError):
            while self.rfile.readline().strip():
                pass
            late = formatdate(time.time() - 3600, usegmt=True)
            self.wfile.write(f"HTTP/1.0 200 OK\r\nDate: {late}\r\n\r\n{{}}".encode())


@contextmanager
def doors(scene: Scene) -> Iterator[tuple[dict[str, str], int]]:
    """Yield an address for each door, and the web server's port."""
    with ThreadingTCPServer(("127.0.0.1", 0), WebServer) as web:
        threading.Thread(target=web.serve_forever, args=[0.05], daemon=True).start()
        places = (f"127.0.0.1:{free_ports(1)[0]}", f"127.0.0.1:{web.server_address[1]}")
        urls = [f"amqp://guest:guest@{at}/%2F" for at in (*places, scene.broker.address)]
        urls.append(f"amqp://{urlsplit(scene.url).netloc}/no-such")
        yield dict(zip(DOORS, urls, strict=True)), web.server_address[1]
        web.shutdown()


def logged(url: str) -> str:
    """Connect as most first programs do, and return what they would log."""
    try:
        pika.BlockingConnection(pika.URLParameters(url)).close()
    except AMQPError as error:
        return str(error) or "(an empty line)"  # the mistake: that text may hold nothing
    return "connected"


def broken(scene: Scene) -> None:
    """A program takes an open port for a broker, and logs the text of the error."""
    with doors(scene) as (urls, _):
        for door, (is_open, words, _) in DOORS.items():
            with socket.socket() as knock:  # the mistake: something listens, but what?
                at = (urlsplit(urls[door]).hostname or "", urlsplit(urls[door]).port or 5672)
                scene.fact(f"{door}, port open", knock.connect_ex(at) == 0, is_open)
            scene.fact(f"{door}, logged", logged(urls[door]), words)
        stranger = logged(urls["guest"].replace("guest:guest", "nobody:knows"))
        scene.fact("a user that never existed, logged the same as guest", stranger == LOGIN, True)


def fixed(scene: Scene) -> None:
    """The doctor tries to send a message, and shows the whole error; each lack has a fix."""
    with doors(scene) as (urls, web):
        for door, (_, _, cause) in DOORS.items():
            found = diagnose({"DELIVERY_AMQP_URL": urls[door]}, scene.folder)  # the cure
            check = next(each for each in found if each.name == "DELIVERY_AMQP_URL")
            named = [word for *_, word in DOORS.values() if word in check.seen]
            seen = ", ".join([check.verdict, *named])
            scene.fact(f"{door}, the doctor says", seen, f"fail, {cause}")
        ours = {
            "DELIVERY_AMQP_URL": scene.url,
            "DELIVERY_MANAGEMENT_URL": f"http://127.0.0.1:{web}",
        }
        # Pretend that Docker does not run: nobody serves this socket.
        with patch.dict(os.environ, DOCKER_HOST=f"unix://{scene.folder}/nobody"):
            checks = {check.name: check for check in diagnose(ours, scene.folder)}
        for name, fix in FIXES.items():
            seen = f"{checks[name].verdict}, {checks[name].fix}"
            scene.fact(f"{name}, the doctor says", seen, f"warn, {fix}")
        fix = "set DELIVERY_AMQP_PORT to another port for docker compose"
        scene.fact("a taken port, the fix", port(web, "DELIVERY_AMQP_PORT").fix, fix)
    may = checks["DELIVERY_AMQP_URL"].seen.partition("; ")[2]
    scene.fact("the broker of this lesson", may, "this user may declare, publish, consume")


def cost(scene: Scene) -> None:
    """Time fifty messages through the broker and back, each on a new connection."""
    begun = time.monotonic()
    for _ in range(50):
        probe(scene.url)
    print(f"  one probe: {(time.monotonic() - begun) / 50 * 1000:.0f} ms")


if __name__ == "__main__":
    play(broken, fixed, cost)
