"""Faults of a handler: one message kills its process each time, or takes very long."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing
from random import Random

from delivery.arena import Arena, DidNotBite
from delivery.errors import DeliveryError
from delivery.faults import Fault, Target
from delivery.routes import RECIPIENTS
from delivery.traffic import KILLER

__all__ = ["FAULTS"]


def _crash_handler(arena: Arena, target: Target, random: Random) -> str:
    recipient = target[0]
    arena.cast.stop(recipient)
    mark = arena.cast[recipient].mark()
    event_id = arena.journal.publish(f"killer-{arena.number()}", f"{KILLER} message").event_id
    deaths = 0
    actor = arena.start(recipient, DELIVERY_KILL_AT=f"consumer.handled@{event_id}")

    def parked() -> bool:
        nonlocal actor, deaths
        if actor.process.poll() is not None:
            deaths += actor.wait(1) == -signal.SIGKILL
            if deaths > 10:
                raise DeliveryError(f"{recipient} was killed {deaths} times by one message")
            actor = arena.start(recipient, DELIVERY_KILL_AT=f"consumer.handled@{event_id}")
        return arena.said(recipient, "handling was begun", mark)

    try:
        arena.bites(parked, "the message that kills is given up", seconds=45)
    finally:
        arena.cast.stop(recipient)
        arena.restart(recipient)
    return f"one message killed {recipient} {deaths} times; then it was parked"


def _slow_handler(arena: Arena, target: Target, random: Random) -> str:
    recipient, enough = target[0], 2.0 * arena.heartbeat
    mark, steps, took = arena.cast[recipient].mark(), _steps_a_second() * 3 * arena.heartbeat, 0.0
    for _ in range(3):  # a machine that was busy when it was measured is faster than it seemed
        took = _handle_slowly(arena, recipient, int(steps))
        if arena.said(recipient, " connection.lost", mark):
            raise DeliveryError(f"{recipient} lost its connection over a slow handler")
        if took >= enough:
            return (
                f"one handler took {took:.1f} s, heartbeat {arena.heartbeat} s; the connection held"
            )
        steps *= 1.5 * enough / took
    raise DidNotBite(f"{steps:.0f} steps took {took:.1f} s only")


def _handle_slowly(arena: Arena, recipient: str, steps: int) -> float:
    """Let one event's handling take so many steps; return how many seconds they took."""
    title = f"slow {arena.number()}"
    _make_slow(arena, recipient, title, steps)
    begun = time.monotonic()
    try:
        event_id = arena.journal.publish(title.replace(" ", "-"), title).event_id
        query = "SELECT 1 FROM receipt WHERE message_id = ?"
        arena.bites(lambda: arena.read(recipient, query, event_id), f"{recipient} is through", 60)
    finally:
        arena.write(recipient, "DROP TRIGGER slow")
        arena.write(recipient, "DROP VIEW long_work")
    return time.monotonic() - begun


def _make_slow(arena: Arena, recipient: str, title: str, steps: int) -> None:
    arena.write(recipient, f"CREATE VIEW long_work AS {_counting(steps)}")
    arena.write(
        recipient,
        f"CREATE TRIGGER slow BEFORE INSERT ON {recipient} WHEN NEW.title = '{title}'"  # noqa: S608
        " BEGIN SELECT n FROM long_work; END",
    )


def _counting(steps: int) -> str:
    """Return a query that keeps SQLite busy for so many steps."""
    numbers = f"SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {steps}"  # noqa: S608
    return f"WITH RECURSIVE c(i) AS ({numbers}) SELECT max(i) AS n FROM c"  # noqa: S608


def _steps_a_second(steps: int = 300_000) -> float:
    """Measure how fast SQLite counts here when nobody disturbs it: the best of five."""
    best = 0.0
    with closing(sqlite3.connect(":memory:")) as store:
        for _ in range(5):
            begun = time.perf_counter()
            store.execute(_counting(steps)).fetchone()
            best = max(best, steps / (time.perf_counter() - begun))
    return best


FAULTS = (
    Fault(
        "crash-handler",
        "handling one message kills the process, each time",
        "after three deaths the message is dead (killer); the others go on",
        _crash_handler,
        tuple((recipient,) for recipient in RECIPIENTS),
        slow=True,
        ours=True,
    ),
    Fault(
        "slow-handler",
        "one handler takes longer than two heartbeats",
        "the connection lives on, the effect happens once",
        _slow_handler,
        tuple((recipient,) for recipient in RECIPIENTS),
        slow=True,
        ours=True,
    ),
)
