"""Inject the faults of a schedule, as many at a time as do not get in each other's way."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from random import Random

from pika.exceptions import AMQPError

from delivery.arena import PROCESSES, Arena, DidNotBite
from delivery.connection import describe
from delivery.errors import DeliveryError
from delivery.faults import Target
from delivery.schedule import Planned

__all__ = ["Record", "inject_all"]


@dataclass(frozen=True)
class Record:
    """What became of one fault; times are Unix seconds.

    *bit* is true if there is evidence of its effect. *error* is set if something did not recover.
    """

    planned: Planned
    target: Target
    begun: float
    ended: float
    bit: bool
    evidence: str
    error: str = ""


def inject_all(
    arena: Arena, planned: Sequence[Planned], *, note: Callable[[Record], None]
) -> list[Record]:
    """Inject every fault and return the records, in the order of their ends.

    A fault waits for earlier ones that hit the same process; one that hits all of them runs alone.
    Ends early, with what there is, if the run is interrupted.
    """
    waiting, records = list(planned), list[Record]()
    running: dict[Future[Record], Planned] = {}
    with ThreadPoolExecutor(8, thread_name_prefix="fault") as pool:
        while (waiting and not arena.stop) or running:
            for each in [] if arena.stop else [*_free(waiting, running.values())]:
                waiting.remove(each)
                running[pool.submit(_inject, arena, each)] = each
            done, _ = wait(running, timeout=0.1, return_when=FIRST_COMPLETED)
            for future in done:
                del running[future]
                records.append(future.result())
                note(records[-1])
    return records


def _free(waiting: Sequence[Planned], running: Collection[Planned]) -> Iterator[Planned]:
    """Pick what can begin now, without overtaking an earlier fault on the same process."""
    taken = {process for each in running for process in each.target}
    busy = bool(running)
    for each in waiting[: 2 * len(PROCESSES)]:
        alone = set(each.target) == set(PROCESSES)
        if alone:
            if not busy:
                yield each
            return
        if not taken & set(each.target) and not taken >= set(PROCESSES):
            yield each
            busy = True
        taken |= set(each.target)


def _inject(arena: Arena, planned: Planned) -> Record:
    target = tuple(arena.publisher if process == "relay" else process for process in planned.target)
    begun, error = time.time(), ""
    try:
        evidence = planned.fault.inject(arena, target, Random(planned.seed))  # noqa: S311
        bit = True
    except DidNotBite as reason:
        bit, evidence = False, str(reason)
    except (DeliveryError, AMQPError, OSError, sqlite3.Error) as reason:
        bit, evidence = False, ""
        error = f"{type(reason).__name__}: {describe(reason)}"
    error = "; ".join(filter(None, [error, *_revive(arena, target)]))
    return Record(planned, target, begun, time.time(), bit, evidence, error)


def _revive(arena: Arena, target: Target) -> Iterator[str]:
    """Start what does not run after a fault; none should need it."""
    for process in target:
        if process in arena.commands and arena.cast[process].process.poll() is not None:
            code = arena.cast[process].process.returncode
            yield f"{process} was not running (exit status {code})"
            arena.restart(process)
