"""Faults of the line between a process and the broker: cut at the worst moment, or silent."""

from __future__ import annotations

import time
from random import Random

from delivery.arena import RELAY, Arena
from delivery.faults import Fault, Target, await_lost, back_again, marks
from delivery.routes import RECIPIENTS
from delivery.wiretap import ACK, DELIVER, PUBLISH, Trap

__all__ = ["FAULTS"]


def _cut_before_confirm(arena: Arena, target: Target, random: Random) -> str:
    return _cut(arena, target, Trap(ACK, towards_broker=False), "the broker's confirm")


def _cut_before_ack(arena: Arena, target: Target, random: Random) -> str:
    return _cut(arena, target, Trap(ACK, towards_broker=True), "the recipient's ack")


def _cut_mid_frame(arena: Arena, target: Target, random: Random) -> str:
    publishes = target[0] == RELAY
    trap = Trap(PUBLISH if publishes else DELIVER, towards_broker=publishes, half=True)
    return _cut(arena, target, trap, "the second half of a frame")


def _cut(arena: Arena, target: Target, trap: Trap, what: str) -> str:
    tap, since = arena.taps[target[0]], marks(arena, target)
    tap.set(trap)
    try:
        arena.bites(trap.sprung.is_set, f"{what} comes by")
    finally:
        tap.disarm()
    await_lost(arena, since)
    back_again(arena, since)
    return f"{what} was dropped ({trap.dropped} bytes), then {target[0]}'s line was cut"


def _stall(arena: Arena, target: Target, random: Random) -> str:
    process, since = target[0], marks(arena, target)
    begun = time.monotonic()
    with arena.taps[process].silence():
        await_lost(arena, since)
        silent = time.monotonic() - begun
    back_again(arena, since)
    return f"no byte on {process}'s line for {silent:.1f} s; it gave the connection up"


FAULTS = (
    Fault(
        "cut-before-confirm",
        "the broker has the message; its confirm is dropped and the relay's line is cut",
        "UNKNOWN: the row stays pending and is sent again; the copy is recognised",
        _cut_before_confirm,
        ((RELAY,),),
    ),
    Fault(
        "cut-before-ack",
        "the effect is committed; the ack is dropped and the recipient's line is cut",
        "the message is delivered again and recognised by its receipt",
        _cut_before_ack,
        tuple((recipient,) for recipient in RECIPIENTS),
    ),
    Fault(
        "cut-mid-frame",
        "a line is cut in the middle of a frame",
        "the process reconnects; what it had in flight is sent or delivered again",
        _cut_mid_frame,
        tuple((process,) for process in (RELAY, *RECIPIENTS)),
    ),
    Fault(
        "stall",
        "no byte comes through in either direction, for longer than the heartbeat",
        "the process notices, gives the connection up and opens another one",
        _stall,
        tuple((process,) for process in (RELAY, *RECIPIENTS)),
        slow=True,
    ),
)
