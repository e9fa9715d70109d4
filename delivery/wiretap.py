"""A line between a process and its broker that can drop a frame, cut it, or fall silent."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

__all__ = ["ACK", "BLOCKED", "DELIVER", "PUBLISH", "Method", "Trap", "Wiretap", "frames"]

# AMQP 0-9-1: a frame is type, channel, size, payload, end octet; a method is class and number.
_HEAD, _METHOD = 7, 1
_GREETING = 8  # what a client says before the first frame

Method = tuple[int, int]
PUBLISH: Method = (60, 40)
DELIVER: Method = (60, 60)
ACK: Method = (60, 80)
BLOCKED: Method = (10, 60)


@dataclass
class Trap:
    """Waits for one method; drops its frame (or the second half of it), then cuts the line."""

    method: Method
    towards_broker: bool
    half: bool = False
    sprung: threading.Event = field(default_factory=threading.Event)
    dropped: int = 0  # bytes


class Wiretap:
    """Listens at *url* for one process and passes its connections on to the broker.

    Raises OSError if no port is free. Use it in a ``with`` block.
    """

    def __init__(self, amqp_url: str, *, user: str, password: str, heartbeat: int) -> None:
        parts = urlsplit(amqp_url)
        self._broker = (parts.hostname or "127.0.0.1", parts.port or 5672)
        self._server = socket.create_server(("127.0.0.1", 0))
        own = f"{user}:{password}@127.0.0.1:{self._server.getsockname()[1]}"
        query = f"heartbeat={heartbeat}"
        self.url = urlunsplit(parts._replace(netloc=own, query=query))
        self.seen: Counter[Method] = Counter()  # methods that came by, in either direction
        self._flowing = threading.Event()
        self._flowing.set()
        self._trap: Trap | None = None
        self._lines: set[_Line] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, trap: Trap) -> Trap:
        """Set a trap for the next frame that fits, on any connection of this process."""
        self._trap = trap
        return trap

    def disarm(self) -> None:
        """Take the trap away."""
        self._trap = None

    @property
    def open(self) -> int:
        """How many connections there are now."""
        return len(self._lines)

    def cut(self) -> int:
        """Cut every connection, and return how many there were."""
        lines = [*self._lines]
        for line in lines:
            line.cut()
        return len(lines)

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Let nothing through, in neither direction, while the block runs; the lines stay open."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    def __enter__(self) -> Wiretap:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._flowing.set()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # closed
            try:
                broker = socket.create_connection(self._broker, timeout=5)
                broker.settimeout(None)
            except OSError:
                client.close()  # as a dead broker's port does
                continue
            line = _Line(client, broker)
            self._lines.add(line)
            for source, target in ((client, broker), (broker, client)):
                pump = threading.Thread(target=self._pump, args=(line, source, target), daemon=True)
                pump.start()

    def _pump(self, line: _Line, source: socket.socket, target: socket.socket) -> None:
        towards_broker = source is line.client
        pending = bytearray()
        greeting = _GREETING if towards_broker else 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                pending += data
                if len(pending) < greeting:
                    continue
                if greeting:
                    target.sendall(pending[:greeting])
                    del pending[:greeting]
                    greeting = 0
                for frame in frames(pending):
                    self._pass(frame, target, towards_broker)
        line.cut()
        self._lines.discard(line)

    def _pass(self, frame: bytes, target: socket.socket, towards_broker: bool) -> None:
        """Pass one frame on. Raises ConnectionError when it springs the trap."""
        method = method_of(frame)
        if method:
            self.seen[method] += 1
        trap = self._trap
        if trap and (method, towards_broker) == (trap.method, trap.towards_broker):
            self._trap = None
            passed = len(frame) // 2 if trap.half else 0
            target.sendall(frame[:passed])
            trap.dropped = len(frame) - passed
            trap.sprung.set()
            raise ConnectionError("the trap has sprung")
        target.sendall(frame)


class _Line:
    """One connection: the client's end and the broker's end."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client = client
        self.broker = broker

    def cut(self) -> None:
        for end in (self.client, self.broker):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def frames(pending: bytearray) -> Iterator[bytes]:
    """Take the whole frames out of *pending*; the beginning of another one stays."""
    while len(pending) >= _HEAD:
        (size,) = struct.unpack_from(">I", pending, 3)
        end = _HEAD + size + 1
        if len(pending) < end:
            return
        frame = bytes(pending[:end])
        del pending[:end]
        yield frame


def method_of(frame: bytes) -> Method | None:
    """Return the method that a frame carries, None for content and heartbeats."""
    if frame[0] != _METHOD:
        return None
    number, method = struct.unpack_from(">HH", frame, _HEAD)
    return number, method
