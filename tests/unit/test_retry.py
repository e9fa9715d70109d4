"""The attempt is our own count; a header that is no count does not confuse it."""

from __future__ import annotations

import pytest
from pika import BasicProperties

from delivery.handling import Delivery
from delivery.retry import ATTEMPT_HEADER, attempt_of, retry_topology
from delivery.routes import Route


def attempt(headers: dict[str, object] | None) -> int:
    properties = BasicProperties(headers=headers)
    return attempt_of(Delivery(queue="q", body=b"", properties=properties))


def test_a_message_without_the_header_is_at_its_first_attempt() -> None:
    """So is one without any headers."""
    assert attempt(None) == attempt({}) == attempt({"other": 5}) == 1


@pytest.mark.parametrize("count", [1, 2, 17, 2**40])
def test_the_header_counts(count: int) -> None:
    """What we wrote is what we read."""
    assert attempt({ATTEMPT_HEADER: count}) == count


@pytest.mark.parametrize("odd", [0, -1, "3", "x", 2.0, True, None, [2], {"n": 2}, b"2"])
def test_a_header_that_is_no_count_is_ignored(odd: object) -> None:
    """A stranger's header cannot skip the attempts, nor crash the consumer."""
    assert attempt({ATTEMPT_HEADER: odd}) == 1


def test_death_headers_do_not_count() -> None:
    """x-death starts again with every copy, so nothing is read from it."""
    assert attempt({"x-death": [{"count": 9, "queue": "q", "reason": "expired"}]}) == 1


def test_there_is_one_queue_for_each_delay_and_it_leads_back_to_its_recipient_only() -> None:
    """Mixed delays in one queue would block each other; the exchange would reach everybody."""
    topology = retry_topology([Route("catalog", "ns"), Route("audit", "ns")], [500, 5_000])

    assert {queue.name: dict(queue.arguments) for queue in topology.queues} == {
        f"ns.{recipient}.retry.{n}": {
            "x-message-ttl": delay,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"ns.{recipient}",
        }
        for recipient in ("catalog", "audit")
        for n, delay in ((1, 500), (2, 5_000))
    }
    assert not topology.exchanges
    assert not topology.bindings
