"""A loss is put down to the broker only where a fault's known limit explains it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from delivery.arena import PROCESSES, Deleted, Skew
from delivery.campaign import Record
from delivery.chaos import not_recovered, own_losses
from delivery.faults_broker import IN_HANDS, may_be_queued
from delivery.heal import Healed, explanation, failures_in, right_times
from delivery.schedule import Planned

BEGUN, ENDED = 1000.0, 1010.0


def record(kind: str, *target: str) -> Record:
    return Record(Planned(1, kind, target, 0), target, BEGUN, ENDED, True, "")


def explained(
    fault: Record,
    *,
    confirmed: float = 0.0,
    expired: float = 0.0,
    deleted: Sequence[Deleted] = (),
    alone: bool = True,
) -> str:
    return explanation(
        "catalog",
        "e-1",
        confirmed=[confirmed],
        expired=[expired],
        records=[fault],
        deleted=deleted,
        alone=alone,
    )


@pytest.mark.parametrize(
    ("expired", "kind"),
    [(996.9, ""), (997.1, "kill-broker"), (1010.9, "kill-broker"), (1011.1, "")],
)
def test_a_killed_broker_explains_what_expired_just_before(expired: float, kind: str) -> None:
    assert explained(record("kill-broker", *PROCESSES), expired=expired) == kind


def test_a_killed_broker_does_not_explain_what_waited_in_a_queue() -> None:
    """Confirmed is confirmed: that would be our own loss."""
    assert explained(record("kill-broker", *PROCESSES), confirmed=1005.0) == ""


def test_a_refusing_queue_explains_its_own_recipients_loss_only() -> None:
    assert explained(record("refuse", "relay", "catalog"), expired=1005.0) == "refuse"
    assert explained(record("refuse", "relay", "audit"), expired=1005.0) == ""


@pytest.mark.parametrize(
    ("confirmed", "kind"),
    [(959.0, ""), (961.0, "delete-queue"), (1010.9, "delete-queue"), (1011.1, "")],
)
def test_a_deleted_queue_explains_what_came_until_it_was_there_again(
    confirmed: float, kind: str
) -> None:
    none: frozenset[str] = frozenset()
    deleted, other = Deleted("catalog", none, 960.0, ENDED), Deleted("audit", none, 960.0, ENDED)
    assert explained(record("stall", "audit"), confirmed=confirmed, deleted=[deleted]) == kind
    assert explained(record("stall", "audit"), confirmed=confirmed, deleted=[other]) == ""


def test_a_deleted_queue_explains_what_came_back_to_it_from_a_retry() -> None:
    deleted = Deleted("catalog", frozenset(), 960.0, ENDED)
    fault = record("stall", "audit")
    assert explained(fault, confirmed=900.0, expired=961.0, deleted=[deleted]) == "delete-queue"
    assert explained(fault, confirmed=900.0, expired=959.0, deleted=[deleted]) == ""


@pytest.mark.parametrize(("event", "kind"), [("e-1", "delete-queue"), ("e-2", "")])
def test_a_deleted_queue_explains_what_was_not_settled_however_old(event: str, kind: str) -> None:
    """A message that failed again and again goes to the end of a long queue each time."""
    deleted = Deleted("catalog", frozenset({event}), 960.0, ENDED)
    assert explained(record("stall", "audit"), confirmed=100.0, deleted=[deleted]) == kind


@pytest.mark.parametrize(
    ("event", "confirmed", "kind"),
    [
        ("e-1", 959.9, "delete-queue"),
        ("e-1", 1011.1, ""),  # the queue was there again
        ("e-2", 959.9, ""),  # it was known to be settled, or lost
    ],
)
def test_a_deleted_queue_explains_what_was_confirmed_and_not_yet_marked(
    event: str, confirmed: float, kind: str
) -> None:
    """The relay looks at its clock, and commits a moment later: two runs of 500 faults met that."""
    deleted = Deleted("catalog", frozenset(), 960.0, ENDED, frozenset({event}))
    assert explained(record("stall", "audit"), confirmed=confirmed, deleted=[deleted]) == kind


@pytest.mark.parametrize(("confirmed", "kind"), [(998.9, ""), (1005.0, "unbind"), (1011.1, "")])
def test_unbound_queues_explain_what_was_confirmed_meanwhile(confirmed: float, kind: str) -> None:
    assert explained(record("unbind", "relay", "catalog", "audit"), confirmed=confirmed) == kind


def test_unbound_queues_do_not_explain_what_reached_no_queue_at_all() -> None:
    """The broker returned it: a relay that calls such a row sent has lost it by itself."""
    unbound = record("unbind", "relay", "catalog", "audit")
    assert explained(unbound, confirmed=1005.0, alone=False) == ""
    killed = record("kill-broker", *PROCESSES)
    assert explained(killed, expired=1005.0, alone=False) == "kill-broker"


@pytest.mark.parametrize("kind", ["kill-relay", "stall", "restart-broker", "lock-store", "alarm"])
def test_no_other_fault_explains_a_loss(kind: str) -> None:
    assert explained(record(kind, *PROCESSES), confirmed=1005.0, expired=1005.0) == ""


def test_failures_are_read_from_a_log_also_past_midnight() -> None:
    midnight = time.mktime((2026, 3, 4, 0, 0, 0, 0, 0, -1))
    log = (
        "23:59:58 info delivery.settled queue=c message_id=e-1 effect=failed error=no\n"
        "23:59:59 info delivery.settled queue=c message_id=e-2 effect=applied\n"
        "00:00:01 info delivery.settled queue=c message_id=e-1 effect=failed error=no\n"
    )
    assert failures_in(log, midnight - 60) == {"e-1": [midnight - 2, midnight + 1]}


@pytest.mark.parametrize(
    ("said", "process", "times"),
    [
        (1605.0, "relay", [1605.0, 1005.0]),  # 600 s ahead, from 1000 to 1010
        (1605.0, "audit", [1605.0]),  # another process: its clock was right
        (1598.9, "relay", [1598.9]),  # before and after that, its clock was right
        (1611.1, "relay", [1611.1]),
    ],
)
def test_a_wrong_clock_says_two_times_that_may_be_right(
    said: float, process: str, times: list[float]
) -> None:
    skews = [Skew("relay", 600.0, BEGUN, ENDED)]
    assert [*right_times(said, process, skews)] == pytest.approx(times)


def test_a_loss_that_nothing_explains_is_named_though_it_is_healed() -> None:
    healed = [Healed("audit", "e-1", "unbind"), Healed("catalog", "e-2", "")]
    assert [*own_losses(healed)] == ["catalog lost e-2 by our own code"]


def test_what_did_not_work_again_after_a_fault_is_named() -> None:
    well, ill = record("stall", "audit"), replace(record("stall", "audit"), error="not ready")
    assert [*not_recovered([well, ill])] == ["stall (fault 1): not ready"]


def test_what_was_settled_long_after_it_is_not_in_the_queue_any_more() -> None:
    """An ack before the effect lost it: the queue that is deleted later is no excuse."""
    newest = 2 * IN_HANDS
    sent = {
        "lost": (newest - IN_HANDS, 1),
        "sent twice": (newest - IN_HANDS - 1, 2),
        "failed": (1, 1),
        "queued": (newest - IN_HANDS + 1, 1),
        "settled": (newest, 1),
        "settled later": (newest + 7, 2),  # its second copy may have overtaken others
        "by a fault": (newest + 9, 1),
    }
    settled = {"settled", "settled later", "by a fault", "a stranger"}
    found = may_be_queued(sent, settled, failed={"failed"}, out_of_turn={"by a fault"})
    assert found == {"sent twice", "failed", "queued"}


def test_before_anything_was_settled_all_may_be_in_the_queue() -> None:
    sent = {"first": (1, 1), "again": (2, 3)}
    assert may_be_queued(sent, set(), failed=set(), out_of_turn=set()) == {"first", "again"}
