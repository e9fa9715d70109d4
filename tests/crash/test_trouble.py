"""Trouble that is nobody's message's fault: said by its name, paid by no attempt, and outlived."""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.control import alarm, ctl, grant, user_of
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.cast import Actor
from delivery.connection import connect
from delivery.store import transaction
from delivery.stores import PUBLISHER

ALL = ("relay", "catalog", "audit")
STORE = {"relay": PUBLISHER, "catalog": "catalog"}
COMMAND = {"relay": ["relay"], "catalog": ["receive", "catalog"]}


@dataclass
class World:
    """A whole exchange on a broker that the test may operate, and one process that suffers."""

    exchange: Exchange
    broker: Broker
    name: str

    @property
    def actor(self) -> Actor:
        return self.exchange.cast[self.name]

    def await_words(self, pattern: str) -> None:
        """Wait until the process says *pattern* in one line with a pause."""
        line = re.compile(rf"warning {pattern}.* pause=")
        wait_for(lambda: line.search(self.actor.log()), f"{self.name} says {pattern}", 60)


@pytest.fixture(params=list(STORE))
def world(
    request: pytest.FixtureRequest, breakable_broker: Broker, tmp_path: Path, namespace: str
) -> Iterator[World]:
    with exchange_on(breakable_broker, tmp_path, namespace) as opened:
        yield World(opened, breakable_broker, request.param)


def both_go_on(world: World, events: list[str]) -> None:
    """What does not depend on the one that suffers is done meanwhile."""
    if world.name == "catalog":
        for event_id in events:
            world.exchange.await_receipt("audit", event_id)


def nothing_spent(world: World) -> None:
    """No retry copy, nothing dead, no strike; what was accepted is still where it was."""
    place = world.exchange.place("catalog")
    assert (sum(count or 0 for count in place.retry), place.dead) == (0, 0)
    assert world.exchange.select("catalog", "SELECT count(*) FROM strike") == [0]
    if world.name == "relay":
        pending = "SELECT count(*) FROM outbox WHERE confirmed_at IS NULL"
        assert world.exchange.select(PUBLISHER, pending) != [0]
    else:
        assert world.actor.process.poll() is None


def it_came_back(world: World, ready: int) -> None:
    """By itself, the same process; and every event has its one effect."""
    world.actor.await_event(f"{world.name}.ready", times=ready + 1, seconds=60)
    world.exchange.accept("m-after")
    events = world.exchange.select(PUBLISHER, "SELECT event_id FROM outbox")
    for event_id in events:
        for recipient in ("catalog", "audit"):
            wait_for(
                lambda r=recipient, e=event_id: world.exchange.receipt(r, e), "the receipt", 60
            )
    world.exchange.assert_all_applied()
    nobody_failed(world)


def nobody_failed(world: World) -> None:
    for name in ALL:
        assert world.exchange.cast[name].process.poll() is None
        assert "Traceback" not in world.exchange.cast[name].log()
        assert "effect=failed" not in world.exchange.cast[name].log()


# -- the store


def test_a_store_that_somebody_locks(world: World) -> None:
    """Longer than a writer's patience: the events wait, and have one effect when it is free."""
    others = [name for name in ALL if name != world.name]
    world.exchange.start(*others)
    events = world.exchange.accept("m-1", "m-2")
    with (
        closing(world.exchange.config.stores.open(STORE[world.name])) as store,
        transaction(store),
    ):
        world.exchange.cast.start(world.name, COMMAND[world.name])
        world.await_words("store.unavailable .*database is locked.* failures=2")
        both_go_on(world, events)
        nothing_spent(world)
        # Nobody is told in between that it is well, and the relay sends nothing that it can't mark.
        assert world.actor.said(f"{world.name}.ready") == 0
    it_came_back(world, 0)


