"""Lesson 02: what every connection of the package has, and how its failure looks."""

from __future__ import annotations

import socket

import pytest

from delivery.connection import BrokerSettings, BrokerUnavailable, connect


def test_every_connection_notices_a_dead_peer_and_a_blocked_publish() -> None:
    """Pika's defaults would wait minutes for the one, and for ever for the other."""
    parameters = BrokerSettings(url="amqp://u:p@127.0.0.1:1/%2F").parameters()

    assert parameters.heartbeat == 30
    assert parameters.blocked_connection_timeout == 20


def test_a_name_that_does_not_resolve_is_a_broker_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In pika that is no AMQP error; here a caller that waits for the broker waits for it, too."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(BrokerUnavailable, match="no broker at no-such-host:5672"):
        connect(BrokerSettings(url="amqp://u:p@no-such-host/%2F"))
