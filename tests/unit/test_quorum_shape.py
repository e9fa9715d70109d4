"""The same topology with quorum queues: what each queue gets, and that lint has no objection."""

from __future__ import annotations

import pytest

from delivery.contract import EVENT_TYPE
from delivery.dead import dead_topology
from delivery.lint import Publisher, lint
from delivery.quorum import DELIVERY_LIMIT, NO_LIMIT, as_quorum, delayed_retry
from delivery.retry import retry_topology
from delivery.routes import events_exchange, routes_of, topology_of
from delivery.topology import Queue, Topology

ROUTES = routes_of("ns")
CLASSIC = topology_of(ROUTES) + retry_topology(ROUTES, (500, 5_000)) + dead_topology(ROUTES)
CONFIRMED = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
PUBLISHER = Publisher(events_exchange("ns"), (EVENT_TYPE,))


def arguments(topology: Topology, name: str) -> dict[str, object]:
    (queue,) = (queue for queue in topology.queues if queue.name == name)
    assert queue.kind == "quorum"
    return dict(queue.arguments)


def test_every_queue_is_a_quorum_queue_and_nothing_else_changes() -> None:
    """Names, exchanges and bindings stay: publishers and recipients notice nothing."""
    quorum = as_quorum(CLASSIC)

    assert {queue.kind for queue in quorum.queues} == {"quorum"}
    assert [queue.name for queue in quorum.queues] == [queue.name for queue in CLASSIC.queues]
    assert (quorum.exchanges, quorum.bindings) == (CLASSIC.exchanges, CLASSIC.bindings)


def test_the_way_back_from_a_retry_queue_is_confirmed() -> None:
    """At-least-once needs reject-publish: the broker falls back without a word to us."""
    found = arguments(as_quorum(CLASSIC), "ns.catalog.retry.1")

    assert found == {
        "x-message-ttl": 500,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "ns.catalog",
        "x-delivery-limit": NO_LIMIT,
        **CONFIRMED,
    }


def test_what_exceeds_the_delivery_limit_goes_to_the_dead_queue_confirmed() -> None:
    """Without a dead-letter exchange the broker drops it."""
    assert arguments(as_quorum(CLASSIC), "ns.audit") == {
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "ns.audit.dead",
        **CONFIRMED,
    }


def test_a_dead_queue_has_no_limit_that_looking_could_reach() -> None:
    """Each look at it ends with a closed channel, and that counts as a delivery."""
    assert arguments(as_quorum(CLASSIC), "ns.audit.dead") == {"x-delivery-limit": NO_LIMIT}


def test_a_recipients_queue_without_a_dead_queue_gets_no_limit() -> None:
    """There is no place for what exceeds it."""
    assert arguments(as_quorum(topology_of(ROUTES)), "ns.audit") == {"x-delivery-limit": NO_LIMIT}


def test_twice_is_once() -> None:
    """A shape may be applied to what has it already."""
    assert as_quorum(as_quorum(CLASSIC)) == as_quorum(CLASSIC)


def test_what_a_queue_says_itself_is_kept() -> None:
    """Lint judges it then."""
    queue = Queue("q", {"x-overflow": "drop-head", "x-dead-letter-exchange": "x"})

    assert as_quorum(Topology(queues=(queue,))).queues[0].arguments["x-overflow"] == "drop-head"


@pytest.mark.parametrize("native", [False, True])
def test_lint_has_nothing_to_say_about_it(native: bool) -> None:
    """What lint recommends, the package does."""
    topology = as_quorum(CLASSIC)
    if native:
        topology = delayed_retry(topology, first_ms=500, most_ms=5_000)

    assert lint(topology, [PUBLISHER]) == []


def test_the_brokers_own_delayed_retry_is_for_recipients_only() -> None:
    """A queue that nobody fails on needs none."""
    native = delayed_retry(as_quorum(CLASSIC), first_ms=500, most_ms=5_000)

    asked = {q.name for q in native.queues if "x-delayed-retry-type" in q.arguments}
    assert asked == {"ns.catalog", "ns.audit"}
    assert arguments(native, "ns.audit")["x-delayed-retry-type"] == "failed"
    assert arguments(native, "ns.audit")["x-delayed-retry-min"] == 500
    assert arguments(native, "ns.audit")["x-delayed-retry-max"] == 5_000
