"""Whatever stands in the way of a connection is one kind of error, and one that may pass."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from delivery.connection import BrokerSettings, BrokerUnavailable, connect
from delivery.errors import DeliveryError
from delivery.pipeline import ConfirmedChannel

each_way = pytest.mark.parametrize("opened", [connect, ConfirmedChannel])


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"amqp://a:b@127.0.0.1:{server.getsockname()[1]}/%2F"


@pytest.fixture
def no_broker() -> Iterator[str]:
    """A server that speaks something else."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            client.recv(8)
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            client.close()

        threading.Thread(target=answer, daemon=True).start()
        yield f"amqp://a:b@127.0.0.1:{server.getsockname()[1]}/%2F"


@each_way
def test_a_handshake_that_nobody_finishes_is_unavailable(black_hole: str, opened) -> None:
    """pika raises something there that is no AMQPError; a service must wait, not die."""
    with pytest.raises(BrokerUnavailable, match="no broker at 127"):
        opened(BrokerSettings(url=black_hole, connect_timeout=0.3))


@each_way
def test_something_that_is_no_broker_is_unavailable(no_broker: str, opened) -> None:
    """A starting container's proxy answers like this."""
    with pytest.raises(BrokerUnavailable, match="no broker at 127"):
        opened(BrokerSettings(url=no_broker, connect_timeout=2))


@each_way
@pytest.mark.parametrize("url", ["amqp://a:b@127.0.0.1:9/%2F", "amqp://a:b@no-such-host.invalid/"])
def test_nobody_and_no_such_name_are_unavailable(opened, url: str) -> None:
    """A refused port, and a name that does not resolve (an OSError in pika)."""
    with pytest.raises(BrokerUnavailable, match="no broker at"):
        opened(BrokerSettings(url=url))


@pytest.mark.parametrize("url", ["", "nonsense", "http://a", "amqp://h:abc/", "amqp://[::1"])
def test_what_is_no_address_is_said_at_once(url: str) -> None:
    """Waiting would not help: it is not a TemporaryError."""
    with pytest.raises(DeliveryError, match="can't be read") as refusal:
        connect(BrokerSettings(url=url))
    assert not isinstance(refusal.value, BrokerUnavailable)


def test_the_password_is_not_in_the_address_for_people() -> None:
    """Logs and errors name host, port and vhost."""
    assert BrokerSettings(url="amqp://me:secret@host:5671/other").address == "host:5671/other"
