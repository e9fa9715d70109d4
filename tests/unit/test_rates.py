"""Rates are counted from what the stores hold: a restart of the watcher loses nothing."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from support.events import event

from delivery import inbox, outbox
from delivery.rates import WINDOW, publisher_rates, receipts
from delivery.store import open_store, transaction


def test_a_rate_is_over_the_last_seconds(tmp_path: Path) -> None:
    """What is older does not count; accepted long ago and confirmed now counts as confirmed."""
    now, old = time.time(), time.time() - WINDOW - 60
    with closing(open_store(tmp_path / "p.db", outbox.SCHEMA)) as store:
        for n, accepted_at in enumerate((old, old, now)):
            with transaction(store) as tx:
                outbox.add(tx, event(f"m-{n}"), correlation_id="r", accepted_at=accepted_at)
        store.execute("UPDATE outbox SET confirmed_at = ? WHERE position < 3", (now,))
        store.execute("UPDATE outbox SET confirmed_at = ? WHERE position = 1", (old,))
        rates = publisher_rates(store)
    assert rates == {"accepted_per_second": 1 / WINDOW, "confirmed_per_second": 1 / WINDOW}


def test_receipts_by_effect(tmp_path: Path) -> None:
    """Of that recipient only; the copies are counted apart from the receipts."""
    now = time.time()
    with closing(open_store(tmp_path / "r.db", inbox.SCHEMA)) as store:
        rows = [
            ("catalog", "1", "applied", now, 2),
            ("catalog", "2", "applied", 1.0, 0),
            ("catalog", "3", "stale", now, 1),
            ("audit", "1", "applied", now, 5),
        ]
        store.executemany("INSERT INTO receipt VALUES (?, ?, ?, ?, ?, 0)", rows)
        found = receipts(store, "catalog")
    assert found == {
        **{"applied": 2, "stale": 1, "dropped": 0, "duplicate": 3, "settled": 3},
        **{"per_second": 2 / WINDOW, "pruned": False},
    }
