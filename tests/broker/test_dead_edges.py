"""What park and retry write on a copy, and that it is safe before they say so."""

from __future__ import annotations

import time

import pytest
from pika import BasicProperties
from support.world import World

from delivery.codec import ContractError
from delivery.confirms import NotConfirmed, Outcome
from delivery.consumer import FailurePolicy, Settlement
from delivery.dead import dead_queue, park
from delivery.errors import PermanentError
from delivery.handling import Delivery
from delivery.pipeline import ConfirmedChannel
from delivery.points import arm
from delivery.retry import ATTEMPT_HEADER, retry_later, retry_queue

REASON, ERROR, TRACE, PARKED = (
    "x-delivery-reason",
    "x-delivery-error",
    "x-delivery-traceback",
    "x-delivery-parked-at",
)


def delivery(world: World, attempt: int | None = None) -> Delivery:
    headers = {} if attempt is None else {ATTEMPT_HEADER: attempt}
    properties = BasicProperties(message_id="id-1", headers=headers)
    return Delivery(queue=world.audit.queue, body=b"body", properties=properties)


def parked(world: World, error: Exception, attempt: int | None = None) -> dict[str, object]:
    """Park a delivery for *error* at 1234.9 s; return the headers of its copy."""
    with ConfirmedChannel(world.settings) as channel:
        policy = park(channel, world.audit, clock=lambda: 1234.9)
        assert policy(delivery(world, attempt), error) is Settlement.ELSEWHERE
    ((headers, body),) = world.dead(world.audit)
    assert body == b"body"
    return headers


def test_a_parked_copy_says_why_when_and_after_how_many_attempts(world: World) -> None:
    """All that an operator sees of it, in its headers."""
    world.declare(routes=[world.audit])

    headers = parked(world, RuntimeError("out of order"), attempt=3)

    assert headers.pop(TRACE) == "RuntimeError: out of order\n"
    assert headers == {
        REASON: "exhausted",
        ERROR: "out of order",
        PARKED: 1234,
        ATTEMPT_HEADER: 3,
    }


def test_an_error_without_words_is_named(world: World) -> None:
    """An empty error header would say nothing."""
    world.declare(routes=[world.audit])

    assert parked(world, KeyError())[ERROR] == "KeyError()"


def test_a_parked_copy_carries_the_clock_of_this_machine(world: World) -> None:
    """Whole Unix seconds, without anybody passing a clock."""
    world.declare(routes=[world.audit])

    begun = int(time.time())
    with ConfirmedChannel(world.settings) as channel:
        park(channel, world.audit)(delivery(world), RuntimeError())

    ((headers, _),) = world.dead(world.audit)
    assert begun <= headers[PARKED] <= time.time()


def fail(depth: int) -> None:
    if depth == 0:
        raise RuntimeError("deep")
    fail(depth - 1) if depth > 2 else nearer(depth)


def nearer(depth: int) -> None:
    fail(depth - 1)


def test_the_traceback_shows_the_frames_nearest_to_the_failure(world: World) -> None:
    """The last three, where it happened: not where the handler was called."""
    world.declare(routes=[world.audit])
    with pytest.raises(RuntimeError) as caught:
        fail(6)

    trace = parked(world, caught.value)[TRACE]

    assert isinstance(trace, str)
    assert trace.startswith('Traceback (most recent call last):\n  File "')
    frames = [line.rpartition(" in ")[2] for line in trace.splitlines() if " in " in line]
    assert frames == ["fail", "nearer", "fail"]
    assert trace.endswith("RuntimeError: deep\n")


def test_a_long_traceback_keeps_its_first_four_thousand_characters(world: World) -> None:
    """It must fit into a frame, and says how much is not there."""
    world.declare(routes=[world.audit])

    trace = parked(world, RuntimeError("x" * 4_000))[TRACE]

    whole = "RuntimeError: " + "x" * 4_000 + "\n"
    assert trace == f"{whole[:4_000]} ... ({len(whole) - 4_000} more characters)"


def die() -> None:
    raise KeyboardInterrupt


def test_a_parked_copy_is_safe_before_its_original_may_go(world: World) -> None:
    """A process that dies in between leaves two, not none."""
    world.declare(routes=[world.audit])

    arm("park.copied", die)
    with ConfirmedChannel(world.settings) as channel, pytest.raises(KeyboardInterrupt):
        park(channel, world.audit)(delivery(world), RuntimeError())

    assert world.ready(dead_queue(world.audit)) == 1


def test_a_copy_to_be_retried_is_safe_before_its_original_may_go(world: World) -> None:
    """A process that dies in between leaves two, not none."""
    world.declare(60_000, routes=[world.audit])

    arm("retry.copied", die)
    with ConfirmedChannel(world.settings) as channel, pytest.raises(KeyboardInterrupt):
        retry_later(channel, world.audit, [60_000], exhausted=never)(
            delivery(world), RuntimeError()
        )

    assert world.ready(retry_queue(world.audit, 1)) == 1


def never(_: Delivery, error: Exception) -> Settlement:
    raise AssertionError from error


def test_each_attempt_waits_in_its_own_queue_and_is_counted_on(world: World) -> None:
    """The first failure waits in retry.1 as attempt 2, the second in retry.2 as attempt 3."""
    world.declare(60_000, 120_000, routes=[world.audit])

    with ConfirmedChannel(world.settings) as channel:
        policy = retry_later(channel, world.audit, [60_000, 120_000], exhausted=never)
        for attempt in (None, 2):
            answer = policy(delivery(world, attempt), RuntimeError())
            assert answer is Settlement.ELSEWHERE

    for attempt in (1, 2):
        ((properties, body),) = world.take(retry_queue(world.audit, attempt))
        assert body == b"body"
        assert properties.message_id == "id-1"
        assert properties.headers == {ATTEMPT_HEADER: attempt + 1}


@pytest.mark.parametrize(
    ("attempt", "error"),
    [(3, RuntimeError()), (1, PermanentError("no")), (1, ContractError("empty", "nothing"))],
)
def test_what_cannot_succeed_later_is_handed_over_as_it_came(
    world: World, attempt: int, error: Exception
) -> None:
    """After the last delay, or at once: the next policy gets both, and decides."""
    world.declare(60_000, 120_000, routes=[world.audit])
    asked: list[tuple[Delivery, Exception]] = []

    def exhausted(given: Delivery, why: Exception) -> Settlement:
        asked.append((given, why))
        return Settlement.ONLY_HERE

    failed = delivery(world, attempt)
    with ConfirmedChannel(world.settings) as channel:
        policy: FailurePolicy = retry_later(
            channel, world.audit, [60_000, 120_000], exhausted=exhausted
        )
        assert policy(failed, error) is Settlement.ONLY_HERE

    assert asked == [(failed, error)]
    assert [world.ready(retry_queue(world.audit, n)) for n in (1, 2)] == [0, 0]


def test_a_refused_copy_is_no_copy(world: World) -> None:
    """Park tells it by the outcome, whatever the reason was."""
    world.declare(routes=[world.audit])
    arguments = {"x-max-length": 0, "x-overflow": "reject-publish"}
    world.channel.queue_delete(dead_queue(world.audit))
    world.channel.queue_declare(dead_queue(world.audit), durable=True, arguments=arguments)

    with ConfirmedChannel(world.settings) as channel:
        policy = park(channel, world.audit)
        with pytest.raises(NotConfirmed) as refused:
            policy(delivery(world), RuntimeError())

    assert refused.value.answer.outcome is Outcome.REFUSED
