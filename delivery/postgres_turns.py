"""Who is writing to the outbox: a material's writers take turns, and readers know where to stop."""

from __future__ import annotations

from psycopg.pq import TransactionStatus

from delivery.postgres import Connection, reading

__all__ = ["begin_adding", "hold_writers", "settled", "take_turn"]

# The first of the two numbers of our advisory locks; all of them end with their transaction.
_MATERIALS, _COPIES = 5672, 5673

_LAST = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS last FROM outbox_position_seq"
# A lock of one number: the table, and (in the lower half) after which position its owner adds. Once
# in a transaction: a server has some thousands of locks. The setting ends as the lock does, at the
# transaction's end or with a savepoint that is undone.
_ADDING = f"""
SELECT pg_advisory_xact_lock_shared(%s, 0),
    pg_advisory_xact_lock_shared(('outbox'::regclass::oid::bigint << 32) | (last & 4294967295)),
    set_config('delivery.adding', 'yes', true)
FROM ({_LAST}) AS sequence WHERE current_setting('delivery.adding', true) IS DISTINCT FROM 'yes'
"""  # noqa: S608 - put together from constants
# Half of all numbers behind is ahead: that writer has begun after the look at the sequence.
_BEHIND = """
SELECT coalesce(max(behind), 0) FROM (
    SELECT (%s - objid::bigint) & 4294967295 AS behind FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND classid = 'outbox'::regclass
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS writer WHERE behind < 2147483648
"""


def take_turn(tx: Connection, subject: str) -> None:
    """Wait until nobody else adds for *subject*; then nobody does until *tx* has ended.

    Raises ValueError outside of a transaction: such a turn would be over at once.
    """
    tx.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_MATERIALS, subject))
    if tx.info.transaction_status is not TransactionStatus.INTRANS:
        raise ValueError("no transaction is open: the event would be queued whatever happens next")


def begin_adding(tx: Connection) -> None:
    """Say, until *tx* has ended, that it adds rows behind the position that was given last.

    Waits for a copy that is being made.
    """
    tx.execute(_ADDING.encode(), (_COPIES,))


def hold_writers(tx: Connection) -> None:
    """Wait for everybody who adds; then nobody does until *tx* has ended. Relays go on."""
    tx.execute("SELECT pg_advisory_xact_lock(%s, 0)", (_COPIES,))


def settled(store: Connection) -> int:
    """Return up to which position the outbox is complete: nothing can turn up there any more.

    Positions are given before the commit, so a lower one may be committed later. Raises
    StoreUnavailable.
    """
    with reading():
        (last,) = store.execute(_LAST.encode()).fetchone() or (0,)
        # Only now: who has had a position up to that one and is not seen here has ended.
        (behind,) = store.execute(_BEHIND, (last,)).fetchone() or (0,)
    return int(last - behind)
