"""Declaring is all or nothing, twice is the same as once, and a conflict says how to go on."""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ChannelClosedByBroker, UnroutableError
from support.topics import TOPICS

from delivery.topology import (
    Binding,
    Conflict,
    Exchange,
    Queue,
    Topology,
    TopologyConflict,
    declare,
)


def exists(connection: BlockingConnection, queue: str) -> bool:
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except ChannelClosedByBroker as refusal:
        assert refusal.reply_code == 404
        return False
    channel.close()
    return True


def test_declaring_twice_changes_nothing(connection: BlockingConnection, namespace: str) -> None:
    """What waits in a queue is still there, once."""
    exchange = Exchange(f"{namespace}.events")
    queues = (
        Queue(f"{namespace}.catalog"),
        Queue(f"{namespace}.catalog.retry.1", {"x-message-ttl": 60_000}),
    )
    bindings = (Binding(exchange.name, queues[0].name, "#"),)
    topology = Topology((exchange,), queues, bindings)
    channel = connection.channel()
    channel.confirm_delivery()

    for count in (1, 2):
        declare(connection, topology)
        channel.basic_publish(exchange.name, "key", b"", mandatory=True)
        found = channel.queue_declare(queues[0].name, passive=True).method.message_count
        assert found == count


def test_a_conflict_names_everything_and_leaves_nothing_half_declared(
    connection: BlockingConnection, namespace: str
) -> None:
    """The first queue is new, the second differs: the first is not created either."""
    old = Queue(f"{namespace}.audit", {"x-message-ttl": 1_000})
    declare(connection, Topology(queues=(old,)))

    new = Queue(f"{namespace}.catalog")
    wanted = Queue(f"{namespace}.audit", {"x-message-ttl": 2_000})
    exchange = Exchange(f"{namespace}.events")
    binding = Binding(exchange.name, new.name, "key")
    with pytest.raises(TopologyConflict) as refused:
        declare(connection, Topology((exchange,), (new, wanted), (binding,)))

    assert refused.value.conflicts == (
        Conflict(f"queue '{f'{namespace}.audit'}'", "x-message-ttl", "1000", "2000"),
    )
    for part in (f"{namespace}.audit", "x-message-ttl = 1000, wanted 2000", "another namespace"):
        assert part in str(refused.value)
    assert not exists(connection, new.name)
    assert connection.is_open


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
    connection: BlockingConnection,
    namespace: str,
    have: Queue | Exchange,
    want: Queue | Exchange,
    argument: str,
    words: tuple[str, str],
) -> None:
    """Argument, what exists, what was wanted: for queues and exchanges, both ways round."""

    def topology(item: Queue | Exchange) -> Topology:
        if isinstance(item, Queue):
            queue = Queue(f"{namespace}.catalog", item.arguments, item.kind)
            return Topology(queues=(queue,))
        return Topology(exchanges=(Exchange(f"{namespace}.events", item.kind, item.arguments),))

    declare(connection, topology(have))
    with pytest.raises(TopologyConflict) as refused:
        declare(connection, topology(want))

    (conflict,) = refused.value.conflicts
    assert (conflict.argument, conflict.have, conflict.want) == (argument, *words)


def test_all_conflicts_are_named_at_once(connection: BlockingConnection, namespace: str) -> None:
    """Whoever repairs them need not find them one by one."""
    queues = (Queue(f"{namespace}.catalog"), Queue(f"{namespace}.audit"))
    declare(connection, Topology(queues=queues))

    wanted = tuple(Queue(queue.name, {"x-max-length": 5}) for queue in queues)
    with pytest.raises(TopologyConflict) as refused:
        declare(connection, Topology(queues=wanted))

    assert [conflict.thing for conflict in refused.value.conflicts] == [
        f"queue '{queue.name}'" for queue in queues
    ]


def test_topic_patterns_take_what_lint_believes_they_take(
    connection: BlockingConnection, namespace: str
) -> None:
    """Lint's reading of ``*`` and ``#`` is checked against the broker itself."""
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare(f"{namespace}.events", "topic")
    queue = channel.queue_declare("", exclusive=True).method.queue

    def routes(pattern: str, key: str) -> bool:
        channel.queue_bind(queue, f"{namespace}.events", pattern)
        try:
            channel.basic_publish(f"{namespace}.events", key, b"", mandatory=True)
        except UnroutableError:
            return False
        finally:
            channel.queue_unbind(queue, f"{namespace}.events", pattern)
        return True

    assert [(pattern, key, routes(pattern, key)) for pattern, key, _ in TOPICS] == TOPICS
