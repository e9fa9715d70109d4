"""Show dead messages, plans and accounts: as tables, and as plain fields."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from delivery.ledger import Account
from delivery.plan import Planned
from delivery.triage import DeadMessage
from delivery.visible import visible

DEAD_COLUMNS = ("id", "reason", "age", "attempts", "replays", "error")
PLAN_COLUMNS = ("id", "reason", "age", "attempts", "receipt", "a replay")
LEDGER_PLACES = (
    *("accepted", "applied", "stale", "dropped", "forgotten", "dead"),
    *("parked", "retry", "unacked", "ready", "pending", "difference"),
)

__all__ = [
    "DEAD_COLUMNS",
    "PLAN_COLUMNS",
    "dead_cells",
    "dead_fields",
    "dead_table",
    "ledger_table",
    "plan_cells",
    "plan_fields",
    "plan_table",
]


def dead_table(title: str, messages: Iterable[DeadMessage]) -> Table:
    """Return one row a dead message: not too many, rich keeps every cell."""
    return _filled(title, DEAD_COLUMNS, map(dead_cells, messages))


def plan_table(title: str, planned: Iterable[Planned]) -> Table:
    """Return one row a dead message, with what a replay would do: not too many."""
    return _filled(title, PLAN_COLUMNS, map(plan_cells, planned))


def dead_cells(message: DeadMessage) -> tuple[str, ...]:
    """Return the cells below DEAD_COLUMNS."""
    counts = (str(message.attempts), str(message.replays))
    cells = (message.key, message.reason, _age(message), *counts, message.error[:80])
    return tuple(map(visible, cells))


def plan_cells(planned: Planned) -> tuple[str, ...]:
    """Return the cells below PLAN_COLUMNS."""
    message, receipt = planned.message, planned.receipt
    shown = receipt.effect.value if receipt else "none"
    about = (str(message.attempts), shown, planned.prospect.value)
    return tuple(map(visible, (message.key, message.reason, _age(message), *about)))


def ledger_table(accounts: Sequence[Account]) -> Table:
    """Return a column a recipient: what was accepted, and where it is; parked, if anything is."""
    table = _table("ledger: each accepted event, counted once for each recipient")
    table.add_column("")
    for each in accounts:
        table.add_column(each.recipient, justify="right")
    for place in LEDGER_PLACES:
        if place == "parked" and not any(each.parked for each in accounts):
            continue
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


def _filled(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = _table(title)
    for column in columns:
        table.add_column(column, no_wrap=column in ("id", "reason"))
    for cells in rows:
        table.add_row(*cells)
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, pad_edge=False)


def _age(message: DeadMessage) -> str:
    if not message.parked_at:
        return "not known"
    seconds = max(0, int(time.time()) - message.parked_at)
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
