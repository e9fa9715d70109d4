"""Two databases, one API: what a publisher in SQLite answers, one in PostgreSQL answers, too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.events import event
from support.waiting import wait_for

from delivery import postgres_outbox, retention
from delivery.api import create_app
from delivery.codec import decode
from delivery.contract import PublishMaterial
from delivery.feed import pages
from delivery.handling import Effect
from delivery.inbox import once
from delivery.materials import Accepted, Request
from delivery.postgres import Connection, open_postgres, savepoint, transaction
from delivery.postgres_materials import accept
from delivery.postgres_pool import MOST
from delivery.postgres_publisher import SCHEMAS, PostgresPublisher
from delivery.publisher_store import PublisherStore, SqlitePublisher
from delivery.routes import Route
from delivery.store import StoreUnavailable
from delivery.stores import PUBLISHER, Stores
from delivery.tracing import standings, trace_with

T = TypeVar("T")
BODY = {"title": "Ünïcödé 🐇", "slug": "where-is-it", "author": "A reader"}


LOOP = asyncio.new_event_loop()  # a server has one, whoever asks
threading.Thread(target=LOOP.run_forever, daemon=True).start()


def in_the_loop(asking: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(asking, LOOP).result(60)


@dataclass
class Side:
    """A publisher, the API on it, and its database to look into."""

    publisher: PublisherStore
    client: Client
    stores: Stores
    execute: Callable[[str], Any]
    forget: Callable[[], object]
    refuse: tuple[str, ...]  # statements after which the database refuses the request "bad"

    def publish(self, material: str, body: Any = BODY, *, key: str = "") -> httpx.Response:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self.client.post(f"/materials/{material}/publish", json=body, headers=headers)

    def accept(self, material: str, key: str) -> tuple[Accepted, bool]:
        command = PublishMaterial(title="T", slug="s", author="A")
        return in_the_loop(self.publisher.accept(Request(material, command, key, "00-1")))

    def counts(self) -> dict[str, int]:
        tables = ("material", "request", "outbox")
        return {t: self.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables}


def sqlite_side(folder: Path) -> Iterator[Side]:
    stores = Stores(folder)
    publisher = SqlitePublisher(lambda: stores.open(PUBLISHER), trace_with(stores.inboxes()))
    with closing(stores.open(PUBLISHER)) as store:
        refuse = (
            "CREATE TRIGGER refuse BEFORE INSERT ON request WHEN NEW.idempotency_key = 'bad'"
            " BEGIN SELECT RAISE(ABORT, 'refused'); END",
        )
        yield Side(
            publisher,
            Client(publisher),
            stores,
            store.execute,
            lambda: retention.forget_sent(store, before=4e9),
            refuse,
        )


def postgres_side(folder: Path, url: str) -> Iterator[Side]:
    stores = Stores(folder)
    with (
        closing(PostgresPublisher(url, partial(standings, stores.inboxes()))) as publisher,
        closing(open_postgres(url)) as store,
    ):
        refuse = ("ALTER TABLE request ADD CHECK (idempotency_key <> 'bad')",)
        yield Side(
            publisher,
            Client(publisher),
            stores,
            lambda query: store.execute(query.encode()),
            lambda: postgres_outbox.forget_sent(store, keep=-9),
            refuse,
        )


class Client:
    """Asks the application itself: no process, no socket."""

    def __init__(self, publisher: PublisherStore) -> None:
        self._app = create_app(publisher)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return in_the_loop(self._ask("GET", path, **more))

    def post(self, path: str, **more: Any) -> httpx.Response:
        return in_the_loop(self._ask("POST", path, **more))

    async def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", trust_env=False
        ) as client:
            return await client.request(method, path, **more)


@pytest.fixture(params=["sqlite", "postgres"])
def side(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Side]:
    if request.param == "sqlite":
        yield from sqlite_side(tmp_path)
    else:
        yield from postgres_side(tmp_path, request.getfixturevalue("database"))


@pytest.fixture
def alone(tmp_path: Path, database: str) -> Iterator[Side]:
    yield from postgres_side(tmp_path, database)


def test_a_202_is_material_request_and_event(side: Side) -> None:
    """All three, in one transaction; the answer says where to follow it."""
    first, second = side.publish("m-1", key="k-1"), side.publish("m-1")

    assert (first.status_code, second.status_code) == (202, 202)
    assert (first.json()["revision"], second.json()["revision"]) == (1, 2)
    assert side.counts() == {"material": 1, "request": 2, "outbox": 2}
    row = "SELECT event_id, body, correlation_id, subject FROM outbox ORDER BY position"
    event_id, body, key, subject = side.execute(row).fetchone()
    found = decode(bytes(body))
    assert (found.id, found.data.title, found.data.revision) == (event_id, BODY["title"], 1)
    assert (event_id, key, subject) == (first.json()["event_id"], "k-1", "m-1")
    assert side.client.get(first.headers["location"]).json()["event_id"] == event_id


def test_a_repeated_request_has_its_first_answer(side: Side) -> None:
    """Also after newer revisions; and it adds nothing."""
    first = side.publish("m-1", {**BODY, "expected_revision": 0}, key="k-1")
    side.publish("m-1")
    again = side.publish("m-1", {**BODY, "expected_revision": 0}, key="k-1")

    assert (again.status_code, again.content) == (202, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert side.counts() == {"material": 1, "request": 2, "outbox": 2}


def test_a_key_that_was_used_for_something_else_is_refused(side: Side) -> None:
    """Another body or another material."""
    side.publish("m-1", key="k-1")
    for material, body in (("m-1", {**BODY, "title": "Other"}), ("m-2", BODY)):
        answer = side.publish(material, body, key="k-1")
        assert (answer.status_code, "k-1" in answer.json()["detail"]) == (422, True)
    assert side.counts() == {"material": 1, "request": 1, "outbox": 1}


def test_a_command_for_another_revision_is_a_conflict(side: Side) -> None:
    """It leaves nothing behind, so its key may be used again."""
    answer = side.publish("m-1", {**BODY, "expected_revision": 5}, key="k-1")
    assert answer.status_code == 409
    assert "is at revision 0, not 5" in answer.json()["detail"]
    assert side.counts() == {"material": 0, "request": 0, "outbox": 0}
    assert side.publish("m-1", {**BODY, "expected_revision": 0}, key="k-1").status_code == 202
    assert side.publish("m-1", {**BODY, "expected_revision": 1}).json()["revision"] == 2


def test_what_fails_before_the_commit_leaves_nothing(side: Side) -> None:
    """Not the material without its event, nor the event without its request."""
    for statement in side.refuse:
        side.execute(statement)
    assert side.publish("m-1", key="bad").status_code == 500
    assert side.counts() == {"material": 0, "request": 0, "outbox": 0}
    assert side.publish("m-1", key="good").json()["revision"] == 1


def test_ten_twins_at_once_are_one_publication(side: Side) -> None:
    """One of them is not a repetition."""
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda _: side.accept("m-1", "k-1"), range(10)))

    assert len({answer for answer, _ in found}) == 1
    assert sorted(repeated for _, repeated in found) == [False] + [True] * 9
    assert side.counts() == {"material": 1, "request": 1, "outbox": 1}


def test_ten_commands_at_once_get_ten_revisions(side: Side) -> None:
    """And positions in the order of the revisions."""
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda n: side.accept("m-1", f"k-{n}"), range(10)))

    assert sorted(answer.revision for answer, _ in found) == list(range(1, 11))
    shown = side.publisher.page(after=0, limit=100).events
    assert [decode(each.body.encode()).data.revision for each in shown] == list(range(1, 11))


def test_a_file_put_in_the_stores_place_is_no_store_for_any_thread(tmp_path: Path) -> None:
    """A thread that opens its connection only then would say 202 into it."""
    stores = Stores(tmp_path)
    publisher = SqlitePublisher(lambda: stores.open(PUBLISHER), trace_with(stores.inboxes()))
    publisher.check()
    for file in tmp_path.glob("publisher.sqlite3*"):
        file.unlink()
    stores.open(PUBLISHER).close()

    with ThreadPoolExecutor(1) as pool, pytest.raises(StoreUnavailable, match="replaced"):
        pool.submit(publisher.check).result()


def test_the_feed_gives_everything_once_and_in_order(side: Side) -> None:
    """Page by page, through the API; the fields are those of the row."""
    events = [side.publish(f"m-{n % 3}").json()["event_id"] for n in range(7)]

    def page(after: int) -> Any:
        found = side.client.get("/publications", params={"after": after, "limit": 3})
        return found.json()

    first = page(0)
    assert [each["event_id"] for each in first["events"]] == events[:3]
    one = first["events"][0]
    assert json.loads(one["body"])["id"] == events[0]
    assert (one["confirmed_at"], one["event_type"]) == (None, "material.published.v1")
    assert abs(first["read_at"] - one["accepted_at"]) < 60
    by_pages = pages(lambda after: side.publisher.page(after=after, limit=3))
    assert [each.event_id for found in by_pages for each in found.events] == events
    assert page(first["last"])["events"] == []


def test_a_publication_is_followed_by_three_names(side: Side) -> None:
    """Its own id, its request's, its material's; and in the recipients' stores."""
    first = side.publish("m-1", key="a/key").json()["event_id"]
    second = side.publish("m-1").json()["event_id"]
    with closing(side.stores.open("catalog")) as inbox:
        once(Route("catalog"), lambda _event, _tx: Effect.STALE)(event(event_id=second), inbox)

    by_event = side.client.get(f"/publications/{first}").json()
    assert (by_event["matched_by"], by_event["events"]) == ("event_id", [first])
    assert (by_event["attempts"], by_event["outcome"], by_event["revision"]) == (0, None, 1)
    assert (by_event["confirmed_at"], by_event["next_attempt_at"]) == (None, None)
    by_request = side.client.get("/publications/a/key").json()
    assert (by_request["event_id"], by_request["matched_by"]) == (first, "request_id")
    by_material = side.client.get("/publications/m-1").json()
    assert (by_material["matched_by"], by_material["events"]) == ("material_id", [first, second])
    states = {name: each["state"] for name, each in by_material["recipients"].items()}
    assert states == {"catalog": "settled", "audit": "not visible"}
    for unknown in ("nobody", "%FF%00", "x" * 4000):
        assert side.client.get(f"/publications/{unknown}").status_code == 404, unknown


