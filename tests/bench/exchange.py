"""The exchange's own processes, started as people start them, on the run's broker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from bench.scene import Scene
from support.waiting import wait_for

from delivery.config import Config
from delivery.connection import BrokerSettings
from delivery.stores import Stores

COMMANDS = {
    "api": ("api", "--port", "0"),
    "relay": ("relay",),
    "catalog": ("receive", "catalog"),
    "audit": ("receive", "audit"),
}


@dataclass
class Exchange:
    """Its stores and its processes; *config* is theirs."""

    config: Config
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, *roles: str, options: tuple[str, ...] = ()) -> None:
        """Start the processes, and wait until each has said that it is ready."""
        for role in roles:
            with self._log(role).open("wb") as log:
                self.processes[role] = subprocess.Popen(
                    [*self.program, *COMMANDS[role], *options],
                    env=self.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        for role in roles:
            wait_for(lambda role=role: f"{role}.ready" in self.said(role), f"{role} is ready", 30)

    @property
    def program(self) -> list[str]:
        own = ("--data", str(self.config.stores.data), "--namespace", self.config.namespace)
        return [sys.executable, "-m", "delivery", *own]

    @property
    def environ(self) -> dict[str, str]:
        theirs = {k: v for k, v in os.environ.items() if not k.startswith("DELIVERY_")}
        return {**theirs, "DELIVERY_AMQP_URL": self.config.broker.url}

    def said(self, role: str) -> str:
        assert self.processes[role].poll() is None, self._log(role).read_text()[-2000:]
        return self._log(role).read_text()

    def client(self) -> Client:
        """Open a connection to the API."""
        return Client(self.url)

    @property
    def url(self) -> str:
        """Where the API listens."""
        return str(re.findall(r"api\.ready url=(\S+)", self.said("api"))[-1])

    def peak(self, role: str) -> float:
        """Return the most memory that the process ever held, in MiB."""
        return peak_of(self.processes[role].pid)

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def _log(self, role: str) -> Path:
        return self.config.stores.data / f"{role}.log"


@contextlib.contextmanager
def exchange(scene: Scene) -> Iterator[Exchange]:
    """Give an exchange with empty stores and a namespace of its own; its processes end with it."""
    namespace = f"bench{uuid.uuid4().hex[:8]}"
    stores = Stores(scene.folder / namespace)
    stores.data.mkdir()
    opened = Exchange(
        Config(broker=BrokerSettings(url=scene.url), stores=stores, namespace=namespace)
    )
    try:
        yield opened
    finally:
        opened.stop()


def peak_of(pid: int) -> float:
    """Return a process's largest resident size so far, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(kilobytes) / 1024


class Client:
    """A connection that is kept: a client's own work must not be what is measured."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host = address.netloc
        self._socket = socket.create_connection((address.hostname, address.port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def publish(self, material_id: str, title: str) -> str:
        """Publish one revision under a new key; return the event's id."""
        body = json.dumps({"title": title, "slug": "a-slug", "author": "An Author"}).encode()
        head = (
            f"POST /materials/{material_id}/publish HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Content-Type: application/json\r\nIdempotency-Key: {uuid.uuid4()}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        said, _, text = answer.partition(b"\r\n\r\n")
        (length,) = re.findall(rb"(?i)content-length: (\d+)", said)
        while len(text) < int(length):
            text += self._more()
        assert said.startswith(b"HTTP/1.1 202"), answer[:500]
        event_id: str = json.loads(text)["event_id"]
        return event_id

    def _more(self) -> bytes:
        more = self._socket.recv(65_536)
        assert more, "the API closed the connection"
        return more

    def close(self) -> None:
        self._socket.close()
