"""Three nodes, and any of them may die: under load, for good, or cut off from the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingConnection
from support.events import event
from support.exchange import Exchange, environment, exchange_on
from support.patience import patiently, remove_queues
from support.publishing import await_more, publishing
from support.waiting import wait_for

from delivery.broker import Broker, Kind
from delivery.cluster import Cluster
from delivery.codec import encode
from delivery.confirms import Outcome
from delivery.connection import BrokerSettings, connect
from delivery.contract import Event
from delivery.errors import DeliveryError
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, properties_of
from delivery.quorum import NO_LIMIT, as_quorum
from delivery.ready import probe
from delivery.topology import Queue, Topology, declare


@pytest.fixture
def exchange(cluster: Cluster, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(
        cluster.broker, tmp_path, namespace, shape=as_quorum, DELIVERY_QUEUES="quorum"
    ) as opened:
        yield opened


def pause(exchange: Exchange, begun: float, over: float) -> float:
    """Return the longest time between two receipts of the catalog, in seconds."""
    times = exchange.select("catalog", "SELECT received_at FROM receipt ORDER BY received_at")
    window = [begun, *(each for each in times if begun < each < over), over]
    return max(after - before for before, after in pairwise(window))


def test_any_node_can_be_killed_under_load_and_nothing_is_lost(
    cluster: Cluster, exchange: Exchange, capsys
) -> None:
    """kill -9 of each node in turn, real relay and recipients: difference 0; the pause is told."""
    exchange.start("relay", "catalog", "audit")
    pauses, any_node = [], BrokerSettings(url=cluster.amqp_url)
    with publishing(exchange):
        await_more(exchange, 20)
        for node in cluster.nodes:
            begun = time.time()
            node.kill()
            for _ in range(3):  # whichever is tried first: another one answers
                with connect(any_node) as connection, ConfirmedChannel(any_node):
                    assert connection.is_open
            assert probe(cluster.amqp_url) == node.version  # doctor, and a given broker
            await_more(exchange, 60)
            pauses.append(pause(exchange, begun, time.time()))
            node.start()
            cluster.await_formed()
    with capsys.disabled():
        told = ", ".join(f"{pause:.1f} s" for pause in pauses)
        print(f"\nRabbitMQ {cluster.nodes[0].version}: longest pause at each kill: {told}")

    exchange.assert_all_applied()


def test_a_lone_node_confirms_nothing_and_nothing_confirmed_is_gone(
    cluster: Cluster, namespace: str
) -> None:
    """One of three takes connections; what it can't replicate it does not confirm."""
    one, *others = cluster.nodes
    settings = BrokerSettings(url=one.amqp_url)
    queue = Queue(f"{namespace}.q", {"x-delivery-limit": NO_LIMIT}, "quorum")
    patiently(settings, lambda connection: declare(connection, Topology(queues=(queue,))))
    first, second = event("m-1"), event("m-2")

    wait_for(lambda: confirmed(one, queue, first), "three nodes confirm", seconds=60)
    with ConfirmedChannel(settings, timeout=3) as channel:
        for node in others:
            node.kill()
        answer = channel.send(Message("", queue.name, properties_of(second), encode(second)))
    assert answer.outcome is not Outcome.CONFIRMED

    for node in others:
        assert node.machine is not None
        node.machine.start()
    for node in others:
        node.start()
    cluster.await_formed()

    def first_id(connection: BlockingConnection) -> str | None:
        channel = connection.channel()
        method, properties, _ = next(channel.consume(queue.name, inactivity_timeout=20))
        assert method is not None
        return properties.message_id  # never acknowledged: it may be read again

    assert patiently(settings, first_id) == first.id
    remove_queues(settings, queue.name)


def confirmed(through: Broker, queue: Queue, of: Event) -> bool:
    message = Message("", queue.name, properties_of(of), encode(of))
    try:
        with ConfirmedChannel(BrokerSettings(url=through.amqp_url), timeout=3) as channel:
            return channel.send(message).outcome is Outcome.CONFIRMED
    except DeliveryError:
        return False


