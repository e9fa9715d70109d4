"""Lint knows which arguments a kind of queue has, and what the broker makes of the others."""

from __future__ import annotations

from typing import Literal

import pytest

from delivery.kinds import kind_mistakes
from delivery.lint import lint
from delivery.topology import Queue, Topology

DYING = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "other"}
SAFE = {**DYING, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def mistakes(kind: Literal["classic", "quorum"], **arguments: object) -> str:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    limit = {"x-delivery-limit": 20} if kind == "quorum" and "x-delivery-limit" not in named else {}
    if limit and "x-dead-letter-exchange" not in named:
        limit = {"x-delivery-limit": 1_000_000}
    return "\n".join(what for what, _ in kind_mistakes(Queue("q", {**limit, **named}, kind)))


def test_safe_arguments_are_no_mistake() -> None:
    """A quorum queue that hands on at-least-once; a plain classic one."""
    assert mistakes("quorum", **SAFE) == ""
    assert mistakes("classic", x_max_priority=5) == ""


@pytest.mark.parametrize("overflow", [None, "drop-head"])
def test_at_least_once_without_reject_publish_is_found(overflow: str | None) -> None:
    """The broker takes it, and falls back to at-most-once."""
    said = {**SAFE, "x-overflow": overflow}
    if overflow is None:
        del said["x-overflow"]
    assert "falls back to at-most-once" in mistakes("quorum", **said)


def test_at_least_once_without_a_target_is_found() -> None:
    """It does nothing."""
    found = mistakes(
        "quorum", **{"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    )
    assert "without a dead-letter exchange does nothing" in found


def test_dead_lettering_that_nobody_confirms_is_found() -> None:
    """The default is at-most-once."""
    assert "nobody confirms what dies there" in mistakes("quorum", **DYING)


def test_a_kind_of_overflow_that_a_quorum_queue_does_not_know_is_found() -> None:
    """The broker takes it, and drops the oldest message instead."""
    assert "reject-publish-dlx" in mistakes("quorum", x_overflow="reject-publish-dlx")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("quorum", "x-max-priority"),
        ("quorum", "x-queue-mode"),
        ("classic", "x-delivery-limit"),
        ("classic", "x-dead-letter-strategy"),
        ("classic", "x-delayed-retry-type"),
    ],
)
def test_an_argument_of_the_other_kind_is_found(
    kind: Literal["classic", "quorum"], name: str
) -> None:
    """tests/broker/test_quorum.py sees the broker refuse them."""
    assert f"a {kind} queue has no {name}" in mistakes(kind, **{name: 5})


def test_a_limit_that_is_not_said_is_found() -> None:
    """It differs by version."""
    found = [what for what, _ in kind_mistakes(Queue("q", kind="quorum"))]
    assert found == ["its delivery limit depends on the version: none before RabbitMQ 4.0, then 20"]


def test_a_limit_without_a_place_for_what_exceeds_it_is_found() -> None:
    """The broker drops it."""
    assert "what exceeds it is gone" in mistakes("quorum", **{"x-delivery-limit": 20})


def test_lint_says_it_with_the_queue_and_the_way_out() -> None:
    """The mistakes of a kind are a part of the whole."""
    topology = Topology(queues=(Queue("q", {"x-delivery-limit": 3}),))
    (problem,) = lint(topology)
    assert str(problem) == (
        "queue 'q': a classic queue has no x-delivery-limit: the broker refuses it; leave it out"
    )
