"""One setting may name several nodes; whoever reads it sees the same list."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from delivery.addresses import addresses
from delivery.broker import Broker, Kind
from delivery.management import Management

TWO = "amqp://me:a,b@one:5673/%2F, amqps://me:a,b@two/%2F"


def test_only_a_comma_before_the_next_address_separates() -> None:
    """A password may hold commas."""
    assert addresses(TWO) == ["amqp://me:a,b@one:5673/%2F", "amqps://me:a,b@two/%2F"]
    assert addresses("amqp://one") == ["amqp://one"]
    assert addresses("") == [""]


def test_people_see_every_node_and_no_password() -> None:
    """The sandbox names a given cluster so."""
    assert Broker(Kind.GIVEN, TWO, None, "unknown").address == "one:5673, two"


def test_the_management_api_takes_the_login_of_the_first() -> None:
    """A cluster has the same users everywhere."""
    found = Management("http://one:15672", TWO)._amqp
    assert (found.username, found.password, found.path) == ("me", "a,b", "/%2F")


def test_the_virtual_host_is_that_of_the_first() -> None:
    """Users, rights and policies are set in it: the rest of the list is no part of its name."""
    two = "amqp://one/my%2Fown?heartbeat=10,amqp://two/my%2Fown"
    assert Management("http://one:15672", two).vhost == "my%2Fown"
    assert Management("http://one:15672", "amqp://one,amqp://two").vhost == "%2F"


def test_a_management_api_that_hangs_up_is_named() -> None:
    """As another program does that listens at the port: "connection reset" alone helps nobody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            client, _ = server.accept()
            client.recv(1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()

        threading.Thread(target=hang_up).start()
        where = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(OSError, match=f"no management API at {where}: "):
            Management(f"http://{where}", TWO).get("/api/overview")
