"""A publisher grows from SQLite to PostgreSQL: planned first, repeatable, in order."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.events import event
from support.exchange import environment
from support.waiting import wait_for

from delivery import cli, commands_postgres, materials, outbox, postgres_outbox
from delivery.cast import Cast
from delivery.commands_postgres import inboxes_of
from delivery.confirms import Answer, Outcome
from delivery.contract import Event, PublishMaterial
from delivery.errors import DeliveryError
from delivery.materials import Accepted, KeyReused
from delivery.outbox import SqliteOutbox
from delivery.points import arm
from delivery.postgres import Connection, open_postgres, transaction
from delivery.postgres_copy import Copied, copy_publisher
from delivery.postgres_feed import read_page
from delivery.postgres_materials import accept
from delivery.postgres_outbox import PostgresOutbox, forget_sent, removed
from delivery.postgres_publisher import SCHEMAS
from delivery.relay import only_relay
from delivery.served import unserved
from delivery.store import StoreUnavailable
from delivery.store import transaction as sqlite_transaction
from delivery.stores import PUBLISHER, Stores

AT = 1_800_000_000.5
COMMAND = PublishMaterial(title="Ünïcödé 🐇", slug="a-slug", author="A", summary="S")
COLUMNS = (
    "event_id, event_type, body, correlation_id, attempts, outcome, detail, subject, traceparent"
)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(Stores(tmp_path).open(PUBLISHER)) as opened:
        yield opened


@pytest.fixture
def target(database: str) -> Iterator[Connection]:
    with closing(open_postgres(database, *SCHEMAS)) as opened:
        yield opened


def add(source: sqlite3.Connection, *events: Event, at: float = AT) -> None:
    with sqlite_transaction(source) as tx:
        for each in events:
            outbox.add(tx, each, correlation_id="r", accepted_at=at, traceparent="00-1")


def record(source: sqlite3.Connection, *answers: Answer) -> None:
    with SqliteOutbox(source, "x", clock=lambda: AT).batch(len(answers)) as batch:
        batch.record(answers)


def rows(store: sqlite3.Connection | Connection) -> list[tuple[object, ...]]:
    return store.execute(f"SELECT {COLUMNS} FROM outbox ORDER BY position").fetchall()  # type: ignore[no-any-return]


def test_a_plan_changes_nothing(source: sqlite3.Connection, target: Connection) -> None:
    """It says what a copy would do."""
    add(source, event("m-1"), event("m-2"), event("m-3"))
    record(source, Answer(Outcome.CONFIRMED), Answer(Outcome.RETURNED, "312 NO_ROUTE"))

    assert copy_publisher(source, target) == Copied(pending=2, confirmed=1, marked=0, known=0)
    assert rows(target) == []


def test_every_row_is_copied_with_its_facts_and_in_its_order(
    source: sqlite3.Connection, target: Connection
) -> None:
    """Attempts and outcomes, too; and a relay goes on where SQLite's was."""
    events = [event(f"m-{n % 7}", n // 7 + 1, title="Ünïcödé 🐇\t\\N") for n in range(50)]
    add(source, *events)
    record(source, Answer(Outcome.CONFIRMED), Answer(Outcome.RETURNED, "312 NO_ROUTE\n\t\\."))

    copy_publisher(source, target, apply=True)

    assert rows(target) == rows(source)
    times = "extract(epoch FROM accepted_at)::float8, extract(epoch FROM confirmed_at)::float8"
    found = target.execute(f"SELECT {times} FROM outbox ORDER BY position").fetchall()
    assert found == [(AT, AT)] + [(AT, None)] * 49
    with PostgresOutbox(target, "x").batch(100) as batch:
        first = [m.properties.message_id for m in batch.messages]
    # Not the confirmed one; the returned one's pause (by the old clock) is long over or far off.
    assert set(first) == {each.id for each in events[1:8]}


def test_a_repeated_copy_adds_nothing_and_brings_what_has_changed(
    source: sqlite3.Connection, target: Connection
) -> None:
    """New rows, and rows that SQLite's relay has sent since; what PostgreSQL's sent stays so."""
    first, second, third = (event(f"m-{n}") for n in (1, 2, 3))
    add(source, first, second)
    copy_publisher(source, target, apply=True)
    assert copy_publisher(source, target, apply=True) == Copied(
        pending=0, confirmed=0, marked=0, known=2
    )
    with PostgresOutbox(target, "x").batch(2) as batch:
        batch.record([Answer(Outcome.UNKNOWN), Answer(Outcome.CONFIRMED)])

    record(source, Answer(Outcome.CONFIRMED))
    add(source, third)
    assert copy_publisher(source, target) == Copied(pending=1, confirmed=0, marked=1, known=1)
    assert copy_publisher(source, target, apply=True) == Copied(
        pending=1, confirmed=0, marked=1, known=1
    )

    found = target.execute(
        "SELECT event_id, confirmed_at IS NOT NULL FROM outbox ORDER BY position"
    ).fetchall()
    assert found == [(first.id, True), (second.id, True), (third.id, False)]


def test_what_would_come_after_a_newer_event_of_its_material_is_refused(
    source: sqlite3.Connection, target: Connection
) -> None:
    """PostgreSQL has been written to already: the old one would be sent last."""
    add(source, event("m-1", 1), event("m-2", 1))
    with transaction(target) as tx:
        postgres_outbox.add(tx, event("m-1", 2), correlation_id="r", accepted_at=AT + 1)

    assert copy_publisher(source, target).overtaken == 1
    with pytest.raises(DeliveryError, match="1 pending"):
        copy_publisher(source, target, apply=True)
    assert len(rows(target)) == 1


def publish(source: sqlite3.Connection, material: str, key: str) -> Accepted:
    return materials.accept(source, material, COMMAND, key=key)[0]


def test_answered_requests_and_materials_come_along(
    source: sqlite3.Connection, target: Connection
) -> None:
    """A client that repeats its request after the change has the same answer; revisions go on."""
    first, second = publish(source, "m-1", "k-1"), publish(source, "m-1", "k-2")
    found = copy_publisher(source, target, apply=True)
    assert (found.materials, found.requests) == (1, 2)

    assert accept(target, "m-1", COMMAND, key="k-1") == (first, True)
    assert accept(target, "m-1", COMMAND, key="k-2") == (second, True)
    with pytest.raises(KeyReused):
        accept(target, "m-2", COMMAND, key="k-1")
    assert accept(target, "m-1", COMMAND, key="k-3")[0].revision == 3
    kept = "SELECT {} FROM material"
    columns = "material_id, title, slug, author, summary"
    rows_here, rows_there = (s.execute(kept.format(columns)).fetchall() for s in (source, target))
    assert rows_here == rows_there


def test_a_repeated_copy_changes_nothing_of_what_has_gone_on(
    source: sqlite3.Connection, target: Connection
) -> None:
    """Newer revisions stay; what SQLite's API accepted by mistake for other materials comes."""
    publish(source, "m-1", "k-1")
    copy_publisher(source, target, apply=True)
    accept(target, "m-1", COMMAND, key="k-2")
    late = publish(source, "m-2", "k-3")

    assert copy_publisher(source, target, apply=True) == Copied(
        pending=1, confirmed=0, marked=0, known=1, materials=1, requests=1
    )
    assert accept(target, "m-1", COMMAND, key="k-4")[0].revision == 3
    assert accept(target, "m-2", COMMAND, key="k-3") == (late, True)


def test_a_material_that_was_published_on_both_sides_is_refused(
    source: sqlite3.Connection, target: Connection
) -> None:
    """Two events would be its revision 2: no recipient could tell which one is right."""
    publish(source, "m-1", "k-1")
    copy_publisher(source, target, apply=True)
    accept(target, "m-1", COMMAND, key="k-2")
    publish(source, "m-1", "k-3")
    record(source, Answer(Outcome.CONFIRMED), Answer(Outcome.CONFIRMED))

    assert copy_publisher(source, target).forked == 1
    with pytest.raises(DeliveryError, match="published on both sides"):
        copy_publisher(source, target, apply=True)
    assert len(rows(target)) == 2


def test_what_the_relays_may_have_sent_and_removed_is_not_sent_again(
    source: sqlite3.Connection, target: Connection
) -> None:
    """A copy repeated after the retention: nobody can tell whether these rows were there."""
    publish(source, "m-1", "k-1")
    copy_publisher(source, target, apply=True)
    with PostgresOutbox(target, "x").batch(1) as batch:
        batch.record([Answer(Outcome.CONFIRMED)])
    assert forget_sent(target, keep=-60) == 1

    assert copy_publisher(source, target).old == 1
    with pytest.raises(DeliveryError, match="so old"):
        copy_publisher(source, target, apply=True)
    assert rows(target) == []


def test_what_sqlite_has_removed_is_counted_on(
    source: sqlite3.Connection, target: Connection
) -> None:
    """Its receipts are still there, and must not look like receipts for nothing; once."""
    source.execute("INSERT INTO outbox_removed VALUES (1, 5, 1700000000.0)")
    for _ in range(2):
        copy_publisher(source, target, apply=True)
    assert removed(target) == (5, 1_700_000_000.0)


def test_while_it_is_copied_writers_wait_and_relays_do_not(
    source: sqlite3.Connection, target: Connection, database: str
) -> None:
    """A relay that could not mark what the broker has confirmed would send it again."""
    add(source, event("m-1"))
    with transaction(target) as tx:
        postgres_outbox.add(tx, event("m-2"), correlation_id="r", accepted_at=AT)
    seen = []

    def meanwhile() -> None:
        with closing(open_postgres(database, *SCHEMAS)) as other:
            other.execute("SET lock_timeout = 50")
            with PostgresOutbox(other, "x").batch(9) as batch:
                batch.record([Answer(Outcome.CONFIRMED)] * len(batch.messages))
            seen.append(len(batch.messages))
            with pytest.raises(StoreUnavailable):
                accept(other, "m-3", COMMAND, key="k-1")
            seen.append(read_page(other).last)  # what is being copied is not settled yet

    arm("copy.written", meanwhile)
    copy_publisher(source, target, apply=True)
    assert seen == [1, 1]
    assert accept(target, "m-3", COMMAND, key="k-1")[0].revision == 1
    assert read_page(target).last == 3


def delivery(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "delivery", "--data", str(folder), "postgres", *words]
    kept = {k: v for k, v in os.environ.items() if k != "DELIVERY_POSTGRES_URL"}
    return subprocess.run(command, env=kept | environ, capture_output=True, text=True, timeout=60)


def test_the_command_plans_and_copies(
    source: sqlite3.Connection, target: Connection, tmp_path: Path, database: str
) -> None:
    """The URL may come from the environment."""
    add(source, event("m-1"), event("m-2"))
    planned = delivery(tmp_path, "copy", DELIVERY_POSTGRES_URL=database)
    assert planned.stdout.startswith("plan: 2 pending and 0 confirmed rows to add"), planned.stderr
    assert rows(target) == []
    copied = delivery(tmp_path, "copy", "--apply", DELIVERY_POSTGRES_URL=database)
    assert copied.stdout.startswith("copied: 2 pending"), copied.stderr
    assert rows(target) == rows(source)


def test_the_command_says_what_is_in_its_way(
    source: sqlite3.Connection, tmp_path: Path, database: str
) -> None:
    """A relay at work, no file, no database, no URL: one sentence each."""
    path = Stores(tmp_path).path(PUBLISHER)
    with only_relay(path):
        assert (
            "another relay has this outbox" in delivery(tmp_path, "copy", "--url", database).stderr
        )
    nowhere = tmp_path / "nowhere"
    for folder, url, words in (
        (nowhere, database, "there is no publisher's file"),
        (tmp_path, "postgresql://127.0.0.1:1/x", "the database can't be used"),
        (tmp_path, "nonsense=1", "the database's URL can't be read"),
    ):
        ended = delivery(folder, "copy", "--url", url)
        (line,) = ended.stderr.splitlines()
        assert line.startswith(f"error: {words}")
        assert ended.returncode == 1
    served = delivery(tmp_path, "api", "--url", "nonsense=1", "--port", "0")
    assert (served.returncode, served.stderr) == (1, ended.stderr)
    assert not nowhere.exists()
    assert delivery(tmp_path, "copy").returncode == 2


def test_nothing_is_copied_while_an_api_accepts(
    source: sqlite3.Connection, target: Connection, tmp_path: Path, database: str
) -> None:
    """What it accepts after the copy would have no relay; and no API starts during one."""
    add(source, event("m-1"))
    cast = Cast(["--data", str(tmp_path)], environment(), tmp_path / "logs")
    with cast.curtain():
        for name in ("first", "second"):  # several may serve one file
            cast.start(name, ["api", "--port", "0"]).await_event("api.ready")
        assert delivery(tmp_path, "copy", "--url", database).returncode == 0  # plans only
        for name in ("first", "second"):
            refused = delivery(tmp_path, "copy", "--apply", "--url", database)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert refused.stderr.startswith("error: `delivery api` still accepts into")
            assert "stop it first" in refused.stderr
            assert rows(target) == []
            assert cast.stop(name) == 0
        with unserved(Stores(tmp_path).path(PUBLISHER)):
            late = cast.start("late", ["api", "--port", "0"])
            assert late.process.wait(30) == 1
            wait_for(lambda: "is being copied to PostgreSQL" in late.log(), "it says why")
        assert delivery(tmp_path, "copy", "--apply", "--url", database).returncode == 0
    assert rows(target) == rows(source)


def test_the_right_to_create_tables_is_needed_once(database: str, namespace: str) -> None:
    """Who may only read and write the tables that are there accepts, sends and clears up."""
    user = f"{namespace}_user"
    limited = f"{database}%20-crole%3D{user}"
    with closing(open_postgres(database)) as owner:
        owner.execute(f"CREATE ROLE {user}".encode())
        owner.execute(f"GRANT USAGE ON SCHEMA {namespace} TO {user}".encode())
        try:
            with pytest.raises(DeliveryError, match="permission denied for schema"):
                open_postgres(limited, *SCHEMAS)
            open_postgres(database, *SCHEMAS).close()
            for right in (
                "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES",
                "USAGE, SELECT ON ALL SEQUENCES",
            ):
                owner.execute(f"GRANT {right} IN SCHEMA {namespace} TO {user}".encode())
            with closing(open_postgres(limited, *SCHEMAS)) as store:
                accept(store, "m-1", COMMAND, key="k-1")
                with PostgresOutbox(store, "x").batch(1) as batch:
                    batch.record([Answer(Outcome.CONFIRMED)])
                assert forget_sent(store, keep=-60) == 1
        finally:
            owner.execute(f"DROP OWNED BY {user}".encode())
            owner.execute(f"DROP ROLE {user}".encode())


def test_a_recipient_in_postgresql_is_named_with_its_url() -> None:
    """One that does not exist is refused."""
    given = ["audit=postgresql://u:p@h/d?options=-cx%3Dy", "catalog=postgresql://h/c"]
    assert inboxes_of(given) == {
        "audit": "postgresql://u:p@h/d?options=-cx%3Dy",
        "catalog": "postgresql://h/c",
    }
    with pytest.raises(DeliveryError, match="nobody"):
        inboxes_of(["nobody=postgresql://h/d"])


def test_the_group_is_there() -> None:
    assert cli.app
    assert {command.name for command in commands_postgres.postgres_app.registered_commands} == {
        *("api", "relay", "receive", "ledger", "copy", "status", "trace", "reconcile"),
    }
