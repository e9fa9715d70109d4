"""Declaring is all or nothing, twice is the same as once, and a conflict says how to go on."""

from __future__ import annotations

import pytest
from pika.exceptions import ChannelClosedByBroker, UnroutableError
from support.events import event
from support.topics import TOPICS
from support.world import World

from delivery.topology import (
    Binding,
    Conflict,
    Exchange,
    Queue,
    Topology,
    TopologyConflict,
    declare,
)


def exists(world: World, queue: str) -> bool:
    channel = world.connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except ChannelClosedByBroker as refusal:
        assert refusal.reply_code == 404
        return False
    channel.close()
    return True


def test_declaring_twice_changes_nothing(world: World) -> None:
    """What waits in a queue is still there, once."""
    world.declare(500, 5_000)
    world.publish(event())

    world.declare(500, 5_000)

    assert world.ready(world.catalog.queue) == world.ready(world.audit.queue) == 1
    world.publish(event())
    assert world.ready(world.catalog.queue) == 2


def test_a_conflict_names_everything_and_leaves_nothing_half_declared(world: World) -> None:
    """The first queue is new, the second differs: the first is not created either."""
    old = Queue(world.audit.queue, {"x-message-ttl": 1_000})
    declare(world.connection, Topology(queues=(old,)))

    new = Queue(world.catalog.queue)
    wanted = Queue(world.audit.queue, {"x-message-ttl": 2_000})
    exchange = Exchange(world.catalog.exchange)
    binding = Binding(exchange.name, new.name, "key")
    with pytest.raises(TopologyConflict) as refused:
        declare(world.connection, Topology((exchange,), (new, wanted), (binding,)))

    assert refused.value.conflicts == (
        Conflict(f"queue '{world.audit.queue}'", "x-message-ttl", "1000", "2000"),
    )
    for part in (world.audit.queue, "x-message-ttl = 1000, wanted 2000", "another namespace"):
        assert part in str(refused.value)
    assert not exists(world, new.name)
    assert world.connection.is_open


@pytest.mark.parametrize(
    ("have", "want", "argument", "words"),
    [
        (Queue("q"), Queue("q", {"x-message-ttl": 9}), "x-message-ttl", ("none", "9")),
        (Queue("q", {"x-message-ttl": 9}), Queue("q"), "x-message-ttl", ("9", "none")),
        (Queue("q"), Queue("q", kind="quorum"), "x-queue-type", ("classic", "quorum")),
        (Exchange("q"), Exchange("q", "fanout"), "type", ("topic", "fanout")),
        (
            Exchange("q"),
            Exchange("q", arguments={"alternate-exchange": "a"}),
            "alternate-exchange",
            ("none", "a"),
        ),
    ],
)
def test_each_kind_of_conflict_is_read_from_the_brokers_words(
    world: World,
    have: Queue | Exchange,
    want: Queue | Exchange,
    argument: str,
    words: tuple[str, str],
) -> None:
    """Argument, what exists, what was wanted: for queues and exchanges, both ways round."""

    def topology(item: Queue | Exchange) -> Topology:
        if isinstance(item, Queue):
            queue = Queue(world.catalog.queue, item.arguments, item.kind)
            return Topology(queues=(queue,))
        return Topology(exchanges=(Exchange(world.catalog.exchange, item.kind, item.arguments),))

    declare(world.connection, topology(have))
    with pytest.raises(TopologyConflict) as refused:
        declare(world.connection, topology(want))

    (conflict,) = refused.value.conflicts
    assert (conflict.argument, conflict.have, conflict.want) == (argument, *words)


def test_all_conflicts_are_named_at_once(world: World) -> None:
    """Whoever repairs them need not find them one by one."""
    queues = (Queue(world.catalog.queue), Queue(world.audit.queue))
    declare(world.connection, Topology(queues=queues))

    wanted = tuple(Queue(queue.name, {"x-max-length": 5}) for queue in queues)
    with pytest.raises(TopologyConflict) as refused:
        declare(world.connection, Topology(queues=wanted))

    assert [conflict.thing for conflict in refused.value.conflicts] == [
        f"queue '{queue.name}'" for queue in queues
    ]


def test_topic_patterns_take_what_lint_believes_they_take(world: World) -> None:
    """Lint's reading of ``*`` and ``#`` is checked against the broker itself."""
    channel = world.connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare(world.catalog.exchange, "topic")
    queue = channel.queue_declare("", exclusive=True).method.queue

    def routes(pattern: str, key: str) -> bool:
        channel.queue_bind(queue, world.catalog.exchange, pattern)
        try:
            channel.basic_publish(world.catalog.exchange, key, b"", mandatory=True)
        except UnroutableError:
            return False
        finally:
            channel.queue_unbind(queue, world.catalog.exchange, pattern)
        return True

    assert [(pattern, key, routes(pattern, key)) for pattern, key, _ in TOPICS] == TOPICS


def test_each_recipient_gets_its_own_copy(world: World) -> None:
    """One event, two queues: taking it from one leaves the other."""
    world.declare()
    world.publish(event())

    assert len(world.take(world.catalog.queue)) == 1
    assert world.ready(world.audit.queue) == 1
