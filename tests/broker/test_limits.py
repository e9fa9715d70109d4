"""What happens beyond a limit is what was chosen: shed and kept aside, or refused and kept back."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from urllib.parse import quote

import pytest
from support.events import event, message
from support.waiting import wait_for
from support.world import World

from delivery import outbox
from delivery.broker import Broker
from delivery.confirms import Outcome
from delivery.dead import dead_queue, dead_topology
from delivery.limits import Limit, Refuse, Shed, bounded, policy_steps, shed_because
from delivery.management import Management
from delivery.outbox import SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, properties_of
from delivery.relay import relay_once
from delivery.retry import retry_queue, retry_topology
from delivery.routes import topology_of
from delivery.store import open_store, transaction
from delivery.topology import Queue, declare


def declared(world: World, limit: Limit) -> None:
    """Declare both recipients; the catalog's queue has *limit*."""
    topology = topology_of(world.both) + dead_topology(world.both)
    declare(world.connection, bounded(topology, {world.catalog.queue: limit}))


def send(world: World, count: int) -> tuple[list[str], list[Outcome]]:
    events = [event() for _ in range(count)]
    with ConfirmedChannel(world.settings) as channel:
        answers = channel.send_all([message(each, world.namespace) for each in events])
    return [each.id for each in events], [answer.outcome for answer in answers]


def shed(world: World) -> list[tuple[str, str]]:
    found = world.take(dead_queue(world.catalog))
    return [(properties.message_id, shed_because(properties)) for properties, _ in found]


def test_beyond_its_length_the_background_sheds_the_oldest_into_dead(world: World) -> None:
    """The publisher is told CONFIRMED, the newest are in the queue, the oldest aside."""
    declared(world, Shed(3, None, dead_queue(world.catalog)))

    ids, outcomes = send(world, 5)

    assert outcomes == [Outcome.CONFIRMED] * 5
    wait_for(lambda: world.ready(dead_queue(world.catalog)) == 2, "two are shed")
    assert [properties.message_id for properties, _ in world.take(world.catalog.queue)] == ids[2:]
    assert shed(world) == [(ids[0], "maxlen"), (ids[1], "maxlen")]
    assert world.ready(world.audit.queue) == 5


def test_what_is_too_old_is_shed_too(world: World) -> None:
    """With the other reason."""
    declared(world, Shed(100, 50, dead_queue(world.catalog)))

    ids, _ = send(world, 2)

    wait_for(lambda: world.ready(dead_queue(world.catalog)) == 2, "two have expired")
    assert shed(world) == [(ids[0], "expired"), (ids[1], "expired")]
    assert world.ready(world.catalog.queue) == 0


def test_the_refused_wait_in_the_outbox_and_go_out_later(world: World) -> None:
    """REFUSED by a full queue: the rows stay pending, and nothing but time is lost."""
    declared(world, Refuse(3))
    now = time.time()
    with (
        closing(open_store(world.folder / "publisher.db", outbox.SCHEMA)) as store,
        ConfirmedChannel(world.settings) as channel,
    ):
        events = [event() for _ in range(5)]
        with transaction(store) as tx:
            for each in events:
                outbox.add(tx, each, correlation_id="c", accepted_at=now)
        box = SqliteOutbox(store, world.catalog.exchange, clock=lambda: now)

        assert relay_once(box, channel) == {Outcome.CONFIRMED: 3, Outcome.REFUSED: 2}
        pending = "SELECT count(*) FROM outbox WHERE confirmed_at IS NULL AND outcome = 'refused'"
        assert store.execute(pending).fetchone() == (2,)
        first = world.take(world.catalog.queue)
        now += 60

        assert relay_once(box, channel) == {Outcome.CONFIRMED: 2}

    got = [properties.message_id for properties, _ in first + world.take(world.catalog.queue)]
    assert sorted(got) == sorted(each.id for each in events)
    # The free queue took the refused ones at once, and again: its receipts know the second copy.
    copies = Counter(properties.message_id for properties, _ in world.take(world.audit.queue))
    assert sorted(copies.values()) == [1, 1, 1, 2, 2]


def test_unacked_messages_do_not_count(world: World) -> None:
    """A limit of 2 with 2 in a reader's hands takes 2 more: prefetch is the other bound."""
    declared(world, Refuse(2))
    send(world, 2)
    for _ in range(2):
        world.channel.basic_get(world.catalog.queue)

    assert send(world, 3)[1] == [Outcome.CONFIRMED, Outcome.CONFIRMED, Outcome.REFUSED]


@pytest.mark.parametrize(("steps", "left"), [("one", 1), ("two", 100)])
def test_a_policy_in_two_steps_drops_nothing_that_is_there(
    world: World, broker: Broker, steps: str, left: int
) -> None:
    """Both said at once, the broker drops 99 of 100 before it hears that it should refuse."""
    world.declare()
    send(world, 100)
    queue = world.catalog.queue
    management = Management(broker.management_url or "", broker.amqp_url)
    path = f"/api/policies/%2F/{quote(queue)}"
    policies = policy_steps(Refuse(1))
    try:
        for definition in policies if steps == "two" else policies[-1:]:
            management.put(
                path,
                {"pattern": f"^{queue}$", "definition": definition, "apply-to": "queues"},
            )
        wait_for(lambda: send(world, 1)[1] == [Outcome.REFUSED], "the queue refuses")
        assert world.ready(queue) == left
    finally:
        management.delete(path)


@pytest.mark.parametrize("way", ["retry", "dead"])
def test_why_a_queue_that_the_broker_fills_must_not_refuse(world: World, way: str) -> None:
    """Two are moved to a queue with room for one: one is in no place at all. So bounded refuses."""
    full = Queue(world.catalog.queue, {"x-max-length": 1, "x-overflow": "reject-publish"})
    waiting = retry_queue(world.catalog, 1)
    declare(world.connection, topology_of([world.audit]))
    world.channel.queue_declare(full.name, durable=True, arguments=dict(full.arguments))
    delay = 50 if way == "retry" else 60_000
    declare(world.connection, retry_topology([world.catalog], [delay]))
    with ConfirmedChannel(world.settings) as channel:
        for each in (event(), event()):
            channel.send(Message("", waiting, properties_of(each), b"{}"))
    if way == "dead":
        for _ in range(2):
            method, _, _ = world.channel.basic_get(waiting)
            world.channel.basic_reject(method.delivery_tag, requeue=False)

    wait_for(lambda: world.ready(waiting) == 0, "both have left")
    wait_for(lambda: world.ready(full.name) == 1, "one has arrived")
    assert [world.ready(queue) for queue in (waiting, full.name)] == [0, 1]
