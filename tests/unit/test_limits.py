"""Each bound says what happens beyond it, and a place that keeps what is dead has none."""

from __future__ import annotations

import pytest
from pika import BasicProperties

from delivery.dead import dead_queue, dead_topology
from delivery.diagram import mermaid
from delivery.errors import DeliveryError
from delivery.limits import Limit, Refuse, Shed, bounded, policy_steps, shed_because
from delivery.lint import lint
from delivery.retry import retry_topology
from delivery.routes import Route, topology_of

ROUTE = Route("catalog", "ns")
OTHER = Route("audit", "ns")
TOPOLOGY = topology_of([ROUTE, OTHER]) + dead_topology([ROUTE, OTHER])
DEAD = dead_queue(ROUTE)


def test_each_queue_has_its_limit_and_the_others_are_as_they_were() -> None:
    """Lint is content: what exceeds a limit goes somewhere, or back to who sent it."""
    limits = {ROUTE.queue: Shed(100, 5_000, DEAD), OTHER.queue: Refuse(50)}
    topology = bounded(TOPOLOGY, limits)

    first, second, *rest = topology.queues
    assert first.arguments == {
        "x-max-length": 100,
        "x-overflow": "drop-head",
        "x-message-ttl": 5_000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": DEAD,
    }
    assert second.arguments == {"x-max-length": 50, "x-overflow": "reject-publish"}
    assert tuple(rest) == TOPOLOGY.queues[2:]
    assert lint(topology) == []


def test_without_a_ttl_only_the_length_counts() -> None:
    """None is no limit of age; 0 would drop what no consumer takes at once."""
    topology = bounded(TOPOLOGY, {ROUTE.queue: Shed(100, None, DEAD)})

    assert "x-message-ttl" not in topology.queues[0].arguments


@pytest.mark.parametrize("limit", [Refuse(5), Shed(5, None, "ns.audit.dead")])
def test_a_dead_queue_is_never_bounded(limit: Limit) -> None:
    """Full, it would lose what was to be kept."""
    with pytest.raises(DeliveryError, match="would be lost"):
        bounded(TOPOLOGY, {DEAD: limit})


def test_a_queue_that_others_shed_into_does_not_refuse() -> None:
    """By whatever name: what the broker moves there has no publisher to refuse."""
    named = topology_of([Route("a", "ns"), Route("b", "ns")])
    with pytest.raises(DeliveryError, match="would be lost"):
        bounded(named, {"ns.a": Shed(5, None, "ns.b"), "ns.b": Refuse(5)})


def test_a_queue_that_retries_lead_back_to_may_not_refuse_either() -> None:
    """What the broker brings back from a retry queue would be lost at a full one."""
    with pytest.raises(DeliveryError, match="would be lost"):
        bounded(TOPOLOGY + retry_topology([ROUTE], [100]), {ROUTE.queue: Refuse(5)})


@pytest.mark.parametrize(
    "limits", [{"ns.typo": Refuse(5)}, {ROUTE.queue: Shed(5, None, "ns.typo")}]
)
def test_a_queue_that_is_not_there_is_refused(limits: dict[str, Limit]) -> None:
    """A misspelt name would leave a queue without its limit, or lose what is shed."""
    with pytest.raises(DeliveryError, match=r"no queue 'ns\.typo'"):
        bounded(TOPOLOGY, limits)


def test_a_policy_says_what_happens_beyond_the_length_before_the_length() -> None:
    """Both at once, and a classic queue drops what is already there."""
    assert policy_steps(Refuse(5)) == [
        {"overflow": "reject-publish"},
        {"overflow": "reject-publish", "max-length": 5},
    ]
    first, whole = policy_steps(Shed(5, 100, DEAD))
    assert "max-length" not in first
    assert whole == {**first, "max-length": 5}
    assert first["dead-letter-routing-key"] == DEAD


def test_what_the_broker_did_not_move_has_no_reason() -> None:
    """Parked by us, say."""
    assert shed_because(BasicProperties()) == ""


@pytest.mark.parametrize(
    ("ttl_ms", "label"), [(5_000, "after 5000 ms, or beyond 100"), (None, "beyond 100")]
)
def test_the_diagram_shows_when_a_queue_sheds(ttl_ms: int | None, label: str) -> None:
    """A dotted arrow, as for everything that the broker moves by itself."""
    drawn = mermaid(bounded(TOPOLOGY, {ROUTE.queue: Shed(100, ttl_ms, DEAD)}))

    assert f'    q1 -. "{label}" .-> q3' in drawn.splitlines()


@pytest.mark.parametrize(
    "limits",
    [
        {ROUTE.queue: Shed(5, None, ROUTE.queue)},
        {ROUTE.queue: Shed(5, None, "ns.catalog.retry.1")},
        {ROUTE.queue: Shed(5, None, OTHER.queue), OTHER.queue: Shed(5, None, ROUTE.queue)},
    ],
)
def test_what_is_shed_does_not_come_back(limits: dict[str, Limit]) -> None:
    """The broker drops it without a word: of ten, with a length of one, nine were gone."""
    with pytest.raises(DeliveryError, match="leads back"):
        bounded(TOPOLOGY + retry_topology([ROUTE], [100]), limits)


def test_what_waits_for_a_retry_is_not_shed() -> None:
    """Each would go where the shed go, when its time is over: none would ever be tried again."""
    with pytest.raises(DeliveryError, match="can't be shed"):
        bounded(
            TOPOLOGY + retry_topology([ROUTE], [100]), {"ns.catalog.retry.1": Shed(5, None, DEAD)}
        )
