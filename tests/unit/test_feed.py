"""The publisher's feed: every accepted event once, in order, by pages, from a file or by HTTP."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from support.answering import answering
from support.events import event
from support.exchange import delivery, environment

from delivery import outbox
from delivery.cast import Cast
from delivery.codec import decode, encode
from delivery.errors import DeliveryError
from delivery.feed import Page, pages, read_page, store_feed
from delivery.feed_client import FeedUnavailable, http_feed
from delivery.store import StoreUnavailable, transaction
from delivery.stores import PUBLISHER, Stores


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(Stores(tmp_path / "data").open(PUBLISHER)) as opened:
        yield opened


def accepted(store: sqlite3.Connection, count: int, *, confirmed: bool = True) -> list[str]:
    events = [event(f"m-{number}") for number in range(count)]
    now = time.time()
    with transaction(store) as tx:
        for each in events:
            outbox.add(tx, each, correlation_id="request", accepted_at=now)
            if confirmed:
                tx.execute("UPDATE outbox SET confirmed_at = ? WHERE event_id = ?", (now, each.id))
    return [each.id for each in events]


def ids(found: list[Page]) -> list[str]:
    return [each.event_id for page in found for each in page.events]


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
def test_every_event_is_given_once_in_order_whatever_the_page(store, limit: int) -> None:
    """Also where the last page is full, and where positions have gaps."""
    events = accepted(store, 8)
    store.execute("DELETE FROM outbox WHERE event_id = ?", (events.pop(2),))

    found = list(pages(store_feed(store, limit=limit)))

    assert ids(found) == events
    assert all(0 < len(page.events) <= limit for page in found)


def test_what_is_accepted_meanwhile_does_not_keep_a_reader_for_ever(store) -> None:
    """A publisher that is faster than the reader: it ends with what was there when it began."""
    before, after = accepted(store, 4), []
    begun = time.monotonic()
    found = []
    for page in pages(store_feed(store, limit=2)):
        found.append(page)
        after += accepted(store, 2)
        assert time.monotonic() < begun + 10
    assert ids(found)[:4] == before
    assert len(ids(found)) <= 6


def test_a_page_says_what_a_reader_needs(store) -> None:
    """Body byte-equal, the confirmation or its absence, the publisher's own clock."""
    accepted(store, 1)
    (pending,) = accepted(store, 1, confirmed=False)
    page = read_page(store)
    bodies = store.execute("SELECT body FROM outbox ORDER BY position").fetchall()

    assert [(each.body.encode(),) for each in page.events] == bodies
    assert encode(decode(page.events[0].body.encode())) == bodies[0][0]
    assert [each.confirmed_at is None for each in page.events] == [False, True]
    assert page.events[1].event_id == pending
    assert abs(page.read_at - time.time()) < 5
    assert Page.model_validate_json(page.model_dump_json()) == page


def test_a_publisher_whose_clock_was_ahead_ends_no_reading_early(store) -> None:
    """Where the feed ends is told by position: a time may be wrong."""
    events = accepted(store, 3)
    store.execute("UPDATE outbox SET accepted_at = accepted_at + 600 WHERE position = 1")
    assert ids(pages(store_feed(store, limit=1))) == events


def test_bytes_that_are_no_text_hide_no_other_event(store) -> None:
    """A row that somebody damaged is given as what it is: no event."""
    events = accepted(store, 3)
    store.execute("UPDATE outbox SET body = x'ff7b' WHERE event_id = ?", (events[1],))
    page = read_page(store)
    assert ids([page]) == events
    with pytest.raises(DeliveryError):
        decode(page.events[1].body.encode())


def test_a_feed_whose_store_cannot_be_read_says_so(tmp_path: Path) -> None:
    """Not a page that looks like the end."""
    path = tmp_path / "publisher.sqlite3"
    path.write_bytes(b"not a database " * 400)
    with closing(sqlite3.connect(path)) as broken, pytest.raises(StoreUnavailable):
        read_page(broken)


