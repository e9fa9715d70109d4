"""What a proof that a store can be written meets, and what it lets pass."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.waiting import wait_for

from delivery import writable
from delivery.store import Schema, StoreUnavailable, open_store, transaction
from delivery.writable import check_at_once, check_writable, proving

NOTES = Schema("notes", 1, "CREATE TABLE note (text TEXT)")


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Let this process make no file longer than *size* bytes, for a moment."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_store_that_can_be_written(tmp_path: Path) -> None:
    """The write is a commit that others see, and nothing else is left behind."""
    path = tmp_path / "a.sqlite3"
    with closing(open_store(path, NOTES)) as store, closing(open_store(path)) as other:
        seen = other.execute("PRAGMA data_version").fetchone()
        before = set(tmp_path.iterdir())
        check_writable(store)
        assert other.execute("PRAGMA data_version").fetchone() != seen
        assert set(tmp_path.iterdir()) == before


def test_a_full_disk_is_met_although_sqlite_still_finds_room_in_its_log(tmp_path: Path) -> None:
    """Its log begins anew after a checkpoint: small writes go on until it must grow."""
    with closing(open_store(tmp_path / "a.sqlite3", NOTES)) as store:
        with transaction(store) as tx:
            tx.execute("INSERT INTO note VALUES (?)", ("x" * 100_000,))
        store.execute("PRAGMA wal_checkpoint").fetchone()
        longest = max(each.stat().st_size for each in tmp_path.iterdir())
        with no_file_longer_than(longest):
            with transaction(store) as tx:
                tx.execute("UPDATE note SET text = 'short'")  # it does not meet it
            with pytest.raises(StoreUnavailable, match="no 1024 KiB can be written"):
                check_writable(store)
        check_writable(store)


def test_who_writes_for_a_moment_is_no_trouble_and_nobody_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what lasts as long as a writer's patience is raised, and each look is short."""
    monkeypatch.setattr(writable, "EVERY", 0.0)
    monkeypatch.setattr(writable, "AGAIN", 0.0)
    monkeypatch.setattr(writable, "BUSY_TIMEOUT", 0.3)
    path, ours = tmp_path / "a.sqlite3", False
    with closing(open_store(path, NOTES)) as store, closing(open_store(path)) as other:
        looks = 0

        def check() -> None:
            nonlocal looks
            looks += 1
            check_at_once(store)

        def unavailable() -> bool:
            try:
                prove()
            except StoreUnavailable:
                return True
            return False

        prove = proving(check, in_use=lambda: ours)
        with transaction(other):
            prove()  # locked: seen, and not yet raised
            assert looks == 1
        prove()
        with transaction(other):
            begun = time.monotonic()
            wait_for(unavailable, "it is said")
            assert time.monotonic() - begun > writable.BUSY_TIMEOUT
            ours, looks = True, 0
            prove()
            assert looks == 0  # our own writer holds it: nothing to prove
        ours = False
        prove()
        # The connection's own patience is as before.
        assert store.execute("PRAGMA busy_timeout").fetchone() == (5_000,)
