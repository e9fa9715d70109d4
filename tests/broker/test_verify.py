"""Where another user declares, a process asks: is it there, and may I?"""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingConnection

from delivery.config import Config
from delivery.connection import BrokerSettings
from delivery.stores import Stores
from delivery.topology import Topology, declare
from delivery.verify import NotDeclared, own_queues, verify


@pytest.fixture
def config(settings: BrokerSettings, namespace: str, tmp_path) -> Config:
    return Config(broker=settings, stores=Stores(tmp_path), namespace=namespace)


def test_what_is_missing_is_named(connection: BlockingConnection, config: Config) -> None:
    """Exchange or queue, with the command that declares it; the connection can still be used."""
    everything = config.topology()
    route = config.route("audit")
    for used in (Topology(everything.exchanges), own_queues(everything, route)):
        with pytest.raises(NotDeclared, match=r"NOT_FOUND.*delivery topology declare") as missing:
            verify(connection, used, publishes_to="")
        assert missing.value.event == "access.refused"
    declare(connection, everything)
    verify(connection, everything, publishes_to=config.exchange)
    connection.channel().queue_delete(f"{route.queue}.retry.2")
    with pytest.raises(NotDeclared, match=r"audit\.retry\.2"):
        verify(connection, own_queues(everything, route), publishes_to="")


def test_asking_to_publish_publishes_nothing(
    connection: BlockingConnection, config: Config
) -> None:
    """Also where every key reaches a queue."""
    topology = config.topology()
    declare(connection, topology)
    queue = config.route("audit").queue
    connection.channel().queue_bind(queue, config.exchange, "#")
    verify(connection, topology, publishes_to=config.exchange)
    assert connection.channel().queue_declare(queue, passive=True).method.message_count == 0


def test_a_recipients_own_queues_are_no_others(config: Config) -> None:
    """A name that only begins alike is another's."""
    found = own_queues(config.topology(), config.route("catalog"))
    assert len(found.queues) == 5
    assert all(q.name.startswith(f"{config.namespace}.catalog") for q in found.queues)
    assert own_queues(config.topology(), config.route("audit")).queues != found.queues
