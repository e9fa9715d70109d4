"""Whatever stands in the way of a connection is one kind of error, and one that may pass."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from delivery.connection import BrokerSettings, BrokerUnavailable, connect, open_any
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


@pytest.mark.parametrize(
    "url", ["", "nonsense", "http://a", "amqp://h:abc/", "amqp://me@h/", "amqp://[::1"]
)
def test_what_is_no_address_is_said_at_once(url: str) -> None:
    """Waiting would not help: it is not a TemporaryError."""
    with pytest.raises(
        DeliveryError, match=r"can't be read|names a user and no password"
    ) as refusal:
        connect(BrokerSettings(url=url))
    assert not isinstance(refusal.value, BrokerUnavailable)


def test_the_password_is_not_in_the_address_for_people() -> None:
    """Logs and errors name host, port and vhost."""
    assert BrokerSettings(url="amqp://me:secret@host:5671/other").address == "host:5671/other"


def test_several_addresses_are_the_nodes_of_one_cluster() -> None:
    """Separated by commas; a comma in a password is none of them."""
    settings = BrokerSettings(url="amqp://me:a,b@one/%2F, amqp://me:a,b@two:5673/%2F", name="n")

    assert [node.parameters().host for node in settings.nodes] == ["one", "two"]
    assert settings.nodes[0].parameters().credentials.password == "a,b"
    assert {node.name for node in settings.nodes} == {"n"}
    assert settings.address == "one:5672, two:5673"


def test_a_node_that_does_not_answer_is_passed_over() -> None:
    """Whichever comes first: any node will do."""
    settings = BrokerSettings(url="amqp://a:b@one,amqp://a:b@two,amqp://a:b@three")

    def opened(node: BrokerSettings) -> str:
        if node.address != "two:5672":
            raise BrokerUnavailable(f"no broker at {node.address}")
        return node.address

    assert {open_any(settings, opened) for _ in range(20)} == {"two:5672"}


def test_no_node_is_everybodys_first_choice() -> None:
    """One that takes connections and has lost the others would be it for ever."""
    settings = BrokerSettings(url="amqp://a:b@one,amqp://a:b@two,amqp://a:b@three")

    first = {open_any(settings, lambda node: node.address) for _ in range(100)}
    assert first == {"one:5672", "two:5672", "three:5672"}


@each_way
def test_if_no_node_answers_each_is_named(opened) -> None:
    """The error says what was tried."""
    with pytest.raises(BrokerUnavailable) as refusal:
        opened(BrokerSettings(url="amqp://a:b@127.0.0.1:9/%2F,amqp://a:b@127.0.0.1:11/%2F"))
    assert "127.0.0.1:9:" in str(refusal.value)
    assert "127.0.0.1:11:" in str(refusal.value)
