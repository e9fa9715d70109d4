"""The operators' audit trail in the publisher's PostgreSQL: trail, for any number of operators."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from delivery.postgres import Connection, reading, storable, transaction
from delivery.store import Schema
from delivery.trail import Action, Entry, check_reason

__all__ = ["SCHEMA", "begin_all", "conclude", "entries", "forget"]

PAGE = 500  # entries that are in memory at a time

SCHEMA = Schema(
    "trail",
    1,
    """
CREATE TABLE trail (
    entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    action text NOT NULL,
    recipient text NOT NULL,
    message_id text NOT NULL,
    dead_reason text NOT NULL,
    operator text NOT NULL,
    reason text NOT NULL,
    result text
);
CREATE INDEX trail_message ON trail (message_id)
""",
)


def begin_all(
    store: Connection,
    action: Action,
    recipient: str,
    messages: Iterable[tuple[str, str]],
    *,
    operator: str,
    reason: str,
) -> list[int]:
    """Record an act on *messages* before it is done, as trail.begin_all does."""
    check_reason(reason)
    about = [(storable(message_id), storable(dead_reason)) for message_id, dead_reason in messages]
    with transaction(store) as tx:
        made = tx.execute(
            "INSERT INTO trail (action, recipient, message_id, dead_reason, operator, reason)"
            " SELECT %s, %s, message_id, dead_reason, %s, %s FROM unnest(%s::text[], %s::text[])"
            " WITH ORDINALITY AS given (message_id, dead_reason, number) ORDER BY number"
            " RETURNING entry",
            (
                *(action, recipient, storable(operator), storable(reason)),
                *([each[n] for each in about] for n in range(2)),
            ),
        ).fetchall()
    return sorted(entry for (entry,) in made)


def conclude(store: Connection, results: Iterable[tuple[int, str]]) -> None:
    """Keep what came of each entry."""
    left = iter(results)
    with transaction(store) as tx:
        while page := list(islice(left, PAGE)):
            tx.execute(
                "UPDATE trail SET result = given.result"
                " FROM unnest(%s::bigint[], %s::text[]) AS given (entry, result)"
                " WHERE trail.entry = given.entry",
                ([entry for entry, _ in page], [storable(result) for _, result in page]),
            )


def forget(store: Connection, *, before: float, most: int) -> int:
    """Forget acts from before *before* (Unix seconds), as trail.forget does; return how many."""
    with transaction(store) as tx:
        gone = tx.execute(
            "DELETE FROM trail WHERE entry < (SELECT min(entry) FROM trail) + %s"
            " AND decided_at < to_timestamp(%s)",
            (most, before),
        )
    return gone.rowcount


def entries(
    store: Connection, *, recipient: str = "", message_id: str = "", limit: int = 50
) -> list[Entry]:
    """Return the latest *limit* entries, oldest first, as trail.entries does."""
    begins = storable(message_id)
    with reading():
        rows = store.execute(
            "SELECT entry, extract(epoch FROM decided_at)::float8, action, recipient, message_id,"
            " dead_reason, operator, reason, result FROM trail"
            " WHERE (%s = '' OR recipient = %s) AND left(message_id, length(%s)) = %s"
            " ORDER BY entry DESC LIMIT %s",
            (recipient, recipient, begins, begins, limit),
        ).fetchall()
    return [Entry(*row) for row in reversed(rows)]
