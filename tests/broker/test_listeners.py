"""Lanes and other people's queues on the exchange are seen, by the broker's own word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingConnection
from support.answering import answering, between
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.connection import connect
from delivery.dead import dead_queue, dead_topology
from delivery.listeners import MOST, MOST_KEYS, Listener, Listeners, listeners
from delivery.management import Management
from delivery.queue_list import listed
from delivery.retry import retry_queue, retry_topology
from delivery.routes import Route, topology_of
from delivery.topology import declare


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        yield opened


@pytest.fixture
def others(exchange: Exchange) -> Iterator[BlockingConnection]:
    """A connection to bind more queues with, which go with it or at the end."""
    with connect(exchange.config.broker) as connection:
        yield connection
        for each in found(exchange).shown:
            for name in (each.queue, f"{each.queue}.retry.1", f"{each.queue}.dead"):
                connection.channel().queue_delete(name)


def found(exchange: Exchange, url: str | None = None) -> Listeners:
    """What the plugin tells, or another one at *url*."""
    config = exchange.config
    told = listeners(replace(config, management_url=url or config.management_url))
    assert told is not None
    return told


def plugin(exchange: Exchange) -> Management:
    assert exchange.config.management is not None
    return exchange.config.management


def bind(connection: BlockingConnection, exchange: Exchange, queue: str, key: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, exchange.config.exchange, key)


def test_lanes_and_strangers_are_seen_and_their_counts(
    exchange: Exchange, others: BlockingConnection
) -> None:
    """A lane with its retry and dead queues, read by somebody; a stranger who takes everything."""
    assert found(exchange) == Listeners((), 0)
    namespace = exchange.config.namespace
    urgent = Route("audit.urgent", namespace, "urgent.*")
    lane = topology_of([urgent]) + retry_topology([urgent], (600_000,)) + dead_topology([urgent])
    declare(others, lane)
    stranger = f"stranger-{namespace}"
    bind(others, exchange, stranger, "urgent.#")
    bind(others, exchange, stranger, "bulk.#")
    for queue in (retry_queue(urgent, 1), dead_queue(urgent), dead_queue(urgent)):
        exchange.put("audit", b"{}", "e-1", queue=queue)
    channel = others.channel()
    for _ in range(3):
        channel.basic_publish(exchange.config.exchange, "urgent.now", b"{}")
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(urgent.queue, lambda *_: None)
    others.sleep(0.1)

    wanted = Listeners(
        (
            Listener(urgent.queue, ("urgent.*",), 0, "classic", 1, 2, 1, 1, 2),
            Listener(stranger, ("bulk.#", "urgent.#"), 0, "classic", 3, 0, 0, None, None),
        ),
        0,
    )
    wait_for(lambda: found(exchange) == wanted, f"the plugin has counted: {wanted}", 20)
    assert exchange.place("audit").ready == 0  # it is no recipient's own

    told = json.loads(exchange.run("status", "--json").stdout)["listeners"]
    assert (told["shown"][0]["queue"], told["shown"][0]["keys"]) == (urgent.queue, ["urgent.*"])
    shown = exchange.run("status").stdout
    assert "also bound to the exchange (up to 10 s ago), and in no sum here:" in shown
    assert (
        f"  {urgent.queue} (urgent.*): ready 1, unacked 2, consumers 1, retry 1, dead 2,"
        " queue kind classic"
    ) in shown
    assert f"  {stranger} (bulk.#, urgent.#): ready 3, unacked 0, consumers 0, queue kind" in shown

    def delete_it(path: str) -> None:
        """The lane is deleted between two questions."""
        if path.startswith("/api/queues/"):
            exchange.delete_queue(urgent.queue)

    with between(plugin(exchange), delete_it) as url:
        assert [each.queue for each in found(exchange, url).shown] == [stranger]
    for queue in (retry_queue(urgent, 1), dead_queue(urgent)):
        exchange.delete_queue(queue)


def test_of_many_the_first_are_shown_and_the_rest_is_counted(
    exchange: Exchange, others: BlockingConnection
) -> None:
    for number in range(MOST + 2):
        bind(others, exchange, f"{exchange.config.namespace}.bulk-{number}", "bulk.#")
    for number in range(MOST_KEYS):
        bind(others, exchange, f"{exchange.config.namespace}.bulk-0", f"b.{number}")
    assert (len(found(exchange).shown), found(exchange).more) == (MOST, 2)
    shown = exchange.run("status").stdout
    assert "\n  and 2 more\n" in shown
    assert ".bulk-0 (b.0, b.1, b.2, b.3, b.4, 1 more): " in shown


def test_where_the_plugin_does_not_answer_nothing_is_claimed(
    exchange: Exchange, others: BlockingConnection
) -> None:
    """Neither that nobody listens, nor an error: the rest of the screen is there."""
    bind(others, exchange, f"{exchange.config.namespace}.bulk", "bulk.#")
    away = {"DELIVERY_MANAGEMENT_URL": "http://127.0.0.1:9"}
    run = exchange.run("status", "--json", **away)
    assert (run.returncode, json.loads(run.stdout)["listeners"]) == (0, None)
    assert "who else is bound to the exchange: not visible" in exchange.run("status", **away).stdout
    with pytest.raises(OSError, match="no management API"):
        found(exchange, "http://127.0.0.1:9")


@pytest.mark.parametrize("body", [b'{"error": "not what was asked for"}', b"[7]", b"null", b"[{}]"])
def test_an_answer_that_is_no_list_of_bindings_is_said_to_be_none(
    exchange: Exchange, body: bytes
) -> None:
    with answering(200, body) as url, pytest.raises(OSError, match="no bindings there"):
        found(exchange, url)


def test_names_of_any_length_and_signs_are_found(
    exchange: Exchange, others: BlockingConnection
) -> None:
    """In as few questions as fit; a name that differs in its capitals only is another queue."""
    namespace = exchange.config.namespace
    names = [f"{namespace}.{number}{'[*]é|' * 30}" for number in range(MOST)]
    for name in names:
        bind(others, exchange, name, "bulk.#")
    others.channel().queue_declare(names[0].upper(), exclusive=True)
    paths = list[str]()
    with between(plugin(exchange), paths.append) as url:
        assert [each.queue for each in found(exchange, url).shown] == names
    assert len(paths) > 2


@pytest.mark.parametrize("body", [b"[]", b"null", b'{"items": [{}]}'])
def test_an_answer_that_is_no_list_of_queues_is_said_to_be_none(
    exchange: Exchange, body: bytes
) -> None:
    with answering(200, body) as url, pytest.raises(OSError, match="no queues there"):
        listed(replace(plugin(exchange), url=url), ["any"])
