"""Show groups of dead messages, the audit trail, and one dead message in full."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from delivery.groups import Group
from delivery.tables import dead_fields
from delivery.trail import Entry
from delivery.triage import HeldMessage
from delivery.visible import visible

__all__ = ["dead_in_full", "full_lines", "groups_table", "trail_lines"]

MOST = 10_000  # characters of a body that people are shown; --json has all of it


def groups_table(groups: Sequence[Group]) -> Table:
    """Return one row a recipient and reason."""
    table = _table(f"dead: {sum(group.count for group in groups)}")
    for column in ("recipient", "reason", "count", "first", "last", "replayed", "last error"):
        # The next command needs the reason as it is.
        table.add_column(column, no_wrap=column in ("recipient", "reason", "count"))
    for each in groups:
        first, last = moment(each.first), moment(each.last)
        cells = (each.recipient, each.reason, str(each.count), first, last, str(each.replayed))
        table.add_row(*map(visible, (*cells, each.error[:80])))
    return table


def trail_lines(entries: Sequence[Entry]) -> Iterator[str]:
    """Give a line an act: when, who, what, to which message, why, and what came of it."""
    for each in entries:
        dead = f" (dead: {each.dead_reason})" if each.dead_reason else ""
        result = "no result was recorded" if each.result is None else each.result
        yield visible(
            f"{moment(each.decided_at)}  {each.operator}  {each.action}  {each.recipient}"
            f"  {each.message_id}{dead}  {each.reason}  -> {result}"
        )


def dead_in_full(message: HeldMessage) -> dict[str, Any]:
    """Return everything that is known about one dead message; ``decoded`` is the body's JSON."""
    properties = vars(message.delivery.properties)
    return {
        **dead_fields(message),
        "is_event": message.is_event,
        "traceback": message.traceback,
        "properties": {name: value for name, value in properties.items() if value is not None},
        "body": message.delivery.body.decode("utf-8", "backslashreplace"),
        "decoded": _decoded(message.delivery.body),
    }


def full_lines(message: HeldMessage) -> Iterator[str]:
    """Give the lines that people read; nothing of a stranger's can move the cursor."""
    found = dead_in_full(message)
    properties = dict(found["properties"])
    headers = properties.pop("headers", None) or {}
    for name in ("id", "reason", "error", "attempts", "replays"):
        yield f"{name}: {visible(str(found[name]))}"
    yield f"parked: {moment(message.parked_at)}"
    yield f"sent: {moment(message.sent_at)}"
    for title, fields in (("properties", properties), ("headers", headers)):
        yield f"{title}:"
        for name, value in fields.items():
            if value != message.traceback or not message.traceback:  # it is shown below
                yield f"  {visible(str(name))}: {visible(str(value))}"
    yield "traceback (its last calls):" if message.traceback else "traceback: none was kept"
    for line in message.traceback.splitlines():
        yield f"  {visible(line)}"
    kind = "an event" if message.is_event else "not an event that this recipient understands"
    yield f"body ({len(message.delivery.body)} bytes, {kind}):"
    text, decoded = found["body"], found["decoded"]
    if decoded is not None:
        text = json.dumps(decoded, indent=2, ensure_ascii=False)
    for line in text[:MOST].splitlines():
        yield f"  {visible(line)}"
    if len(text) > MOST:
        yield f"  ... ({len(text) - MOST} more characters: --json)"


def moment(seconds: float) -> str:
    """Return a time for people; 0 is not known."""
    if not seconds:
        return "not known"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"no such time ({seconds:g})"  # a stranger's timestamp


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, pad_edge=False)
