"""Three relays share a PostgreSQL outbox and are killed one at a time: every count agrees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.exchange import environment, remove

from delivery.broker import Broker
from delivery.chaos import Load
from delivery.config import Config
from delivery.connection import BrokerSettings
from delivery.errors import DeliveryError
from delivery.faults_relays import RELAYS
from delivery.reporting import summary
from delivery.schedule import schedule
from delivery.stopping import Stop
from delivery.stores import Stores
from delivery.system import RETRIES_MS
from delivery.three_relays import attack_relays

KIND = "kill-one-relay-of-three"
SEED = 1


@pytest.fixture
def own(broker: Broker, namespace: str) -> Iterator[str]:
    """A namespace whose queues and exchange are gone afterwards."""
    yield namespace
    config = Config(
        broker=BrokerSettings(url=broker.amqp_url),
        stores=Stores(Path()),
        namespace=namespace,
        retries_ms=RETRIES_MS,
    )
    remove(config)


def test_one_relay_of_three_is_killed_and_everything_arrives_once(
    broker: Broker, own: str, postgres_server: str
) -> None:
    """Each relay once: SIGKILL, the others go on; committed = sent = settled, and no trace is left.

    With this seed one is killed at any moment, one between confirm and mark, one after the mark.
    """
    said: list[str] = []
    planned = schedule(SEED, 3, [KIND])
    run = attack_relays(
        environment(),
        broker,
        postgres_server,
        planned,
        Load(rate=60),
        say=said.append,
        stop=Stop(),
        namespace=own,
    )

    assert run.differences == [], said
    assert run.bites == {KIND: (3, 3)}
    told = [record.evidence for record in run.records]
    assert {each.split(":")[0] for each in told} == {*RELAYS}
    assert all("exit status -9" in each for each in told)
    moments = sorted(
        re.sub(r"visit \d of ", "", each.split(", ")[1].split(";")[0]) for each in told
    )
    assert moments == ["at any moment", "relay.confirmed", "relay.marked"]
    assert run.tally.accepted > 60
    assert run.tally.clean
    assert [*summary(run)][-1] == "everything adds up"
    with psycopg.connect(postgres_server) as looking:
        left = looking.execute("SELECT FROM pg_namespace WHERE nspname LIKE 'chaos%'").fetchall()
    assert left == []


def test_a_user_who_may_create_no_schema_is_told(
    broker: Broker, namespace: str, postgres_server: str
) -> None:
    """Nothing is begun in somebody else's schema."""
    with psycopg.connect(postgres_server, autocommit=True) as maker:
        maker.execute("CREATE ROLE visitor LOGIN")
    url = postgres_server.replace("postgres@", "visitor@")
    with pytest.raises(DeliveryError, match="the campaign needs a schema of its own"):
        attack_relays(
            environment(), broker, url, [], Load(), say=print, stop=Stop(), namespace=namespace
        )
