"""Faults of a process: killed, with a wrong clock, killed by one message, or very slow."""

from __future__ import annotations

import re
import signal
import sqlite3
import sys
import time
from contextlib import closing
from random import Random

from delivery.arena import API, RELAY, Arena, DidNotBite
from delivery.errors import DeliveryError
from delivery.faults import Fault, Target
from delivery.routes import RECIPIENTS

__all__ = ["FAULTS", "POINTS"]

_CONSUMER = (
    "consumer.applied",
    "consumer.committed",
    "consumer.settled",
    "retry.copied",
)
POINTS = {
    API: ("materials.written", "materials.committed"),
    RELAY: ("relay.confirmed", "relay.marked"),
    **dict.fromkeys(RECIPIENTS, _CONSUMER),
}
RARE = ("retry.copied",)
WRONG_BY = 600  # seconds


def _kill(arena: Arena, target: Target, random: Random) -> str:
    process = target[0]
    point = random.choice(("", *POINTS[process]))
    visit = 1 if point in RARE else random.randint(1, 20)
    actor = arena.cast[process]
    if point and arena.ours:
        actor.stop()
        actor = arena.start(process, DELIVERY_KILL_AT=f"{point}:{visit}")
        arena.bites(lambda: actor.process.poll() is not None, f"{process} comes to {point}")
        code = actor.wait(1)
    else:
        point, code = "", actor.kill()
    arena.restart(process)
    if code != -signal.SIGKILL:
        raise DidNotBite(f"{process} ended with {code}, not by SIGKILL")
    return f"exit status {code}, {f'visit {visit} of {point}' if point else 'at any moment'}"


def _clock(arena: Arena, target: Target, random: Random) -> str:
    process = target[0]
    seconds = random.choice((WRONG_BY, -WRONG_BY))
    arena.cast.stop(process)
    with arena.skewed(process, seconds):
        actor = arena.start(process, wrap=[sys.executable, "-m", "delivery.skew", str(seconds)])
        arena.ready(process)
        wrong = _ahead(actor.log(actor.begun))
        time.sleep(1)  # for some work under that clock
        actor.stop()
    arena.restart(process)
    if abs(wrong - seconds) > 5:
        raise DidNotBite(f"{process}'s log is {wrong} s ahead, not {seconds}")
    return f"{process}'s log is {wrong:+} s ahead"


def _ahead(log: str) -> int:
    """Return by how many seconds the last line of a log is ahead of the clock."""
    hours, minutes, seconds = map(int, re.findall(r"^(\d\d):(\d\d):(\d\d) ", log, re.M)[-1])
    now = time.localtime()
    ahead = (hours - now.tm_hour) * 3600 + (minutes - now.tm_min) * 60 + seconds - now.tm_sec
    return (ahead + 43_200) % 86_400 - 43_200


def _crash_handler(arena: Arena, target: Target, random: Random) -> str:
    recipient = target[0]
    arena.cast.stop(recipient)
    mark = arena.cast[recipient].mark()
    event_id = arena.journal.publish(f"killer-{arena.number()}", "a message that kills").event_id
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
    recipient, number = target[0], arena.number()
    title = f"slow {number}"
    steps = int(_steps_a_second() * 3 * arena.heartbeat)
    _make_slow(arena, recipient, title, steps)
    mark, begun = arena.cast[recipient].mark(), time.monotonic()
    try:
        event_id = arena.journal.publish(f"slow-{number}", title).event_id
        query = "SELECT 1 FROM receipt WHERE message_id = ?"
        arena.bites(lambda: arena.read(recipient, query, event_id), f"{recipient} is through", 60)
    finally:
        arena.write(recipient, "DROP TRIGGER slow")
        arena.write(recipient, "DROP VIEW long_work")
    took = time.monotonic() - begun
    if arena.said(recipient, " connection.lost", mark):
        raise DeliveryError(f"{recipient} lost its connection over a slow handler")
    if took < 2 * arena.heartbeat:
        raise DidNotBite(f"{steps} steps took {took:.1f} s only")
    return f"one handler took {took:.1f} s, heartbeat {arena.heartbeat} s; the connection held"


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


def _kill_fault(process: str) -> Fault:
    return Fault(
        f"kill-{process}",
        f"the {process} process is killed (SIGKILL), at any moment or between two durable steps",
        "after a restart nothing is missing and nothing was done twice",
        _kill,
        ((process,),),
    )


FAULTS = (
    *map(_kill_fault, (API, RELAY, *RECIPIENTS)),
    Fault(
        "clock",
        f"a process runs with a clock that is {WRONG_BY // 60} minutes ahead or behind",
        "every row is sent, nothing waits until the clocks agree",
        _clock,
        tuple((process,) for process in (API, RELAY, *RECIPIENTS)),
    ),
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
