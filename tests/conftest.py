"""One real broker for the whole run; a namespace of its own for every test."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingConnection

from delivery.broker import Broker
from delivery.connection import BrokerSettings, connect
from delivery.sandbox import disposable_broker, find_broker

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker by the order of choice: DELIVERY_AMQP_URL, else a sandbox of this run's own.

    Without any it fails, naming the three ways to get one: a broker test is never skipped.
    """
    yield from a_broker(tmp_path_factory)


@pytest.fixture(scope="session")
def undisturbed_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that no test kills, restarts or alarms.

    Where tests had done so, a 3.10 node was seen to refuse quorum queues for minutes (541, nacks).
    """
    yield from a_broker(tmp_path_factory)


def a_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if os.environ.get("DELIVERY_AMQP_URL"):
        yield find_broker(os.environ, tmp_path_factory.mktemp("broker"), print)
        return
    with disposable_broker(os.environ, print) as own:
        yield own


@pytest.fixture(scope="session")
def breakable_broker(broker: Broker) -> Iterator[Broker]:
    """A broker that a test may restart and kill: never somebody else's."""
    if broker.ours:
        yield broker
        return
    with disposable_broker(os.environ, print) as own:
        yield own


@pytest.fixture
def settings(broker: Broker) -> BrokerSettings:
    return BrokerSettings(url=broker.amqp_url, name="test")


@pytest.fixture
def namespace() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def connection(settings: BrokerSettings, namespace: str) -> Iterator[BlockingConnection]:
    """A connection to work with; what the test declared in its namespace is deleted afterwards."""
    with connect(settings) as opened:
        yield opened
    remove_namespace(settings, namespace)


def remove_namespace(settings: BrokerSettings, namespace: str) -> None:
    from support.patience import remove_queues

    suffixes = ("", ".dead", *(f".retry.{n}" for n in range(1, 6)))
    queues = [f"{namespace}.{each}{suffix}" for each in ("catalog", "audit") for suffix in suffixes]
    remove_queues(settings, *queues)
    with connect(settings) as cleaning:
        cleaning.channel().exchange_delete(f"{namespace}.events")


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """PostgreSQL of this run's own, from a wheel: the URL of its database."""
    from support.servers import postgres

    with postgres(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture
def database(postgres_server: str, namespace: str) -> Iterator[str]:
    """The URL of a test's own schema in it; it is dropped afterwards."""
    import psycopg

    with psycopg.connect(postgres_server, autocommit=True) as maker:
        maker.execute(f"CREATE SCHEMA {namespace}")
        yield f"{postgres_server}?options=-csearch_path%3D{namespace}"
        maker.execute(f"DROP SCHEMA {namespace} CASCADE")
