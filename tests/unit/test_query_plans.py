"""Every statement of the hot paths finds its rows by an index, however many there are."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from support.events import event

from delivery import audit, catalog, failures, trail
from delivery.confirms import Answer, Outcome
from delivery.contract import Event, PublishMaterial
from delivery.feed import read_page
from delivery.inbox import once, prune, pruned_before, receipt_of
from delivery.live_counts import count
from delivery.materials import accept
from delivery.outbox import SqliteOutbox, removed
from delivery.retention import forget_sent, receipts_round
from delivery.revision import latest_only
from delivery.routes import Route
from delivery.store import transaction
from delivery.stores import PUBLISHER, Stores
from delivery.tracing import find_events, outbox_summary

WORDS = ("SELECT", "INSERT", "UPDATE", "DELETE")


@contextmanager
def watched(store: sqlite3.Connection) -> Iterator[list[str]]:
    """Give the statements that are executed in the block."""
    statements: list[str] = []
    store.set_trace_callback(statements.append)
    yield statements
    store.set_trace_callback(None)


def slow_steps(store: sqlite3.Connection, statements: list[str]) -> list[tuple[str, str]]:
    """Return what scans or sorts. One row that is the whole table is no scan to fear."""
    asked = [each for each in statements if each.startswith(WORDS)]
    assert asked, statements
    return [
        (statement, step)
        for statement in asked
        for *_, step in store.execute(f"EXPLAIN QUERY PLAN {statement}")
        if (step.startswith("SCAN") or "TEMP B-TREE" in step) and "outbox_removed" not in step
    ]


def test_a_look_at_the_outbox_reads_the_pending_rows_only(tmp_path: Path) -> None:
    """For the status and the metrics, and for the live page; the latest few are found by number."""
    stores = Stores(tmp_path)
    with closing(stores.open(PUBLISHER)) as store:
        with watched(store) as statements:
            outbox_summary(store)
        aside = stores.open(PUBLISHER)
        aside.set_trace_callback(statements.append)
        count(lambda: aside, {})
        assert sum("FROM outbox" in each for each in statements) >= 7
        steps = [
            step
            for statement in statements
            if statement.startswith("SELECT") and "ORDER BY position DESC LIMIT" not in statement
            for *_, step in store.execute(f"EXPLAIN QUERY PLAN {statement}")
        ]
    assert {step for step in steps if "B-TREE" not in step} == {
        "SCAN outbox USING INDEX outbox_due",
        "SEARCH outbox USING INDEX outbox_due",
        "SCAN outbox_removed",
        "SCAN outbox_sent",
    }


def test_the_publishers_statements_use_indexes(tmp_path: Path) -> None:
    """Accept, relay, mark, feed, find, remove."""
    command = PublishMaterial(title="T", slug="s", author="A")
    with closing(Stores(tmp_path).open(PUBLISHER)) as store, watched(store) as statements:
        answer, _ = accept(store, "m-1", command, key="k")
        accept(store, "m-1", command, key="k")
        box = SqliteOutbox(store, "x")
        for outcome in (Outcome.RETURNED, Outcome.CONFIRMED):
            with box.batch(10) as batch:
                batch.record([Answer(outcome)] * len(batch.messages))
            store.execute("UPDATE outbox SET next_attempt_at = 0 WHERE position = 1")
        read_page(store, after=0)
        for word in (answer.event_id, "k", "m-1"):
            find_events(store, word)
        forget_sent(store, before=time.time() + 1)
        removed(store)
        trail.forget(store, before=time.time(), most=10)
    with closing(Stores(tmp_path).open(PUBLISHER)) as store:
        assert any(each.startswith("DELETE FROM request") for each in statements)
        assert slow_steps(store, statements) == []


def test_the_recipients_statements_use_indexes(tmp_path: Path) -> None:
    """Receipt, revision, effect, duplicate, look, forget."""
    effects: dict[str, Callable[..., object]] = {
        "catalog": once(Route("catalog"), latest_only(catalog.upsert)),
        "audit": once(Route("audit"), audit.append),
    }
    of: Event = event()
    for recipient, handle in effects.items():
        with closing(Stores(tmp_path).open(recipient)) as store, watched(store) as statements:
            for _ in range(2):
                with transaction(store) as tx:
                    handle(of, tx)
            receipt_of(store, recipient, of.id)
            pruned_before(store, recipient)
            prune(store, recipient, before=time.time() + 1, oldest_dead=None, most=10)
            failures.forget(store, recipient, before=time.time(), oldest_dead=None, most=10)
            # None is there to be forgotten, so no connection is asked.
            for _ in receipts_round(store, None, Route(recipient), 1e9):  # type: ignore[arg-type]
                pass
        with closing(Stores(tmp_path).open(recipient)) as store:
            assert slow_steps(store, statements) == []
