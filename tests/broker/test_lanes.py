"""What no queue wants is kept and can be sent again; the urgent does not wait for the bulk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from support import world as worlds
from support.events import event, message
from support.recipients import store_at
from support.waiting import wait_for

from delivery import audit, triage
from delivery.confirms import NotConfirmed, Outcome
from delivery.connection import connect
from delivery.consumer import consume
from delivery.contract import Event
from delivery.dead import dead_queue
from delivery.errors import DeliveryError
from delivery.handling import Effect
from delivery.inbox import once
from delivery.lanes import (
    Lane,
    lane_route,
    lane_topology,
    run_lanes,
    unrouted_queue,
    with_alternate,
)
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, properties_of
from delivery.routes import Route, topology_of
from delivery.stopping import Stop
from delivery.topology import Binding, Exchange, Queue, Topology, declare
from delivery.triage import DeskBusy, held
from delivery.unrouted import Unrouted, alarm, look, replay_unrouted

BULK = "bulk.material.published.v1"
LANES = (Lane("critical", "material.published.*"), Lane("background", "bulk.#", prefetch=50))


class World(worlds.World):
    """A namespace whose exchange has an alternate; nobody wants keys that begin with bulk."""

    @property
    def parking(self) -> str:
        return unrouted_queue(self.catalog.exchange)

    @property
    def net(self) -> Topology:
        return with_alternate(topology_of(self.both), self.catalog.exchange)

    def wanting(self, key: str) -> Topology:
        """The same, where the catalog wants *key*, too."""
        return self.net + Topology(
            bindings=(Binding(self.catalog.exchange, self.catalog.queue, key),)
        )

    def bulk(self, *events: Event) -> list[Outcome]:
        """Publish under a key of the background lane; return the outcomes."""
        of = [message(each, self.namespace) for each in events]
        sent = [Message(each.exchange, BULK, each.properties, each.body) for each in of]
        with ConfirmedChannel(self.settings) as channel:
            return [answer.outcome for answer in channel.send_all(sent)]

    def replay(self, topology: Topology, keys: list[str], **options: Any) -> list[str]:
        with ConfirmedChannel(self.settings) as copies:
            exchange = self.catalog.exchange
            sent = replay_unrouted(self.connection, copies, topology, exchange, keys, **options)
        return [each.key for each in sent]


@pytest.fixture(autouse=True)
def cleaned(world: World) -> Iterator[None]:
    yield
    with connect(world.settings) as connection:
        channel = connection.channel()
        for route in (world.catalog, *(lane_route(world.audit, lane) for lane in LANES)):
            channel.queue_delete(route.queue)
        for name in (world.parking, f"{world.namespace}.alt"):
            channel.queue_delete(name)
            channel.exchange_delete(name)


def plan(world: World, topology: Topology) -> list[tuple[str, str, bool]]:
    found = look(world.connection, topology, world.catalog.exchange)
    return [(each.key, each.routing_key, each.wanted) for each in found]


# -- what no queue wants


@pytest.mark.parametrize("kind", ["missing", "fanout", "direct", "topic"])
def test_an_alternate_that_takes_nothing_is_no_net(world: World, kind: str) -> None:
    """No exchange, one without a queue, one whose binding does not match: the broker says nothing.

    A mandatory publish is returned; any other is confirmed, and nowhere.
    """
    alternate = f"{world.namespace}.alt"
    net = Topology((Exchange(world.catalog.exchange, "topic", {"alternate-exchange": alternate}),))
    if kind in ("direct", "topic"):
        net += Topology(
            (Exchange(alternate, kind),),  # type: ignore[arg-type]
            (Queue(alternate),),
            (Binding(alternate, alternate, "lost"),),
        )
    elif kind == "fanout":
        net += Topology((Exchange(alternate, "fanout"),))
    declare(world.connection, net)
    world.channel.confirm_delivery()

    world.channel.basic_publish(world.catalog.exchange, BULK, b"x")  # raises for what is refused

    assert world.bulk(event()) == [Outcome.RETURNED]
    if kind in ("direct", "topic"):
        assert world.ready(alternate) == 0


def test_with_an_alternate_no_return_comes_and_the_message_is_kept(world: World) -> None:
    """CONFIRMED means only that it is parked, with the key that it was published with."""
    declare(world.connection, topology_of(world.both))
    assert world.bulk(event()) == [Outcome.RETURNED]
    world.channel.exchange_delete(world.catalog.exchange)
    declare(world.connection, world.net)
    of = event()

    assert world.bulk(of) == [Outcome.CONFIRMED]

    assert (world.ready(world.catalog.queue), world.ready(world.parking)) == (0, 1)
    assert plan(world, world.net) == [(of.id, BULK, False)]


def test_the_alarm_counts_what_is_parked_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """One record while something waits, none while nothing does."""
    declare(world.connection, world.net)
    with caplog.at_level(logging.INFO, logger="delivery.unrouted"):
        assert alarm(world.connection, world.catalog.exchange) == 0
        world.bulk(event(), event())

        assert alarm(world.connection, world.catalog.exchange) == 2

    (record,) = [each for each in caplog.records if each.name == "delivery.unrouted"]
    assert (record.getMessage(), record.levelname) == ("unrouted.waiting", "WARNING")
    assert (vars(record)["queue"], vars(record)["count"]) == (world.parking, 2)


def test_to_look_takes_nothing_out(world: World) -> None:
    """Twice the same, in the old order; whether a queue wants it is the topology's word."""
    declare(world.connection, world.net)
    events = [event() for _ in range(3)]
    world.bulk(*events)

    assert plan(world, world.net) == [(each.id, BULK, False) for each in events]
    assert plan(world, world.wanting("bulk.#")) == [(each.id, BULK, True) for each in events]
    wait_for(lambda: world.ready(world.parking) == 3, "all are in their place again")


