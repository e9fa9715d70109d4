"""Work that lost its broker is taken up again, after pauses that spare the broker."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, StreamLostError

from delivery.confirms import Answer, NotConfirmed, Outcome
from delivery.connection import AccessRefused, BrokerSettings, BrokerUnavailable, connect
from delivery.errors import DeliveryError, TemporaryError
from delivery.reader import ConsumingEnded
from delivery.recovery import Backoff, keep_connected
from delivery.stopping import Stop
from delivery.store import StoreUnavailable

QUICK = Backoff(first=0.001, most=0.004)


class Work:
    """Runs through *ends*: an error is raised, None returns, a number is seconds of good work.

    After the last one it returns.
    """

    def __init__(self, *ends: BaseException | float | None) -> None:
        self._ends = list(ends)
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1
        end = self._ends.pop(0) if self._ends else None
        if isinstance(end, float):
            time.sleep(end)
            raise BrokerUnavailable("lost after a good while")
        if end is not None:
            raise end


def test_pauses_double_up_to_the_longest_and_are_shortened_by_half_at_most() -> None:
    """Growing, capped, jittered; also after thousands of failures."""
    backoff = Backoff(first=0.5, most=15.0)

    for failures in (1, 2, 3, 4, 5, 6, 7, 40, 5_000):
        full = min(15.0, 0.5 * 2 ** min(failures - 1, 100))
        found = [backoff.pause(failures) for _ in range(200)]
        assert full / 2 <= min(found) <= max(found) <= full
        assert max(found) - min(found) > full / 8  # 200 draws: they do differ


@pytest.mark.parametrize(
    "error",
    [
        TemporaryError("store"),
        BrokerUnavailable("broker"),
        AMQPConnectionError(),
        StreamLostError("eof"),
    ],
)
def test_a_failure_that_may_pass_is_tried_again(error: Exception) -> None:
    """The store, the broker, the connection: nobody's message is at fault."""
    work = Work(error, error, None)

    keep_connected(work, stop=Stop(), backoff=QUICK)

    assert work.runs == 3


@pytest.mark.parametrize("error", [ValueError("bug"), DeliveryError("final"), KeyboardInterrupt()])
def test_every_other_error_is_raised_at_once(error: BaseException) -> None:
    """Pausing would only hide it."""
    work = Work(error)

    with pytest.raises(type(error)):
        keep_connected(work, stop=Stop(), backoff=QUICK)

    assert work.runs == 1


def test_work_that_returns_is_not_run_again() -> None:
    """It has said that it is done."""
    work = Work(None)

    keep_connected(work, stop=Stop(), backoff=QUICK)

    assert work.runs == 1


def failures_logged(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.failures for record in caplog.records if record.message == "connection.lost"]  # type: ignore[attr-defined]


def test_failures_in_a_row_are_counted_and_a_stable_run_starts_the_count_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a run of stable_after seconds the next pause is the first one again."""
    caplog.set_level(logging.WARNING, "delivery.recovery")
    lost = BrokerUnavailable("lost")
    work = Work(lost, lost, lost, 0.05, lost, None)

    keep_connected(work, stop=Stop(), backoff=QUICK, stable_after=0.04)

    assert failures_logged(caplog) == [1, 2, 3, 1, 2]


def test_a_run_shorter_than_stable_does_not_start_the_count_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker that accepts and drops every connection is not hammered."""
    caplog.set_level(logging.WARNING, "delivery.recovery")
    work = Work(BrokerUnavailable("lost"), 0.01, 0.01, None)

    keep_connected(work, stop=Stop(), backoff=QUICK, stable_after=5.0)

    assert failures_logged(caplog) == [1, 2, 3]


def test_the_log_says_what_was_lost_though_pikas_errors_have_no_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """``str(AMQPConnectionError())`` is empty: a log with it alone would say nothing."""
    caplog.set_level(logging.WARNING, "delivery.recovery")

    keep_connected(Work(AMQPConnectionError(), None), stop=Stop(), backoff=QUICK)

    (record,) = caplog.records
    assert "AMQPConnectionError" in record.error  # type: ignore[attr-defined]
    assert record.pause <= QUICK.first  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (BrokerUnavailable("gone"), "connection.lost"),
        (StreamLostError("reset"), "connection.lost"),
        (ChannelClosedByBroker(404, "NOT_FOUND"), "channel.closed"),
        (ChannelClosedByBroker(403, "ACCESS_REFUSED"), "access.refused"),
        (AccessRefused("wrong password"), "access.refused"),
        (ConsumingEnded("queue deleted"), "consuming.ended"),
        (StoreUnavailable("locked"), "store.unavailable"),
        (NotConfirmed(Answer(Outcome.RETURNED), "q"), "copy.not_confirmed"),
        (TemporaryError("the index is away"), "work.paused"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_a_pause_is_logged_under_what_it_is_for(
    caplog: pytest.LogCaptureFixture, error: Exception, event: str
) -> None:
    """A locked store is no lost connection: whoever reads the log looks in the right place."""
    caplog.set_level(logging.WARNING, "delivery.recovery")

    keep_connected(Work(error, None), stop=Stop(), backoff=QUICK)

    assert [record.message for record in caplog.records] == [event]


def test_a_stop_ends_the_pause_at_once() -> None:
    """A service that waits for its broker still stops within moments."""
    stop = Stop()
    failed = threading.Event()

    def work() -> None:
        failed.set()
        raise BrokerUnavailable("lost")

    thread = threading.Thread(
        target=keep_connected, args=(work,), kwargs={"stop": stop, "backoff": Backoff(60, 60)}
    )
    thread.start()
    assert failed.wait(5)
    begun = time.monotonic()
    stop.request()
    thread.join(5)

    assert not thread.is_alive()
    assert time.monotonic() - begun < 1.0


def test_a_stop_that_came_before_starts_nothing() -> None:
    """Stopping wins over trying again."""
    stop = Stop()
    stop.request()
    work = Work(None)

    keep_connected(work, stop=stop, backoff=QUICK)

    assert work.runs == 0


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid:5672"])
def test_a_broker_that_is_not_there_is_unavailable_and_named(host: str) -> None:
    """Refused or not resolved: one error, with the address and without the password."""
    settings = BrokerSettings(url=f"amqp://user:secret@{host}/", connect_timeout=2.0)

    with pytest.raises(BrokerUnavailable) as unavailable:
        connect(settings)

    assert host in str(unavailable.value)
    assert "secret" not in str(unavailable.value)
