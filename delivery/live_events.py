"""Push snapshots and news to a browser as server-sent events, until either side leaves."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from typing import Any

from delivery.live import Onlooker

__all__ = ["events"]

PERIOD = 0.25  # seconds between two updates at most
ALIVE = 1.0  # seconds after which one is sent though nothing changed: the ages did
AGEING = ("at", "stores", "broker", "management")  # what changes though nothing happened


async def events(
    lookout: Onlooker,
    last_id: str,
    *,
    more: Callable[[], Mapping[str, Any]],
    stopping: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """Yield events in the wire format (WHATWG HTML, 9.2.6), at most four a second.

    Each holds the whole snapshot with *more* in it, and the lines that the viewer does not have:
    *last_id* is the id of the last event that it saw, empty if none.
    """
    instance, _, number = last_id.partition("-")
    known = int(number) if instance == lookout.instance and number.isdecimal() else 0
    shown, sent_at = "", 0.0
    yield b"retry: 1000\n\n"
    with lookout.watched():
        while not stopping():
            snapshot = {**lookout.snapshot(), **more(), "instance": lookout.instance}
            stand = _stand(snapshot)
            lines = lookout.story.since(known)
            if lines or stand != shown or time.monotonic() - sent_at >= ALIVE:
                shown, sent_at = stand, time.monotonic()
                known = max([known, *(line.number for line in lines)])
                snapshot["lines"] = [asdict(line) for line in lines]
                data = json.dumps(snapshot, ensure_ascii=False, separators=(",", ":"))
                yield f"id: {lookout.instance}-{known}\ndata: {data}\n\n".encode()
            await asyncio.sleep(PERIOD)


def _stand(snapshot: Mapping[str, Any]) -> str:
    return json.dumps({name: snapshot[name] for name in snapshot if name not in AGEING})
