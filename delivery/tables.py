"""Show dead messages, plans and accounts: as tables, and as plain fields."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from delivery.ledger import Account
from delivery.plan import Planned
from delivery.triage import DeadMessage
from delivery.visible import visible

ROWS = 1_000  # of one table
LEDGER_PLACES = (
    *("accepted", "applied", "stale", "dropped", "forgotten", "dead"),
    *("retry", "unacked", "ready", "pending", "difference"),
)

__all__ = [
    "dead_fields",
    "dead_table",
    "ledger_table",
    "parts",
    "plan_fields",
    "plan_table",
]


def parts(
    title: str, messages: Sequence[DeadMessage]
) -> Iterator[tuple[str, Sequence[DeadMessage]]]:
    """Cut the messages into what one table may hold, each with its title: rich keeps every cell."""
    count = len(messages)
    yield f"{title}: {count}", messages[:ROWS]
    for first in range(ROWS, count, ROWS):
        yield f"from {first + 1} of {count} on", messages[first : first + ROWS]


def dead_table(title: str, messages: Sequence[DeadMessage]) -> Table:
    """Return one row a dead message."""
    table = _table(title)
    table.add_column("id", no_wrap=True)
    for column in ("reason", "age", "attempts", "replays", "error"):
        table.add_column(column, no_wrap=column == "reason")
    for each in messages:
        attempts, replays = str(each.attempts), str(each.replays)
        cells = (each.key, each.reason, _age(each), attempts, replays, each.error[:80])
        table.add_row(*map(visible, cells))
    return table


def plan_table(title: str, planned: Sequence[Planned]) -> Table:
    """Return one row a dead message, with what a replay would do."""
    table = _table(title)
    table.add_column("id", no_wrap=True)
    for column in ("reason", "age", "attempts", "receipt", "a replay"):
        table.add_column(column, no_wrap=column == "reason")
    for each in planned:
        message, receipt = each.message, each.receipt
        shown = receipt.effect.value if receipt else "none"
        attempts = str(message.attempts)
        cells = (message.key, message.reason, _age(message), attempts, shown, each.prospect.value)
        table.add_row(*map(visible, cells))
    return table


def ledger_table(accounts: Sequence[Account]) -> Table:
    """Return a column a recipient: what was accepted, and where it is."""
    table = _table("ledger: each accepted event, counted once for each recipient")
    table.add_column("")
    for each in accounts:
        table.add_column(each.recipient, justify="right")
    for place in LEDGER_PLACES:
        table.add_row(place, *(_cell(each, place) for each in accounts))
    return table


def _cell(found: Account, place: str) -> str:
    if place == "unacked" and not found.unacked_seen and found.difference:
        return "not visible"
    return str(getattr(found, place))


def dead_fields(message: DeadMessage) -> dict[str, Any]:
    """Return what the list shows, for machines."""
    return {
        "id": message.key,
        "reason": message.reason,
        "error": message.error,
        "attempts": message.attempts,
        "replays": message.replays,
        "parked_at": message.parked_at,
        "sent_at": message.sent_at,
    }


def plan_fields(planned: Planned) -> dict[str, Any]:
    """Return what the plan shows, for machines."""
    receipt = planned.receipt
    return {
        **dead_fields(planned.message),
        "receipt": receipt.effect.value if receipt else None,
        "prospect": planned.prospect.name.lower(),
    }


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, pad_edge=False)


def _age(message: DeadMessage) -> str:
    if not message.parked_at:
        return "not known"
    seconds = max(0, int(time.time()) - message.parked_at)
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