@contextlib.contextmanager
def full_for(actor: Actor) -> Iterator[None]:
    """The process can't make any file longer than 4 KiB: no page fits into its store's log."""
    _, hard = resource.prlimit(actor.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(actor.process.pid, resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.prlimit(actor.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


def test_a_store_that_is_full(world: World) -> None:
    """Nothing can be written: nothing is settled or marked until something can."""
    world.exchange.start(*ALL)
    with full_for(world.actor):
        events = world.exchange.accept("m-1", "m-2")
        world.await_words("store.unavailable .*(disk I/O error|is full)")
        both_go_on(world, events)
        nothing_spent(world)
    it_came_back(world, 1)


# -- the broker


def test_a_right_that_was_taken_away(world: World) -> None:
    """The broker lets the user in no more: the process names the refusal, and waits."""
    with user_of(world.broker) as (user, url):
        world.exchange.start(*(name for name in ALL if name != world.name))
        world.exchange.cast.start(world.name, COMMAND[world.name], DELIVERY_AMQP_URL=url)
        world.actor.await_event(f"{world.name}.ready")
        ctl(world.broker, "clear_permissions", "-p", "/", user)
        close_connections(world, user)
        events = world.exchange.accept("m-1", "m-2")
        world.await_words(f"access.refused .*(refused|REFUSED).*{user}")
        both_go_on(world, events)
        nothing_spent(world)
        grant(world.broker, user)
        it_came_back(world, 1)
        world.exchange.cast.stop(world.name)
        world.exchange.start(world.name)


def close_connections(world: World, user: str) -> None:
    listed = ctl(world.broker, "--quiet", "list_connections", "pid", "user", "--no-table-headers")
    for line in listed.splitlines():
        pid, _, of = line.partition("\t")
        if of == user:
            ctl(world.broker, "close_connection", pid, "closed by the operator")


def test_a_connection_that_an_operator_closes(world: World) -> None:
    """Said with the operator's own words; whatever was half done is done again, with one effect."""
    world.exchange.start(*ALL)
    events = world.exchange.accept("m-1", "m-2")
    ctl(world.broker, "close_all_connections", "the operator says so")
    world.await_words("connection.lost .*the operator says so")
    for event_id in events:
        world.exchange.await_receipt("audit", event_id)
    it_came_back(world, 1)


relay_only = pytest.mark.parametrize("world", ["relay"], indirect=True)
catalog_only = pytest.mark.parametrize("world", ["catalog"], indirect=True)


@relay_only
def test_an_alarm_of_the_broker(world: World) -> None:
    """Publishers are blocked: the relay gives the broker's reason; recipients go on."""
    world.exchange.start("relay")
    before = world.exchange.accept("m-1")
    confirmed = "SELECT count(confirmed_at) FROM outbox"
    wait_for(lambda: world.exchange.select(PUBLISHER, confirmed) == [1], "it is on the broker")
    with alarm(world.broker):
        world.exchange.accept("m-2", "m-3")
        world.await_words("connection.lost .*takes no publishes now: low on memory")
        nothing_spent(world)
    world.exchange.start("catalog", "audit")
    for event_id in before:
        world.exchange.await_receipt("audit", event_id)
    it_came_back(world, 1)


@relay_only
def test_an_exchange_that_somebody_deletes(world: World) -> None:
    """The relay names it, declares it again, and sends what was not confirmed."""
    world.exchange.start(*ALL)
    with connect(world.exchange.config.broker) as connection:
        connection.channel().exchange_delete(world.exchange.config.exchange)
    world.exchange.accept("m-1", "m-2")
    world.await_words(f"connection.lost .*no exchange '{world.exchange.config.exchange}'")
    it_came_back(world, 1)


@catalog_only
def test_a_queue_that_somebody_deletes(world: World) -> None:
    """The recipient says that it ended, and declares it again; what was in it is reconciled."""
    world.exchange.start(*ALL)
    queue = world.exchange.config.route("catalog").queue
    with connect(world.exchange.config.broker) as connection:
        connection.channel().queue_delete(queue)
    world.await_words(f"consuming.ended .*{queue}")
    world.actor.await_event("catalog.ready", times=2)
    events = world.exchange.accept("m-1")
    both_go_on(world, events)
    it_came_back(world, 1)
