"""Faults of a store: locked by somebody else, or on a full disk."""

from __future__ import annotations

import resource
import sqlite3
from contextlib import closing
from random import Random

from delivery.arena import API, RELAY, Arena, DidNotBite
from delivery.faults import Fault, Target
from delivery.routes import RECIPIENTS
from delivery.stores import PUBLISHER

__all__ = ["FAULTS"]


def _lock_store(arena: Arena, target: Target, random: Random) -> str:
    process = target[0]
    path = arena.config.stores.path(PUBLISHER if process == API else process)
    mark = arena.mark(process)
    with closing(sqlite3.connect(path, isolation_level=None, timeout=20)) as store:
        store.execute("BEGIN IMMEDIATE")
        arena.bites(lambda: arena.in_trouble(process, mark), f"{process} says so", 60)
        store.execute("ROLLBACK")
    arena.works_again(process, mark)
    return f"{path.name} was locked until {process} said that it can't be used"


def _full_disk(arena: Arena, target: Target, random: Random) -> str:
    process = target[0]
    if not hasattr(resource, "prlimit"):
        raise DidNotBite("this system can't limit another process's files (Linux can)")
    pid, mark = arena.cast[process].process.pid, arena.mark(process)
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))
    try:
        arena.bites(lambda: arena.in_trouble(process, mark), f"{process} says so", 60)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
    arena.works_again(process, mark)
    return f"{process} could not write a byte until it said that its store can't be used"


FAULTS = (
    Fault(
        "lock-store",
        "another process holds a store's write lock for longer than anybody waits for it",
        "the API answers 503 and the client repeats; a recipient pauses, and spends no attempt",
        _lock_store,
        ((API, RELAY), *((recipient,) for recipient in RECIPIENTS)),
        slow=True,
        ours=True,
    ),
    Fault(
        "full-disk",
        "a process can't write to any file (a quota of 0 bytes)",
        "nothing is settled until it can write again, and nothing is lost",
        _full_disk,
        tuple((process,) for process in (API, RELAY, *RECIPIENTS)),
        ours=True,
    ),
)