def test_a_classic_queue_is_away_with_its_node_and_back_with_it(
    cluster: Cluster, namespace: str
) -> None:
    """Nobody else has its messages: not lost, and of no use meanwhile."""
    home, other = cluster.nodes[1], BrokerSettings(url=cluster.nodes[0].amqp_url)
    queue, of = Queue(f"{namespace}.q"), event()
    with connect(BrokerSettings(url=home.amqp_url)) as connection:
        declare(connection, Topology(queues=(queue,)))
    message = Message("", queue.name, properties_of(of), encode(of))
    with ConfirmedChannel(other) as channel:
        assert channel.send(message).outcome is Outcome.CONFIRMED
        home.kill()
        assert channel.send(message).outcome is not Outcome.CONFIRMED

    home.start()
    with connect(other) as connection:
        found = connection.channel().queue_declare(queue.name, passive=True).method
        assert found.message_count >= 1
        connection.channel().queue_delete(queue.name)


def test_a_node_that_is_cut_off_confirms_nothing_and_comes_back(
    cluster: Cluster, namespace: str
) -> None:
    """Its clients still reach it: the confirm tells. On one machine it is said, and not done."""
    node, *rest = reversed(cluster.nodes)
    if node.kind is Kind.NODE:
        with pytest.raises(DeliveryError, match="only Docker can cut a node off"):
            cluster.partition(node)
        return
    queue = Queue(f"{namespace}.q", {"x-delivery-limit": NO_LIMIT}, "quorum")
    there = BrokerSettings(url=node.amqp_url)
    patiently(there, lambda connection: declare(connection, Topology(queues=(queue,))))

    cluster.partition(node)
    try:
        wait_for(lambda: confirmed(rest[0], queue, event()), "the majority goes on", seconds=60)
        assert not confirmed(node, queue, event())
    finally:
        cluster.heal(node)
    said = "the node that was cut off confirms again"
    wait_for(lambda: confirmed(node, queue, event()), said, seconds=90)
    cluster.await_formed()
    remove_queues(there, queue.name)


def test_a_node_that_is_stopped_in_order_comes_back(cluster: Cluster) -> None:
    """An upgrade node by node: goodbye, and back under the same address."""
    node = cluster.nodes[2]

    node.stop()
    node.start()

    assert probe(node.amqp_url) == node.version
    cluster.await_formed()


@pytest.mark.parametrize("moment", ["starting three nodes", "the cluster runs until Ctrl-C"])
def test_a_cluster_that_is_interrupted_leaves_nothing(tmp_path: Path, moment: str) -> None:
    """SIGINT while the nodes come up, or later: no process, no container, no folder is left."""
    forced = {name: os.environ[name] for name in ("DELIVERY_BROKER",) if name in os.environ}
    with subprocess.Popen(
        [sys.executable, "-m", "delivery", "cluster", "run"],
        env=environment(TMPDIR=str(tmp_path), **forced),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        assert child.stdout is not None
        before = ""
        for line in child.stdout:
            before += line
            if line.startswith(moment):
                child.send_signal(signal.SIGINT)
                break
        said = child.stdout.read()
    assert child.returncode == 0, said
    assert "removing the cluster" in said
    for given in ("DELIVERY_AMQP_URL=amqp://", "DELIVERY_MANAGEMENT_URL=http://"):
        assert (given in before) is (moment != "starting three nodes")
    assert list(tmp_path.iterdir()) == []
    assert left_behind(tmp_path) == []


def left_behind(folder: Path) -> list[str]:
    """Processes, containers and networks that carry a name from *folder*."""
    from delivery.docker_host import NoDocker, client

    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOME={folder}".encode() in environ.read_bytes():
                found.append(environ.parent.name)
        except OSError:
            continue
    try:
        docker = client()
    except NoDocker:
        return found
    for each in docker.containers.list(all=True) + docker.networks.list():
        if str(folder) in str(each.attrs):
            found.append(each.name)
    return found
