"""A topology is a value: it is added up, compared and read without a broker."""

from __future__ import annotations

from delivery.routes import Route, events_exchange, routes_of, topology_of
from delivery.topology import Binding, Conflict, Exchange, Queue, Topology, TopologyConflict


def test_a_sum_holds_the_parts_of_both_in_their_order() -> None:
    """``a + b`` declares everything of a, then everything of b."""
    a = Topology((Exchange("x"),), (Queue("q"),), (Binding("x", "q", "k"),))
    b = Topology((Exchange("y"),), (Queue("r"),), (Binding("y", "r", "k"),))

    assert a + b == Topology(
        (Exchange("x"), Exchange("y")),
        (Queue("q"), Queue("r")),
        (Binding("x", "q", "k"), Binding("y", "r", "k")),
    )


def test_a_sum_holds_what_both_parts_name_only_once() -> None:
    """Two routes share their exchange: it is described once, not once for each."""
    part = Topology((Exchange("x"),), (Queue("q", {"x-max-length": 1}),), (Binding("x", "q", "k"),))

    assert part + part == part


def test_a_sum_keeps_two_different_descriptions_of_one_queue() -> None:
    """A contradiction is not resolved in silence: both stay, and lint or declare reports it."""
    total = Topology(queues=(Queue("q"),)) + Topology(queues=(Queue("q", {"x-max-length": 1}),))

    assert len(total.queues) == 2


def test_adding_nothing_changes_nothing() -> None:
    """The empty topology is the neutral element, so a loop can start from it."""
    part = topology_of(routes_of("ns"))

    assert Topology() + part == part == part + Topology()


def test_each_recipient_has_one_queue_and_one_binding_in_its_namespace() -> None:
    """Recipients share the exchange and nothing else."""
    topology = topology_of(routes_of("ns"))

    assert [exchange.name for exchange in topology.exchanges] == ["ns.events"]
    assert [queue.name for queue in topology.queues] == ["ns.catalog", "ns.audit"]
    assert [(b.exchange, b.queue) for b in topology.bindings] == [
        ("ns.events", "ns.catalog"),
        ("ns.events", "ns.audit"),
    ]


def test_every_name_on_the_broker_begins_with_the_namespace() -> None:
    """Tests and lessons never share a queue."""
    route = Route("catalog", "lesson-7")

    assert (route.exchange, route.queue) == ("lesson-7.events", "lesson-7.catalog")
    assert events_exchange("lesson-7") == route.exchange


def test_a_conflict_says_object_argument_have_want_and_the_way_out() -> None:
    """The reader of the error can act on it without asking the broker again."""
    error = TopologyConflict([Conflict("queue 'q'", "x-message-ttl", "none", "1000")])

    text = str(error)
    assert "queue 'q' exists with x-message-ttl = none, wanted 1000" in text
    assert "Nothing was declared" in text
    assert "another namespace" in text
    assert "DELIVERY_RETRIES_MS" in text  # the usual cause
    assert "`delivery queues plan`, then `delivery queues change QUEUE`" in text
    assert error.conflicts == (Conflict("queue 'q'", "x-message-ttl", "none", "1000"),)
