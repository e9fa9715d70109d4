"""The campaign on three nodes: one is killed, one is cut off, and the ledger balances."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.exchange import environment, remove

from delivery.broker import Kind
from delivery.chaos import Load, attack
from delivery.cluster import Cluster
from delivery.config import Config
from delivery.connection import BrokerSettings
from delivery.quorum import as_quorum
from delivery.reporting import summary
from delivery.schedule import schedule
from delivery.stopping import Stop
from delivery.stores import Stores
from delivery.system import NAMESPACE, RETRIES_MS

KINDS = ["kill-node", "partition", "cut-before-confirm"]


@pytest.fixture
def attacked(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, without the campaign's queues afterwards."""
    yield cluster
    config = Config(
        broker=BrokerSettings(url=cluster.amqp_url),
        stores=Stores(Path()),
        namespace=NAMESPACE,
        retries_ms=RETRIES_MS,
        shape=as_quorum,
    )
    remove(config)


def test_a_campaign_on_three_nodes_adds_up(attacked: Cluster) -> None:
    """A node is killed, another one cut off, a confirm cut on the wire, and nothing is missing.

    On one machine no node can be cut off: that is said, and counted out.
    """
    said: list[str] = []
    run = attack(
        environment(),
        schedule(1, len(KINDS), KINDS),
        Load(rate=20),
        say=said.append,
        stop=Stop(),
        cluster=attacked,
    )

    told = {record.planned.kind: record.evidence for record in run.records}
    assert run.differences == [], said
    assert run.healed == []
    assert run.tally.clean
    assert all(account.difference == 0 for account in run.accounts)
    assert run.tally.accepted > 30
    assert "three nodes" in next(iter(summary(run)))
    docker = attacked.nodes[0].kind is Kind.DOCKER
    assert run.bites == {
        "cut-before-confirm": (1, 1),
        "kill-node": (1, 1),
        "partition": (1, 1 if docker else 0),
    }, told
    killed = r"SIGKILL of \S+, which led \d+ queues; .+; it is back"
    assert re.fullmatch(killed, told["kill-node"]), told
    cut = "the other two missed rabbit@" if docker else "only Docker can cut a node off"
    assert told["partition"].startswith(cut), told
