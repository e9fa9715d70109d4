"""What the notes of lesson 10 rest on: a host name that does not resolve may resolve later."""

from __future__ import annotations

import socket

import pytest

from delivery.connection import BrokerSettings, connect
from delivery.recovery import Backoff, keep_connected
from delivery.stopping import Stop


def test_a_name_that_does_not_resolve_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pika lets the resolver's error through, which is no AMQPError; connect translates it."""
    asked: list[object] = []

    def no_such_name(host: object, *_: object, **__: object) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_AGAIN, "the resolver does not answer")

    def work() -> None:
        if len(asked) < 3:
            connect(BrokerSettings(url="amqp://guest:guest@broker.invalid/"))

    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)

    keep_connected(work, stop=Stop(), backoff=Backoff(first=0.001, most=0.001))

    assert asked == ["broker.invalid"] * 3
