"""Faults of a process: killed, or with a clock that is wrong."""

from __future__ import annotations

import re
import signal
import sys
import time
from random import Random

from delivery.arena import API, RELAY, Arena, DidNotBite
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
        try:
            arena.bites(lambda: actor.process.poll() is not None, f"{process} comes to {point}")
        finally:
            code = actor.stop()  # one that never came to its point is not left armed
            arena.restart(process)
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
)