def test_a_row_that_failed_says_when_it_is_tried_again(side: Side) -> None:
    """A confirmed one does not."""
    event_id = side.publish("m-1").json()["event_id"]
    future = {"sqlite": "4000000000", "postgres": "to_timestamp(4000000000)"}
    on = "sqlite" if isinstance(side.publisher, SqlitePublisher) else "postgres"
    side.execute(
        "UPDATE outbox SET attempts = 2, outcome = 'returned', detail = '312 NO_ROUTE',"
        f" next_attempt_at = {future[on]}"
    )
    found = side.client.get(f"/publications/{event_id}").json()
    assert (found["attempts"], found["outcome"], found["detail"]) == (2, "returned", "312 NO_ROUTE")
    assert found["next_attempt_at"] == 4e9
    side.execute(f"UPDATE outbox SET confirmed_at = {future[on]}")
    found = side.client.get(f"/publications/{event_id}").json()
    assert (found["confirmed_at"], found["next_attempt_at"]) == (4e9, None)


def test_what_is_counted_is_counted_for_ever(side: Side) -> None:
    """By the last outcome; rows that were removed go on counting, and free their keys."""
    assert side.client.get("/status").json()["oldest_pending"] is None
    for n in range(3):
        side.publish("m-1", key=f"k-{n}")
    at = "1" if isinstance(side.publisher, SqlitePublisher) else "to_timestamp(1)"
    side.execute(
        f"UPDATE outbox SET confirmed_at = {at}, outcome = 'confirmed' WHERE correlation_id = 'k-0'"
    )
    side.execute("UPDATE outbox SET outcome = 'unknown' WHERE correlation_id = 'k-1'")

    before = side.client.get("/status").json()
    side.forget()
    after = side.client.get("/status").json()

    for status in (before, after):
        assert (status["accepted"], status["confirmed"]) == (3, 1)
        assert status["pending"] == {"not tried": 1, "unknown": 1}
        assert status["oldest_pending"]["outcome"] == "unknown"
        assert 0 <= status["oldest_pending_seconds"] < 60
    assert side.counts() == {"material": 1, "request": 2, "outbox": 2}
    assert side.publish("m-1", key="k-0").json()["revision"] == 4
    text = side.client.get("/metrics").text
    values = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
    assert values["delivery_publications_accepted_total"] == 4
    assert values["delivery_publications_confirmed_total"] == 1


