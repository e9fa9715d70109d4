"""Show a snapshot on one screen: a row a figure, a column a recipient, and how old it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from delivery.listeners import Listener
from delivery.observe import MANAGEMENT_AGE, Waiting
from delivery.rates import WINDOW
from delivery.visible import visible
from delivery.watch import Seen, Snapshot

__all__ = ["status_screen"]

UNSEEN = "not visible"
Cell = Callable[[Seen], str]


def status_screen(snapshot: Snapshot) -> Group:
    """Return the screen. What nobody could tell is said to be not visible, and never 0."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for seen in snapshot.recipients:
        table.add_column(seen.recipient, justify="right", no_wrap=True)
    table.add_column("as of")
    for name, cell, age in _rows(snapshot):
        table.add_row(name, *map(cell, snapshot.recipients), age)
    lines = [Text(visible(line)) for part in (_outbox, _parked) for line in part(snapshot)]
    after = [Text(visible(line)) for part in (_listeners, _notes) for line in part(snapshot)]
    return Group(*lines, table, *after)


def _rows(snapshot: Snapshot) -> Iterator[tuple[str, Cell, str]]:
    places = [seen.waiting for seen in snapshot.recipients if seen.waiting]
    broker, late = UNSEEN, UNSEEN
    if places:
        age = max(0.0, time.time() - min(place.sampled_at for place in places))
        broker = _ago(age)
        late = f"up to {age + places[0].unacked_age:.0f} s ago"
    yield "ready", _place(lambda place: _counted(place.ready)), broker
    yield "unacked", _place(_unacked), late
    for n, delay in enumerate(snapshot.retries_ms):
        yield f"retry {_delay(delay)}", _place(_retry(n)), broker
    yield "dead", _place(_dead), broker
    yield "consumers", _place(lambda place: _counted(place.consumers)), broker
    yield "queue kind", _place(lambda place: place.kind or UNSEEN), late
    now = _ago(max(0.0, time.time() - snapshot.taken_at))
    for name in ("applied", "duplicate", "stale", "dropped"):
        yield name, _receipt(name, "{}"), now
    yield "settled a second", _receipt("per_second", "{:.1f}"), f"over {WINDOW:.0f} s"
    yield "difference", _difference, "by counts"


def _outbox(snapshot: Snapshot) -> Iterator[str]:
    outbox = snapshot.outbox
    pending = sum(outbox["pending"].values())
    age = _ago(max(0.0, time.time() - outbox["sampled_at"]))
    yield (
        f"outbox ({age}): accepted {outbox['accepted']}, confirmed {outbox['confirmed']},"
        f" pending {pending}"
    )
    if oldest := outbox["oldest_pending"]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in outbox["pending"].items())
        yield f"  pending by last outcome: {kinds}"
        last = f"{oldest['outcome'] or 'not tried'} {oldest['detail'] or ''}".strip()
        yield (
            f"  oldest: {outbox['oldest_pending_seconds']:.1f} s, {oldest['event_id']},"
            f" attempts {oldest['attempts']}, last: {last}"
        )
    yield (
        f"  a second, over {WINDOW:.0f} s: accepted {outbox['accepted_per_second']:.1f},"
        f" confirmed {outbox['confirmed_per_second']:.1f}"
    )


def _parked(snapshot: Snapshot) -> Iterator[str]:
    if (parked := snapshot.parked) is None:
        return
    if parked.ready is None:
        yield f"parked in {parked.queue}: {UNSEEN}: {parked.why}"
        return
    age = _ago(max(0.0, time.time() - parked.sampled_at))
    count = f"{parked.ready}{' and those that somebody holds' if parked.held else ''}"
    yield f"parked ({age}): {count} in {parked.queue}, queue kind {parked.kind or UNSEEN}"
    if parked.ready:
        yield f"  no queue wanted them; once one does: {parked.hint}"


def _listeners(snapshot: Snapshot) -> Iterator[str]:
    if (found := snapshot.listeners) is None:
        yield f"who else is bound to the exchange: {UNSEEN}"
        return
    if found.shown:
        age = 2 * MANAGEMENT_AGE  # the plugin's, and ours
        yield f"also bound to the exchange (up to {age:.0f} s ago), and in no sum here:"
    for each in found.shown:
        more = [f"{each.more_keys} more"] if each.more_keys else []
        yield f"  {each.queue} ({', '.join([*each.keys, *more])}): {_listener(each)}"
    if found.more:
        yield f"  and {found.more} more"


def _listener(each: Listener) -> str:
    counts = {"ready": each.ready, "unacked": each.unacked, "consumers": each.consumers}
    seen = [f"{name} {UNSEEN if count is None else count}" for name, count in counts.items()]
    more = {"retry": each.retry, "dead": each.dead}
    seen += [f"{name} {count}" for name, count in more.items() if count is not None]
    return ", ".join([*seen, f"queue kind {each.kind or UNSEEN}"])


def _notes(snapshot: Snapshot) -> Iterator[str]:
    if snapshot.error:
        yield f"the broker was not asked: {snapshot.error}"
    for seen in snapshot.recipients:
        if seen.waiting and seen.waiting.unacked_why:
            yield f"{seen.recipient}: unacked is not visible: {seen.waiting.unacked_why}"
        if seen.difference_why:
            yield f"{seen.recipient}: no difference is told: {seen.difference_why}"
        if seen.difference:
            parked = "parked, " if snapshot.parked and snapshot.parked.ready else ""
            yield f"{seen.recipient}: {parked}on its way, or lost; by id: {snapshot.command} ledger"
        if seen.surplus:
            yield f"{seen.recipient}: {seen.surplus} beyond what was accepted: copies or foreign"


def _place(cell: Callable[[Waiting], str]) -> Cell:
    return lambda seen: cell(seen.waiting) if seen.waiting else UNSEEN


def _receipt(name: str, form: str) -> Cell:
    return lambda seen: UNSEEN if seen.receipts is None else form.format(seen.receipts[name])


def _retry(n: int) -> Callable[[Waiting], str]:
    return lambda place: _counted(place.retry[n])


def _unacked(place: Waiting) -> str:
    return UNSEEN if place.unacked is None else str(place.unacked)


def _dead(place: Waiting) -> str:
    count = _counted(place.dead)
    return f"{count} and those that somebody holds" if place.dead_held else count


def _difference(seen: Seen) -> str:
    return UNSEEN if seen.difference is None else str(seen.difference)


def _counted(count: int | None) -> str:
    return "no queue" if count is None else str(count)


def _ago(seconds: float) -> str:
    return "now" if seconds < 1.5 else f"{seconds:.0f} s ago"


def _delay(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1_000 else f"{milliseconds / 1000:g} s"
