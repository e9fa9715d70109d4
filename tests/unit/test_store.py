"""A store commits whole transactions or nothing, and says when it cannot be used."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from pika import BasicProperties
from support.events import event
from support.recipients import effects, store_at

from delivery import audit
from delivery import store as store_module
from delivery.codec import encode
from delivery.handling import Delivery, Failed, Handled, apply_batch
from delivery.store import (
    Schema,
    StoreDiffers,
    StoreUnavailable,
    open_store,
    savepoint,
    transaction,
)

NOTES = Schema("notes", 1, "CREATE TABLE note (text TEXT NOT NULL) STRICT")
FULL = 200_000  # bytes: more than the few free pages of a store that may not grow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def notes(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_store(path, NOTES)) as store:
        yield store


def write(tx: sqlite3.Connection, text: str) -> None:
    tx.execute("INSERT INTO note VALUES (?)", (text,))


def read(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as other:
        return [row[0] for row in other.execute("SELECT text FROM note ORDER BY rowid")]


def test_a_transaction_commits_when_its_block_ends(notes: sqlite3.Connection, path: Path) -> None:
    """Another connection sees the rows, and only then."""
    with transaction(notes) as tx:
        write(tx, "a")
        assert read(path) == []

    assert read(path) == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_transaction_rolls_back_when_its_block_raises(
    notes: sqlite3.Connection, path: Path, error: type[BaseException]
) -> None:
    """Whatever it raised; and the store is ready for the next one."""
    with pytest.raises(error), transaction(notes) as tx:
        write(tx, "a")
        raise error

    with transaction(notes) as tx:
        write(tx, "b")
    assert read(path) == ["b"]


def test_a_savepoint_undoes_only_itself(notes: sqlite3.Connection, path: Path) -> None:
    """The transaction around it, and its other savepoints, go on."""
    with transaction(notes) as tx:
        with savepoint(tx):
            write(tx, "first")
        with pytest.raises(ValueError), savepoint(tx):
            write(tx, "bad")
            raise ValueError
        with savepoint(tx):
            write(tx, "last")

    assert read(path) == ["first", "last"]


def test_a_rolled_back_transaction_takes_its_savepoints_along(
    notes: sqlite3.Connection, path: Path
) -> None:
    """A released savepoint is not a commit."""
    with pytest.raises(ValueError), transaction(notes) as tx:
        with savepoint(tx):
            write(tx, "a")
        raise ValueError

    assert read(path) == []


def test_a_store_survives_power_cuts_and_lets_readers_read(notes: sqlite3.Connection) -> None:
    """WAL, and synchronous = FULL (2): a commit is on the disk before it is acknowledged."""
    assert notes.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert notes.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_opening_again_keeps_the_rows_and_adds_new_tables(
    notes: sqlite3.Connection, path: Path
) -> None:
    """Each table group has a version of its own, so one file can hold several modules' tables."""
    with transaction(notes) as tx:
        write(tx, "a")

    more = Schema("more", 3, "CREATE TABLE more (n INTEGER) STRICT")
    with closing(open_store(path, NOTES, more)) as again:
        assert again.execute("SELECT text FROM note").fetchall() == [("a",)]
        versions = again.execute("SELECT name, version FROM schema_version ORDER BY name")
        assert versions.fetchall() == [("more", 3), ("notes", 1)]


def test_a_newer_file_is_refused_and_not_touched(path: Path) -> None:
    """The error names the file, the table group and both versions."""
    with closing(open_store(path, Schema("notes", 2, NOTES.sql))):
        pass

    before = path.read_bytes()
    other = Schema("other", 1, "CREATE TABLE other (n INTEGER) STRICT")
    with pytest.raises(StoreDiffers) as refused:
        open_store(path, other, NOTES)

    text = str(refused.value)
    assert str(path) in text
    assert "'notes' has version 2, this code knows 1" in text
    assert path.read_bytes() == before  # the tables of the other group were not added either


