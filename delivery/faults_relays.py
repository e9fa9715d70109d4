"""Faults of relays that share one PostgreSQL outbox: one of three is killed."""

from __future__ import annotations

import signal
from random import Random

from delivery.arena import Arena, DidNotBite
from delivery.faults import Fault, Ground, Target

__all__ = ["FAULTS", "RELAYS"]

RELAYS = ("relay-1", "relay-2", "relay-3")
POINTS = ("relay.confirmed", "relay.marked")
PROGRESS = 10  # events that each recipient settles: two batches


def _kill_one(arena: Arena, target: Target, random: Random) -> str:
    relay, point = target[0], random.choice(("", *POINTS))
    visit = random.randint(1, 5)
    if point:
        arena.cast.stop(relay)
        actor = arena.start(relay, DELIVERY_KILL_AT=f"{point}:{visit}")
        try:
            arena.bites(lambda: actor.process.poll() is not None, f"{relay} comes to {point}")
        finally:
            code = actor.stop()  # one that never came to its point is not left armed
    else:
        code = arena.cast[relay].kill()
    before = arena.settled()
    arena.recovers(
        lambda: all(n >= before[each] + PROGRESS for each, n in arena.settled().items()),
        f"the other two go on without {relay}",
    )
    arena.restart(relay)
    if code != -signal.SIGKILL:
        raise DidNotBite(f"{relay} ended with {code}, not by SIGKILL")
    moment = f"visit {visit} of {point}" if point else "at any moment"
    return f"{relay}: exit status {code}, {moment}; the other two went on, and it came back"


FAULTS = (
    Fault(
        "kill-one-relay-of-three",
        "one of three relays on one PostgreSQL outbox is killed (SIGKILL), at any moment or between"
        " two durable steps",
        "what it had taken is free at once, the other two send it; every event goes out, and what"
        " goes out twice is recognised",
        _kill_one,
        tuple((RELAYS[n], *RELAYS[:n], *RELAYS[n + 1 :]) for n in range(3)),  # one at a time
        ours=True,
        ground=Ground.RELAYS,
    ),
)
