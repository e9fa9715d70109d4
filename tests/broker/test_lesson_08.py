"""A dead message is looked at without loss, and sent again to its own recipient only."""

from __future__ import annotations

import pytest
from support.events import event
from support.world import World

from delivery.confirms import NotConfirmed
from delivery.contract import Event
from delivery.errors import PermanentError
from delivery.handling import Effect
from delivery.pipeline import ConfirmedChannel
from delivery.replay import replay
from delivery.triage import REPLAYS, DeadMessage, browse


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
        sent = replay(
            world.connection,
            copies,
            world.catalog,
            keys,
            operator="o",
            reason="r",
            record=record,
        )
    return [message.key for message in sent]


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
