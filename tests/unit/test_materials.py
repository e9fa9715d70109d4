"""A command is decided once: material, request and outbox row commit together, or none does."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from delivery import materials, outbox
from delivery.codec import decode
from delivery.contract import PublishMaterial
from delivery.materials import Accepted, KeyReused, RevisionMismatch, accept
from delivery.points import arm
from delivery.store import open_store

NOW = 1_800_000_000.25


def store_at(path: Path) -> sqlite3.Connection:
    return open_store(path, materials.SCHEMA, outbox.SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(store_at(tmp_path / "publisher.db")) as opened:
        yield opened


def command(title: str = "Title", expected: int | None = None) -> PublishMaterial:
    return PublishMaterial(title=title, slug="a-title", author="A", expected_revision=expected)


def counts(store: sqlite3.Connection) -> dict[str, int]:
    return {
        table: store.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("material", "request", "outbox")
    }


def test_an_accepted_command_is_material_request_and_event(store: sqlite3.Connection) -> None:
    """All three, in one file, in one transaction."""
    answer, repeated = accept(store, "m-1", command("Ünïcödé 🐇"), key="k-1", clock=lambda: NOW)

    assert not repeated
    assert (answer.material_id, answer.revision) == ("m-1", 1)
    assert counts(store) == {"material": 1, "request": 1, "outbox": 1}
    event_id, body, correlation = store.execute(
        "SELECT event_id, body, correlation_id FROM outbox"
    ).fetchone()
    event = decode(body)
    assert (event.id, correlation) == (answer.event_id, "k-1") == (event_id, "k-1")
    assert (event.data.title, event.data.revision) == ("Ünïcödé 🐇", 1)
    assert event.data.published_at.timestamp() == NOW


def test_each_command_publishes_the_next_revision(store: sqlite3.Connection) -> None:
    """A material's revisions have no gap; materials count apart."""
    revisions = [accept(store, "m-1", command(f"{n}"), key=f"k-{n}")[0].revision for n in range(3)]

    assert revisions == [1, 2, 3]
    assert accept(store, "m-2", command(), key="other")[0].revision == 1


def test_the_same_key_and_body_get_the_same_answer_and_one_row(store: sqlite3.Connection) -> None:
    """A client that did not hear the answer asks again, and publishes nothing twice."""
    first, _ = accept(store, "m-1", command(), key="k-1")

    assert accept(store, "m-1", command(), key="k-1") == (first, True)
    assert counts(store) == {"material": 1, "request": 1, "outbox": 1}


def test_the_stored_answer_is_repeated_even_after_newer_revisions(
    store: sqlite3.Connection,
) -> None:
    """The answer belongs to the request, not to the moment."""
    first, _ = accept(store, "m-1", command(expected=0), key="k-1")
    accept(store, "m-1", command("new"), key="k-2")

    assert accept(store, "m-1", command(expected=0), key="k-1") == (first, True)


@pytest.mark.parametrize(
    ("material_id", "body"),
    [("m-1", command("other")), ("m-2", command()), ("m-1", command(expected=0))],
)
def test_the_same_key_for_another_command_is_refused(
    store: sqlite3.Connection, material_id: str, body: PublishMaterial
) -> None:
    """Another body or another material: one of the two clients has a fault."""
    accept(store, "m-1", command(), key="k-1")

    with pytest.raises(KeyReused, match="'k-1'"):
        accept(store, material_id, body, key="k-1")

    assert counts(store) == {"material": 1, "request": 1, "outbox": 1}


@pytest.mark.parametrize("expected", [0, 2])
def test_a_command_written_for_another_revision_is_refused(
    store: sqlite3.Connection, expected: int
) -> None:
    """Neither an older nor a newer expectation overwrites."""
    accept(store, "m-1", command(), key="k-1")

    with pytest.raises(RevisionMismatch, match=f"is at revision 1, not {expected}"):
        accept(store, "m-1", command("other", expected), key="k-2")

    assert counts(store) == {"material": 1, "request": 1, "outbox": 1}


def test_a_command_written_for_the_current_revision_is_accepted(store: sqlite3.Connection) -> None:
    """0 stands for a new material."""
    assert accept(store, "m-1", command(expected=0), key="k-1")[0].revision == 1
    assert accept(store, "m-1", command(expected=1), key="k-2")[0].revision == 2


def test_a_refused_command_leaves_no_trace_so_its_key_may_be_used_again(
    store: sqlite3.Connection,
) -> None:
    """The refusal is not an answer to keep: the client corrects and sends again."""
    with pytest.raises(RevisionMismatch):
        accept(store, "m-1", command(expected=5), key="k-1")
    assert counts(store) == {"material": 0, "request": 0, "outbox": 0}

    answer, repeated = accept(store, "m-1", command(), key="k-1")
    assert (answer.revision, repeated) == (1, False)


def test_a_failure_before_the_commit_leaves_no_trace(store: sqlite3.Connection) -> None:
    """Not the material without its event, nor the request without either."""

    def fail() -> None:
        raise RuntimeError

    arm("materials.written", fail)
    with pytest.raises(RuntimeError):
        accept(store, "m-1", command(), key="k-1")

    assert counts(store) == {"material": 0, "request": 0, "outbox": 0}
    assert accept(store, "m-1", command(), key="k-1")[0].revision == 1


def at_once(path: Path, keys: list[str]) -> list[tuple[Accepted, bool]]:
    """Send the same command under each of *keys*, every one in its own thread, all at once."""
    barrier = threading.Barrier(len(keys))
    found: list[tuple[Accepted, bool]] = []

    def client(key: str) -> None:
        with closing(store_at(path)) as store:
            barrier.wait()
            found.append(accept(store, "m-1", command(), key=key))

    threads = [threading.Thread(target=client, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_ten_twins_at_once_make_one_row_and_get_equal_answers(
    store: sqlite3.Connection, tmp_path: Path
) -> None:
    """Exactly one of them is not a repetition."""
    found = at_once(tmp_path / "publisher.db", ["k-1"] * 10)

    assert len(found) == 10
    assert len({answer for answer, _ in found}) == 1
    assert sorted(repeated for _, repeated in found) == [False] + [True] * 9
    assert counts(store) == {"material": 1, "request": 1, "outbox": 1}


def test_ten_commands_at_once_get_ten_revisions(store: sqlite3.Connection, tmp_path: Path) -> None:
    """No two of them read the same current revision."""
    found = at_once(tmp_path / "publisher.db", [f"k-{n}" for n in range(10)])

    assert sorted(answer.revision for answer, _ in found) == list(range(1, 11))
    assert counts(store) == {"material": 1, "request": 10, "outbox": 10}


def test_the_stored_answer_is_readable_json(store: sqlite3.Connection) -> None:
    """An operator can see what a client was told."""
    answer, _ = accept(store, "m-1", command(), key="k-1")

    (stored,) = store.execute("SELECT answer FROM request").fetchone()
    assert Accepted(**json.loads(stored)) == answer
