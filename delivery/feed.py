"""Read what the publisher accepted, page by page, in the order in which it was accepted."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from delivery.errors import DeliveryError
from delivery.store import reading

__all__ = ["PAGE_LIMIT", "Feed", "Page", "Published", "page_of", "pages", "read_page", "store_feed"]

PAGE_LIMIT = 1_000  # events in one page, at most: what a reader and a writer hold in memory


class Published(BaseModel):
    """One accepted event; times are Unix seconds by the publisher's clock."""

    model_config = ConfigDict(frozen=True)

    position: int = Field(description="Where it stands; it grows with every accepted event.")
    event_id: str
    event_type: str
    correlation_id: str
    accepted_at: float
    confirmed_at: float | None = Field(description="When the broker took it; null: not yet.")
    body: str = Field(description="The event itself, as it is sent: JSON.")
    traceparent: str | None = Field(None, description="W3C trace context of the request.")


class Page(BaseModel):
    """The events after a position, oldest first; an empty page is the end."""

    model_config = ConfigDict(frozen=True)

    read_at: float = Field(description="The publisher's clock when it was asked, Unix seconds.")
    last: int = Field(description="The highest position of all, on this page or not.")
    events: list[Published]


Feed = Callable[[int], Page]  # the page after a position


def read_page(store: sqlite3.Connection, *, after: int = 0, limit: int = PAGE_LIMIT) -> Page:
    """Return at most *limit* events behind position *after*. Raises StoreUnavailable.

    Positions are given inside the one write transaction that SQLite allows at a time, so none
    turns up later behind a reader.
    """
    columns = ", ".join(Published.model_fields)
    with reading():
        rows = store.execute(
            f"SELECT {columns} FROM outbox WHERE position > ? ORDER BY position LIMIT ?",  # noqa: S608
            (after, limit),
        ).fetchall()
        (last,) = store.execute("SELECT coalesce(max(position), 0) FROM outbox").fetchone()
    return page_of(rows, last=last, read_at=time.time())


def page_of(rows: Iterable[Sequence[object]], *, last: int, read_at: float) -> Page:
    """Return the page of *rows*, each with the fields of Published in their order."""
    events = []
    for row in rows:
        fields: dict[str, Any] = dict(zip(Published.model_fields, row, strict=True))
        # Bytes that are no UTF-8 are no event; with escapes in them they are none either.
        fields["body"] = fields["body"].decode("utf-8", "backslashreplace")
        events.append(Published(**fields))
    return Page(read_at=read_at, last=last, events=events)


def store_feed(store: sqlite3.Connection, *, limit: int = PAGE_LIMIT) -> Feed:
    """Return the feed that reads the publisher's own store."""
    return lambda after: read_page(store, after=after, limit=limit)


def pages(feed: Feed) -> Iterator[Page]:
    """Give the pages of what was accepted until now; what comes meanwhile is for the next time.

    Raises DeliveryError for positions that do not grow: such a feed would have no end.
    """
    last, page = 0, feed(0)
    until = page.last  # not by time: a publisher's clock may have been wrong for a while
    while page.events:
        positions = [last, *(each.position for each in page.events)]
        if any(first >= second for first, second in pairwise(positions)):
            raise DeliveryError(f"the feed repeats itself: after position {last} came an older one")
        yield page
        last = positions[-1]
        if last >= until:
            return
        page = feed(last)
