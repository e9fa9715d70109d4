"""A dead message is looked at without loss, and sent again to its own recipient only."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
from pika import BasicProperties
from pika.spec import Basic
from support.events import event
from support.proxy import proxied
from support.world import World

from delivery import triage
from delivery.confirms import NotConfirmed
from delivery.connection import connect
from delivery.contract import Event
from delivery.dead import dead_queue
from delivery.errors import PermanentError
from delivery.handling import Effect
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope
from delivery.replay import drop, replay
from delivery.triage import REPLAYS, DeadMessage, browse, held


def refuse(of: Event, tx: object) -> Effect:
    raise PermanentError("not this one")


def one_dead(world: World) -> Event:
    """Publish one event to both recipients; the catalog parks it, the audit log takes it."""
    world.declare()
    of = event()
    world.publish(of)
    world.take(world.audit.queue)
    world.consume(world.catalog, refuse)
    return of


def replay_all(world: World, noted: list[DeadMessage] | None = None) -> list[str]:
    keys = [message.key for message in browse(world.connection, world.catalog)]
    record = (noted if noted is not None else []).append
    with ConfirmedChannel(world.settings) as copies:
        return replay(
            world.connection,
            copies,
            world.catalog,
            keys,
            operator="o",
            reason="r",
            record=record,
        )


def test_a_replay_reaches_one_recipient_only(world: World) -> None:
    """The other recipient has nothing to repair; a second replay finds nothing to send."""
    of = one_dead(world)

    assert replay_all(world) == [of.id]
    assert (world.ready(world.catalog.queue), world.ready(world.audit.queue)) == (1, 0)
    assert replay_all(world) == []


def test_a_replay_whose_copy_is_not_confirmed_leaves_the_message_dead(world: World) -> None:
    """The recipient's queue is gone: NotConfirmed, and the dead message is still there."""
    of = one_dead(world)
    world.channel.queue_delete(world.catalog.queue)

    with pytest.raises(NotConfirmed, match="returned"):
        replay_all(world)
    assert [message.key for message in browse(world.connection, world.catalog)] == [of.id]


def test_to_look_takes_nothing_out(world: World) -> None:
    """Twice the same list, with the reason and the error."""
    of = one_dead(world)

    first, second = (browse(world.connection, world.catalog) for _ in range(2))

    assert [(m.key, m.reason, m.error) for m in first] == [(of.id, "rejected", "not this one")]
    assert [m.key for m in second] == [of.id]


def test_a_replayed_message_begins_anew(world: World) -> None:
    """What park wrote is taken off, so that the attempts count from 1; the replay is counted."""
    one_dead(world)
    noted: list[DeadMessage] = []

    replay_all(world, noted)

    ((properties, _),) = world.take(world.catalog.queue)
    assert sorted(properties.headers) == sorted(
        [REPLAYS, "x-delivery-replayed-by", "x-delivery-replay-reason"]
    )
    assert properties.headers[REPLAYS] == 1
    assert len(noted) == 1


def bury(world: World, count: int) -> list[str]:
    """Put so many dead messages into the catalog's dead queue; return their keys, oldest first."""
    world.declare()
    keys = [f"dead-{n:03}" for n in range(count)]
    for key in keys:
        about = envelope(key, "t", timestamp=1)
        world.send(Message("", dead_queue(world.catalog), about, b"x" * 1000))
    return keys


def in_memory() -> int:
    """Count the messages that are in this process: each has its properties."""
    gc.collect(1)
    return sum(isinstance(each, BasicProperties) for each in gc.get_objects())


@pytest.mark.parametrize("count", [30, 35])
def test_a_look_at_many_keeps_no_body_and_their_order(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Page after page, in full pages and in others; each is back in its place afterwards."""
    monkeypatch.setattr(triage, "PAGE", 10)
    keys = bury(world, count)
    before = in_memory()

    for _ in range(2):
        found = browse(world.connection, world.catalog)
        assert [message.key for message in found] == keys
        assert in_memory() == before
    with held(world.connection, world.catalog) as (_, messages):
        most = max(in_memory() for _ in messages)
    assert most - before <= 11  # a page, and the one that was looked at before it
    assert world.ready(dead_queue(world.catalog)) == count


def test_acts_on_many_have_no_more_than_a_page_in_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every ack would let pika read on; what is not chosen stays, in its order, and untouched."""
    monkeypatch.setattr(triage, "PAGE", 10)
    keys = bury(world, 100)
    before, most = in_memory(), 0

    def record(message: DeadMessage) -> None:
        nonlocal most
        world.connection.process_data_events(0)  # a slow pace serves the connection
        most = max(most, in_memory() - before)

    chosen = {key for key in keys if key.endswith(("1", "3", "5"))}
    why = {"operator": "o", "reason": "r"}
    with ConfirmedChannel(world.settings) as copies:
        sent = replay(world.connection, copies, world.catalog, chosen, **why, record=record)
    assert sent == sorted(chosen)
    left = [key for key in keys if key not in chosen]
    dropped = drop(world.connection, world.catalog, set(left[::2]), record=record)
    assert dropped == left[::2]
    assert most <= 12
    assert [message.key for message in browse(world.connection, world.catalog)] == left[1::2]
    assert world.ready(world.catalog.queue) == len(chosen)


NOTHING = (None, None, None)  # what pika gives when nothing came for a while


def heard(world: World, *arrived: Any) -> int:
    """Return how many of what *arrived* are given on, from the catalog's dead queue."""
    queue = dead_queue(world.catalog)
    return len(list(triage._until_silent(world.connection.channel(), queue, iter(arrived))))


def test_a_silent_broker_that_has_more_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be busy; but not for ever, and not for messages that somebody else took."""
    monkeypatch.setattr(triage, "SILENCE", 4 * triage.PATIENCE)
    bury(world, 1)
    with held(world.connection, world.catalog) as (_, messages):
        (one,) = messages
    came = (Basic.Deliver(delivery_tag=1), one.delivery.properties, one.delivery.body)
    assert heard(world, *[NOTHING] * 3, came, *[NOTHING] * 3, came) == 2
    assert heard(world, came, *[NOTHING] * 4, came) == 1
    world.connection.channel().queue_purge(dead_queue(world.catalog))
    assert heard(world, came, NOTHING, came, NOTHING, came, *[NOTHING] * 2, came) == 3


def test_a_message_that_takes_long_to_come_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow line: the broker has sent it, and has no more of it; it is not lost."""
    monkeypatch.setattr(triage, "PATIENCE", 0.2)
    world.declare()
    about = envelope("large", "t", timestamp=1)
    for _ in range(2):
        world.send(Message("", dead_queue(world.catalog), about, b"x" * 400_000))
    with proxied(world.settings.url) as proxy:
        proxy.pause = 0.1
        with connect(replace(world.settings, url=proxy.url)) as slow:
            found = browse(slow, world.catalog)
    assert [message.key for message in found] == ["large", "large"]
