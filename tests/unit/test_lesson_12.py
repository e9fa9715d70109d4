"""What the notes of lesson 12 rest on: reconcile sends what is lost, and nothing else."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from support.events import event
from support.recipients import store_at

from delivery import outbox
from delivery.audit import append
from delivery.course import Progress, Title, run
from delivery.feed import read_page
from delivery.inbox import once
from delivery.reconcile import missing
from delivery.routes import Route
from delivery.store import open_store, transaction

AUDIT = Route("audit")


def test_only_what_is_confirmed_settled_nowhere_and_not_young_is_missing(tmp_path: Path) -> None:
    """Pending is the relay's, dead is the operator's, young may be on its way."""
    lost, pending, young, dead, settled = (event(f"m-{n}") for n in range(5))
    with (
        closing(open_store(tmp_path / "publisher.db", outbox.SCHEMA)) as feed,
        closing(store_at(tmp_path / "audit.db")) as inbox,
    ):
        with transaction(feed) as tx:
            for each in (lost, pending, young, dead, settled):
                outbox.add(tx, each, correlation_id="c", accepted_at=1.0)
            tx.execute("UPDATE outbox SET confirmed_at = 2")
            tx.execute("UPDATE outbox SET confirmed_at = NULL WHERE event_id = ?", (pending.id,))
            now = time.time()
            tx.execute("UPDATE outbox SET confirmed_at = ? WHERE event_id = ?", (now, young.id))
        with transaction(inbox) as tx:
            once(AUDIT, append)(settled, tx)

        found = missing(read_page(feed), inbox, AUDIT, dead=[dead.id], grace=60.0)

    assert [each.event_id for each in found] == [lost.id]


def test_a_lesson_looks_for_its_broker_where_data_says(tmp_path: Path) -> None:
    """--data names the folder for the progress and for the lesson's own process."""
    look = "import os, sys; sys.exit(7 if os.environ['DELIVERY_DATA'].endswith('/state') else 1)"
    (tmp_path / "run.py").write_text(look)
    progress = Progress(tmp_path / "state" / "progress.json")
    assert run(Title(99, "title", "promise", tmp_path), [], progress) == 7
    assert progress.seconds() == {}