def test_a_replay_sends_what_a_queue_wants_now_and_leaves_the_rest(world: World) -> None:
    """First nothing is wanted; then the binding is declared with the replay, and one is chosen."""
    declare(world.connection, world.net)
    first, second = event(), event()
    world.bulk(first, second)
    noted: list[Unrouted] = []

    assert world.replay(world.net, [first.id, second.id]) == []
    wait_for(lambda: world.ready(world.parking) == 2, "the others are in their place again")
    assert world.replay(world.wanting("bulk.#"), [second.id], record=noted.append) == [second.id]

    ((properties, _),) = world.take(world.catalog.queue)
    assert properties.message_id == second.id
    assert [each.key for each in noted] == [second.id]
    assert plan(world, world.net) == [(first.id, BULK, False)]


def test_a_replay_that_is_not_confirmed_leaves_the_message_parked(world: World) -> None:
    """The recipient's queue is full and refuses: NotConfirmed, and the message is still parked."""
    full = Queue(world.catalog.queue, {"x-max-length": 0, "x-overflow": "reject-publish"})
    exchange = world.catalog.exchange
    net = with_alternate(Topology((Exchange(exchange),)), exchange)
    declare(world.connection, net)
    of = event()
    world.bulk(of)
    wanting = net + Topology((), (full,), (Binding(exchange, full.name, "bulk.#"),))

    with pytest.raises(NotConfirmed, match="refused"):
        world.replay(wanting, [of.id])

    assert plan(world, wanting) == [(of.id, BULK, True)]


def test_two_who_look_at_once_do_not_see_a_part_each(world: World) -> None:
    """The second is told that somebody is there."""
    declare(world.connection, world.net)
    of = event()
    world.bulk(of)

    def meanwhile(_: Unrouted) -> None:
        with connect(world.settings) as other, pytest.raises(DeskBusy, match="somebody else"):
            look(other, world.net, world.catalog.exchange)

    assert world.replay(world.wanting("bulk.#"), [of.id], record=meanwhile) == [of.id]


def test_what_is_parked_is_looked_at_page_by_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, in its order, however much there is; what is sent again is only what was named."""
    monkeypatch.setattr(triage, "PAGE", 2)
    declare(world.connection, world.net)
    events = [event(f"m-{n}") for n in range(7)]
    for of in events:
        world.bulk(of)
    ids = [of.id for of in events]
    assert [key for key, *_ in plan(world, world.net)] == ids

    assert world.replay(world.wanting("bulk.#"), ids[1:6:2]) == ids[1:6:2]
    assert [key for key, *_ in plan(world, world.net)] == ids[0:7:2]


def test_a_part_is_not_taken_for_the_whole(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else empties the queue, say, or the broker is slow."""
    monkeypatch.setattr(triage, "PATIENCE", 0.2)
    world.declare()
    with ConfirmedChannel(world.settings) as channel:
        for _ in range(3):
            channel.move(b"{}", properties_of(event()), to_queue=dead_queue(world.catalog))
    with held(world.connection, world.catalog) as (_, messages), connect(world.settings) as other:
        other.channel().queue_purge(dead_queue(world.catalog))
        with pytest.raises(DeskBusy, match="0 of 3 messages came"):
            list(messages)


def test_without_a_parking_queue_the_way_out_is_said(world: World) -> None:
    """One sentence, with the command."""
    declare(world.connection, topology_of(world.both))

    for ask in (
        lambda: alarm(world.connection, world.catalog.exchange),
        lambda: plan(world, world.net),
    ):
        with pytest.raises(DeliveryError, match="delivery unrouted declare"):
            ask()