def test_a_locked_store_is_unavailable(
    notes: sqlite3.Connection, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that waits too long for another one: nobody's message is at fault."""
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT", 0.05)
    with closing(open_store(path, NOTES)) as other, transaction(notes) as tx:
        write(tx, "a")
        with pytest.raises(StoreUnavailable, match="locked"), transaction(other):
            pytest.fail("two writers at once")

    assert read(path) == ["a"]


def test_an_up_to_date_store_opens_while_another_process_writes(
    notes: sqlite3.Connection, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second consumer or a status command starts although a handler takes its time."""
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT", 0.05)
    with transaction(notes) as tx:
        write(tx, "a")
        with closing(open_store(path, NOTES)) as other:
            assert other.execute("SELECT count(*) FROM note").fetchone() == (0,)


def test_a_writer_waits_for_another_one(notes: sqlite3.Connection, path: Path) -> None:
    """Within the busy timeout a lock is not an error."""
    begun = threading.Event()

    def second() -> None:
        with closing(open_store(path, NOTES)) as other:
            begun.set()
            with transaction(other) as tx:
                write(tx, "second")

    thread = threading.Thread(target=second)
    with transaction(notes) as tx:
        thread.start()
        begun.wait(0.3)  # not set: opening already waits for the lock
        write(tx, "first")
    thread.join()

    assert read(path) == ["first", "second"]


@pytest.mark.parametrize("content", [b"this is not a database, and long enough to be read" * 40])
def test_a_file_that_is_no_store_is_unavailable(path: Path, content: bytes) -> None:
    """Said as what it is; the file is left alone."""
    path.write_bytes(content)

    with pytest.raises(StoreUnavailable, match="not a database"):
        open_store(path, NOTES)

    assert path.read_bytes() == content


def test_a_folder_that_does_not_exist_is_unavailable(tmp_path: Path) -> None:
    """A wrong path is an error of the place, not of a message."""
    with pytest.raises(StoreUnavailable):
        open_store(tmp_path / "missing" / "store.db", NOTES)


def test_a_broken_constraint_is_not_called_unavailable(notes: sqlite3.Connection) -> None:
    """It is the message's or the code's fault, and pausing would not help."""
    with pytest.raises(sqlite3.IntegrityError), transaction(notes) as tx:
        tx.execute("INSERT INTO note VALUES (NULL)")


def test_threads_that_open_a_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    """SQLite does not wait while two openers switch a file to WAL; the store does."""
    count = 8
    barrier = threading.Barrier(count)

    def opener(path: Path) -> int:
        barrier.wait()
        with closing(open_store(path, NOTES)) as store:
            return int(store.execute("SELECT count(*) FROM note").fetchone()[0])

    with ThreadPoolExecutor(count) as pool:
        for n in range(60):  # about one file in ten meets the race
            assert list(pool.map(opener, [tmp_path / f"{n}.db"] * count)) == [0] * count


def test_a_full_disk_is_unavailable_and_rolls_back(notes: sqlite3.Connection, path: Path) -> None:
    """The page limit stands for the disk: SQLite reports both as SQLITE_FULL."""
    fill(notes)

    with pytest.raises(StoreUnavailable, match="full"), transaction(notes) as tx:
        write(tx, "small")
        write(tx, "x" * FULL)

    assert read(path) == []


def test_a_full_disk_in_a_savepoint_is_not_the_messages_fault(tmp_path: Path) -> None:
    """No delivery of the batch is settled, and no attempt is spent: apply_batch raises."""
    with closing(store_at(tmp_path / "audit.db")) as store:
        small, big = (delivered(title="small"), delivered(title="x" * 300))
        fill(store)

        def bulky(event_, tx):  # type: ignore[no-untyped-def]
            effect = audit.append(event_, tx)
            if len(event_.data.title) == 300:
                tx.execute("CREATE TABLE bulk AS SELECT randomblob(?) AS b", (FULL,))
            return effect

        with pytest.raises(StoreUnavailable):
            apply_batch([small, big], store, bulky)

        assert effects(store) == 0
        store.execute("PRAGMA max_page_count = 1000000")
        results = apply_batch([small], store, bulky)
        assert [type(result) for result in results] == [Handled]


def test_a_batch_commits_the_good_ones_around_a_bad_one(tmp_path: Path) -> None:
    """A savepoint for each: the failed one left no effect."""
    with closing(store_at(tmp_path / "audit.db")) as store:
        deliveries = [delivered(), delivered(title="bad"), delivered()]

        results = apply_batch(deliveries, store, failing_for("bad", audit.append))

        assert [type(result) for result in results] == [Handled, Failed, Handled]
        assert effects(store) == 2


def failing_for(title: str, handle: Callable) -> Callable:  # type: ignore[type-arg]
    def apply(event_, tx):  # type: ignore[no-untyped-def]
        effect = handle(event_, tx)
        if event_.data.title == title:
            raise RuntimeError(title)
        return effect

    return apply


def delivered(title: str = "Title") -> Delivery:
    of = event(title=title)
    return Delivery(queue="q", body=encode(of), properties=BasicProperties(message_id=of.id))


def fill(store: sqlite3.Connection) -> None:
    """Let the store's file grow by no page more than it has."""
    pages = store.execute("PRAGMA page_count").fetchone()[0]
    store.execute(f"PRAGMA max_page_count = {pages}")


def test_a_handlers_trouble_with_another_file_is_not_the_stores(tmp_path: Path) -> None:
    """It fails like any other error, and spends an attempt: the store itself is well."""
    elsewhere = tmp_path / "no-such-folder" / "cache.db"
    own = open_store(tmp_path / "own.db")
    refused = pytest.raises(sqlite3.OperationalError, match="unable to open")
    with closing(own), transaction(own) as tx, refused, savepoint(tx):
        sqlite3.connect(elsewhere)


def test_an_older_file_is_refused_and_not_touched(path: Path) -> None:
    """New code on old tables would fail in the middle of a message."""
    open_store(path, Schema("x", 1, "CREATE TABLE a (b)")).close()
    with pytest.raises(StoreDiffers, match="has version 1, this code knows 2; use the older code"):
        open_store(path, Schema("x", 2, "CREATE TABLE a (b, c)"))


def test_an_older_file_is_brought_up_to_date_step_by_step(path: Path) -> None:
    """Each step runs once and in order; from any version that the steps reach back to."""
    sql = "CREATE TABLE a (b, c, d)"
    steps = ("ALTER TABLE a ADD COLUMN c", "ALTER TABLE a ADD COLUMN d;\nUPDATE a SET d = 'new'")
    with closing(open_store(path, Schema("x", 1, "CREATE TABLE a (b)"))) as old:
        old.execute("INSERT INTO a VALUES ('kept')")
    between = path.with_name("between.db")
    with closing(open_store(between, Schema("x", 2, "CREATE TABLE a (b, c)"))) as old:
        old.execute("INSERT INTO a (b) VALUES ('kept')")
    for file in (path, path, between):
        with closing(open_store(file, Schema("x", 3, sql, steps))) as now:
            assert now.execute("SELECT b, c, d FROM a").fetchall() == [("kept", None, "new")]
            assert now.execute("SELECT version FROM schema_version").fetchall() == [(3,)]
    with pytest.raises(StoreDiffers, match="has version 3, this code knows 5; use the older code"):
        open_store(path, Schema("x", 5, sql, ("CREATE TABLE f (g)",)))


def test_a_step_that_fails_leaves_the_older_file_as_it_was(path: Path) -> None:
    """The first step is undone with the second: no version between two versions."""
    open_store(path, Schema("x", 1, "CREATE TABLE a (b)")).close()
    steps = ("ALTER TABLE a ADD COLUMN c", "ALTER TABLE nowhere ADD COLUMN d")
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        open_store(path, Schema("x", 3, "", steps))
    with closing(sqlite3.connect(path)) as file:
        assert [row[1] for row in file.execute("PRAGMA table_info(a)")] == ["b"]
        assert file.execute("SELECT version FROM schema_version").fetchall() == [(1,)]
