"""The runbook's commands for nodes, while events are published; the ledger has the last word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.exchange import Exchange, exchange_on
from support.publishing import await_more, publishing
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.cluster import Cluster
from delivery.connection import BrokerSettings
from delivery.management import Management
from delivery.nodes import NodeState, node_states
from delivery.quorum import as_quorum

SERVICES = ("relay", "catalog", "audit")


def management_of(node: Broker) -> Management:
    assert node.management_url is not None
    return Management(node.management_url, node.amqp_url)


def name_of(node: Broker) -> str:
    return str(management_of(node).get("/api/overview")[0]["node"])


@pytest.fixture
def exchange(cluster: Cluster, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(
        cluster.broker, tmp_path, namespace, shape=as_quorum, DELIVERY_QUEUES="quorum"
    ) as opened:
        yield opened


def check(exchange: Exchange, through: Broker, *options: str) -> tuple[int, list[str]]:
    """Ask the plugin of the node *through* whether any one node may go."""
    assert through.management_url is not None
    ended = exchange.run(
        *("cluster", "check", "--json", *options), DELIVERY_MANAGEMENT_URL=through.management_url
    )
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)["against"]


def test_a_node_is_drained_stopped_and_comes_back_under_traffic(
    cluster: Cluster, exchange: Exchange
) -> None:
    """Its clients and leaders go elsewhere first; the check says so, and when the next may go."""
    home, other, _ = cluster.nodes
    name = name_of(home)
    exchange.start(*SERVICES)
    with publishing(exchange):
        await_more(exchange, 20)
        assert check(exchange, other, "--within", "30") == (0, [])

        home.ctl("drain", tool="rabbitmq-upgrade")
        try:
            wait_for(lambda: state(exchange, other, name).leads == 0, "it leads nothing")
            await_more(exchange, 20)
            said = f"{name} is drained: rabbitmq-upgrade revive"
            if told := int(home.version.split(".")[0]) >= 4:  # 3.10's plugin does not tell
                wait_for(lambda: state(exchange, other, name).drained, "the plugin has heard of it")
            assert (said in check(exchange, other)[1]) is told
        finally:
            home.stop()
        code, against = check(exchange, other)
        assert (code, f"{name} is not running" in against) == (1, True), against
        await_more(exchange, 20)
        home.start()
        assert check(exchange, other, "--within", "90") == (0, [])
        await_more(exchange, 20)

    exchange.assert_all_applied()


def state(exchange: Exchange, through: Broker, name: str) -> NodeState:
    states = node_states(management_of(through), f"{exchange.config.namespace}.")
    return next(each for each in states if each.name == name)


def test_one_node_becomes_three_under_traffic(
    cluster: Cluster, tmp_path: Path, namespace: str
) -> None:
    """Two nodes join, each queue grows, the services learn the addresses, and the first may go."""
    one, *others = cluster.nodes
    for node in reversed(others):
        node.ctl("stop_app")
        node.ctl("reset")  # it leaves the cluster, and is a new server
    options = {"shape": as_quorum, "DELIVERY_QUEUES": "quorum"}
    with exchange_on(one, tmp_path, namespace, **options) as exchange:
        exchange.start(*SERVICES)
        with publishing(exchange):
            await_more(exchange, 20)
            code, against = check(exchange, one)
            queue = exchange.config.route("catalog").queue
            assert code == 1
            assert f"{queue} would stop without {name_of(one)}" in against

            for node in others:
                node.ctl("join_cluster", name_of(one))
                node.ctl("start_app")
                node.start()  # returns when it is ready
                one.ctl("grow", name_of(node), "all", tool="rabbitmq-queues")
            assert check(exchange, one, "--within", "60") == (0, [])
            exchange.cast.environ = exchange.environ = {
                **exchange.environ,
                "DELIVERY_AMQP_URL": cluster.amqp_url,
            }
            for name in SERVICES:
                assert exchange.cast.stop(name) == 0
                exchange.start(name)
            exchange.config = replace(
                exchange.config, broker=BrokerSettings(url=cluster.amqp_url, name="test")
            )
            one.stop()
            await_more(exchange, 20)
            one.start()
        exchange.assert_all_applied()
        assert check(exchange, one, "--within", "90") == (0, [])