# -- lanes


def work_all(
    world: World,
    lanes: Sequence[Lane],
    handle: Any,
    done: Any,
    turns: Mapping[str, AbstractContextManager[object]] = {},
) -> None:
    """Work on *lanes* of the audit log until *done*; *turns*, by lane, is what each waits for."""
    stop, route = Stop(), world.audit

    def work(lane: Lane) -> None:
        with (
            closing(store_at(world.store_path(route))) as store,
            connect(world.settings) as connection,
        ):
            consume(
                connection.channel(),
                lane_route(route, lane).queue,
                store,
                once(route, handle),
                prefetch=lane.prefetch,
                stop=stop,
                meanwhile=lambda: stop.request() if done() else None,
                turn=turns.get(lane.name, nullcontext()),
            )

    run_lanes(lanes, work, stop)


class Gate:
    """Before a lane's 30th transaction, wait until *opened*, at most ten seconds."""

    def __init__(self, opened: threading.Event) -> None:
        self._opened = opened
        self._passed = 0
        self.in_time: list[bool] = []

    def __enter__(self) -> None:
        self._passed += 1
        if self._passed == 30:
            self.in_time.append(self._opened.wait(10))

    def __exit__(self, *error: object) -> None:
        pass


def test_the_urgent_is_applied_before_the_bulk_is_half_done(world: World) -> None:
    """60 bulk events were there first; the 30th waits until the urgent one has been applied.

    Five in each worker's hands: in one queue, at least 50 would have to be applied first.
    """
    lanes = [replace(lane, prefetch=5) for lane in LANES]
    declare(world.connection, lane_topology(world.audit, lanes))
    bulk, urgent = [event() for _ in range(60)], event(title="urgent")
    world.bulk(*bulk)
    world.publish(urgent)
    applied: list[str] = []
    handled = threading.Event()
    gate = Gate(handled)

    def handle(of: Event, tx: Any) -> Effect:
        applied.append(of.id)
        if of.id == urgent.id:
            handled.set()
        return audit.append(of, tx)

    work_all(world, lanes, handle, lambda: len(applied) == 61, {"background": gate})

    assert gate.in_time == [True]
    assert applied.index(urgent.id) < 30
    assert sorted(applied) == sorted(each.id for each in [*bulk, urgent])


def test_one_lanes_unsettled_messages_use_up_no_others(world: World) -> None:
    """The bulk's only worker is at its limit of unsettled messages; the urgent one is taken."""
    lanes = (LANES[0], Lane("background", "bulk.#", prefetch=5))
    declare(world.connection, lane_topology(world.audit, lanes))
    world.bulk(*(event() for _ in range(20)))
    urgent = event()
    background = lane_route(world.audit, lanes[1]).queue
    taken = threading.Event()
    applied: list[str] = []

    def handle(of: Event, tx: Any) -> Effect:
        if of.id == urgent.id:
            taken.set()
        elif not applied:
            with connect(world.settings) as own:
                channel = own.channel()
                wait_for(
                    lambda: (
                        channel.queue_declare(background, passive=True).method.message_count == 15
                    ),
                    "five of twenty are taken",
                )
            world.publish(urgent)
            # The bulk's transaction is open: the urgent one is delivered, and waits for the store.
            critical = lane_route(world.audit, lanes[0]).queue
            wait_for(lambda: _ready(world, critical) == 0, "the urgent one is taken")
        applied.append(of.id)
        return audit.append(of, tx)

    work_all(world, lanes, handle, lambda: len(applied) == 21)

    assert taken.is_set()
    assert len(applied) == 21


def _ready(world: World, queue: str) -> int:
    with connect(world.settings) as own:
        declared = own.channel().queue_declare(queue, passive=True)
        return int(declared.method.message_count)


def test_what_comes_by_two_lanes_has_one_effect(world: World) -> None:
    """The receipts are the recipient's, not the lane's."""
    declare(world.connection, lane_topology(world.audit, LANES))
    of = event()
    world.bulk(of)
    world.publish(of)
    applied: list[str] = []

    def handle(each: Event, tx: Any) -> Effect:
        applied.append(each.id)
        return audit.append(each, tx)

    def empty() -> bool:
        queues = [lane_route(world.audit, lane).queue for lane in LANES]
        return bool(applied) and not any(_ready(world, queue) for queue in queues)

    work_all(world, LANES, handle, empty)

    assert applied == [of.id]


def test_a_route_of_a_lane_is_named_after_both() -> None:
    """The lane's queue, retry queues and dead queue follow from it."""
    assert lane_route(Route("audit", "ns"), LANES[1]).queue == "ns.audit.background"