def test_a_feed_that_repeats_itself_is_refused(store) -> None:
    """Its reader would never come to an end."""
    accepted(store, 3)
    with pytest.raises(DeliveryError, match="repeats itself"):
        list(pages(lambda after: read_page(store, after=max(0, after - 1), limit=2)))


# -- over HTTP


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """An API process; gives its address."""
    cast = Cast(["--data", str(folder / "data")], environment(), folder / "logs")
    with cast.curtain():
        actor = cast.start("api", ["api", "--port", "0"])
        yield actor.await_event("api.ready").rpartition("url=")[2].strip()
        assert "Traceback" not in actor.log()


def test_over_http_it_is_the_same_feed(tmp_path: Path) -> None:
    """The API's pages, in any size, are the store's."""
    with serving(tmp_path) as url, closing(Stores(tmp_path / "data").open(PUBLISHER)) as store:
        events = accepted(store, 25)
        for limit in (1, 10, 25, 1000):
            assert ids(list(pages(http_feed(url, limit=limit)))) == events
        (shown,) = pages(http_feed(f"{url}/"))
        assert shown.events == read_page(store).events


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", "after=9223372036854775808", "limit=0", "limit=1001", "limit="]
)
def test_a_page_that_cannot_be_is_a_problem(query: str, api: str) -> None:
    """problem+json, 422, and which parameter it was."""
    answer = httpx.get(f"{api}/publications?{query}", trust_env=False)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert query.split("=")[0] in answer.json()["detail"]


def test_the_feed_is_described(api: str) -> None:
    """openapi.json names the parameters, their limits and the fields of an event."""
    described = httpx.get(f"{api}/openapi.json", trust_env=False).json()
    get = described["paths"]["/publications"]["get"]
    limits = {each["name"]: each["schema"] for each in get["parameters"]}
    assert limits["limit"]["maximum"] == 1000
    assert limits["after"]["minimum"] == 0
    fields = described["components"]["schemas"]["Published"]["properties"]
    assert set(fields) >= {"position", "accepted_at", "confirmed_at", "body", "event_id"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.mark.parametrize(
    ("status", "body", "word"),
    [
        (200, b"<html>", "no feed of publications"),
        (200, b"{}", "no feed of publications"),
        (200, b"\xff", "no feed of publications"),
        (200, json.dumps({"read_at": 1, "events": [{}]}).encode(), "no feed of publications"),
        (503, b'{"detail": "the store is locked"}', "503: the store is locked"),
        (404, b"nothing", "404"),
        (500, b"[]", "500"),
    ],
)
def test_something_else_answers(status: int, body: bytes, word: str) -> None:
    """One sentence that names the address; never an empty feed, never a loop without end."""
    with answering(status, body) as url:
        with pytest.raises(FeedUnavailable, match=word) as raised:
            list(pages(http_feed(url)))
        assert url in str(raised.value)


def test_nobody_answers() -> None:
    """What to start, and where."""
    with pytest.raises(FeedUnavailable, match="delivery api"):
        http_feed("http://127.0.0.1:9")(0)


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8080", "file:///etc/passwd", "http://", "ftp://x", "http://[", "http://a b", ""],
)
def test_an_address_that_is_none(url: str) -> None:
    """Said before anything is read, and no file is opened as if it were a feed."""
    with pytest.raises(DeliveryError) as raised:
        http_feed(url)(0)
    assert url in str(raised.value)


def test_without_a_publisher_here_the_way_to_one_is_said(tmp_path: Path) -> None:
    """A recipient's own machine has no publisher's file, and none is made."""
    data = tmp_path / "data"
    ended = delivery(
        "--data",
        str(data),
        "reconcile",
        "audit",
        environ=environment(DELIVERY_AMQP_URL="amqp://127.0.0.1:9"),
    )
    assert ended.returncode == 1
    assert "--feed http://" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (data / "publisher.sqlite3").exists()