def test_ready_means_that_a_command_could_be_committed(side: Side) -> None:
    """Alive and ready are two questions."""
    assert side.client.get("/readyz").json() == {"status": "ready"}
    assert side.client.get("/healthz").json() == {"status": "alive"}


# -- PostgreSQL alone


def sessions(database: str) -> list[int]:
    query = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'delivery api'"
        " AND pid <> pg_backend_pid()"
    )
    with psycopg.connect(database) as store:
        return [pid for (pid,) in store.execute(query).fetchall()]


def test_a_database_that_was_away_is_asked_again(alone: Side, database: str) -> None:
    """Sessions that the server has ended cost no request: they are seen before they are used."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: alone.publish("m-1"), range(8)))
    before = sessions(database)
    with psycopg.connect(database, autocommit=True) as store:
        store.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", (before,))
    wait_for(lambda: not set(sessions(database)) & set(before), "they are ended")
    answers = [alone.publish("m-1").status_code for _ in range(len(before) + 2)]
    assert set(answers) == {202}


def test_many_requests_share_a_few_sessions(alone: Side, database: str) -> None:
    """The server has a process for each session."""
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda n: alone.publish(f"m-{n}"), range(60)))
    assert {answer.status_code for answer in answers} == {202}
    # Those of a publisher that was closed before may take a moment to go.
    wait_for(lambda: len(sessions(database)) <= MOST, "there are no more than that")


def test_a_database_that_takes_no_write_is_not_ready(alone: Side, database: str) -> None:
    """As a replica does: 503 for what writes, while what only reads is answered."""
    url = f"{database}%20-cdefault_transaction_read_only%3Don"
    alone.publish("m-1")
    with closing(PostgresPublisher(url, lambda event_id: {})) as replica:
        asked = Client(replica)
        assert asked.get("/readyz").status_code == 503
        assert asked.get("/status").json()["accepted"] == 1
        with pytest.raises(StoreUnavailable):
            replace(alone, publisher=replica).accept("m-1", "k")


def test_the_feed_waits_for_a_lower_position_that_is_not_committed(
    alone: Side, database: str
) -> None:
    """A cursor by position would go past it. Those before it are given, and all when it is over."""

    def seen() -> list[str]:
        return [each.event_id for each in alone.publisher.page(after=0, limit=100).events]

    before = alone.accept("m-1", "k-1")[0].event_id
    with closing(open_postgres(database)) as slow:
        with transaction(slow) as tx:
            late = event("m-2")
            postgres_outbox.add(tx, late, correlation_id="r", accepted_at=1.0)
            after = alone.accept("m-3", "k-3")[0].event_id
            assert seen() == [before]
            assert alone.publisher.page(after=0, limit=100).last == 1
        assert seen() == [before, late.id, after]
        with contextlib.suppress(RuntimeError), transaction(slow) as tx:
            postgres_outbox.add(tx, event("m-2"), correlation_id="r", accepted_at=1.0)
            last = alone.accept("m-3", "k-4")[0].event_id
            raise RuntimeError
    assert seen() == [before, late.id, after, last]  # one position is never used


def test_a_transaction_that_adds_much_holds_one_mark(alone: Side, database: str) -> None:
    """A server has some thousands of locks; and the mark ends with what it is about."""
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"

    def locks(store: Connection) -> int:
        row = store.execute(held.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def put(tx: Connection) -> str:
        made = event("m-1")
        postgres_outbox.add(tx, made, correlation_id="r", accepted_at=1.0)
        return made.id

    with closing(open_postgres(database)) as slow:
        for _ in range(2):
            with transaction(slow) as tx:
                with contextlib.suppress(RuntimeError), savepoint(tx):
                    put(tx)
                    raise RuntimeError
                first = put(tx)
                one = locks(tx)
                second = put(tx)
                assert locks(tx) == one == 3  # the material, the copies, the mark
                before = alone.publisher.page(after=0, limit=100)
                alone.accept("m-2", uuid.uuid4().hex)
                assert alone.publisher.page(after=0, limit=100).events == before.events
            found = alone.publisher.page(after=0, limit=100).events
            assert [each.event_id for each in found][-3:-1] == [first, second]


def test_readers_of_the_feed_beside_writers_miss_nothing(alone: Side, database: str) -> None:
    """Four writers, and a reader that follows them by the last position that it has seen."""
    done = threading.Event()
    read: list[str] = []

    def follow() -> None:
        last = 0
        while True:
            ended = done.is_set()
            events = alone.publisher.page(after=last, limit=7).events
            read.extend(each.event_id for each in events)
            last = events[-1].position if events else last
            if ended and not events:
                return

    def write(number: int) -> list[str]:
        command = PublishMaterial(title="T", slug="s", author="A")
        with closing(open_postgres(database, *SCHEMAS)) as store:
            return [
                accept(store, f"m-{number}", command, key=f"k-{number}-{n}")[0].event_id
                for n in range(50)
            ]

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(follow)
        try:
            written = [each for found in pool.map(write, range(4)) for each in found]
        finally:
            done.set()
        reader.result(30)
    assert sorted(read) == sorted(written)
    assert len(read) == 200
