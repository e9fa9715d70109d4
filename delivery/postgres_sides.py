"""What an operator asks of a publisher and its recipients, answered by PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import psycopg

from delivery import postgres_decisions, postgres_feed, postgres_inbox, postgres_trail
from delivery.decisions import Decision
from delivery.errors import DeliveryError
from delivery.feed import Feed
from delivery.inbox import Receipt
from delivery.journey import NOT_VISIBLE, standing_by
from delivery.postgres import Connection, open_postgres, reading
from delivery.postgres_failures import failures_of
from delivery.postgres_publisher import SCHEMAS as PUBLISHER
from delivery.postgres_rates import publisher_rates, receipts
from delivery.postgres_receiver import SCHEMAS as RECIPIENTS
from delivery.sides import PublisherSide, RecipientSide, Sides
from delivery.trail import Action

__all__ = ["postgres_sides"]

NAME = "delivery operator"


def postgres_sides(url: str, inboxes: Mapping[str, str], others: Sides) -> Sides:
    """Return the publisher's side at *url*, each recipient's at its URL in *inboxes*.

    What *inboxes* does not name is in *others*.
    """

    def recipient(name: str) -> RecipientSide:
        return _Recipient(inboxes[name], name) if name in inboxes else others.recipient(name)

    def counted(name: str) -> dict[str, Any] | None:
        return _receipts(inboxes[name], name) if name in inboxes else others.receipts(name)

    def standings(name: str, events: Sequence[str]) -> list[dict[str, Any]]:
        if name not in inboxes:
            return others.standings(name, events)
        return _standings(inboxes[name], name, events)

    def publisher() -> PublisherSide:
        return _Publisher(open_postgres(url, *PUBLISHER, name=NAME))

    return Sides(publisher, recipient, counted, standings, "delivery postgres")


class _Publisher:
    def __init__(self, store: Connection) -> None:
        self._store = store
        self.close = store.close
        self.find = partial(postgres_feed.find_events, store)
        self.row = partial(postgres_feed.row_of, store)
        self.entries = partial(postgres_trail.entries, store)

    def summary(self) -> dict[str, Any]:
        return postgres_feed.outbox_summary(self._store) | publisher_rates(self._store)

    def begin(
        self,
        action: Action,
        recipient: str,
        messages: Iterable[tuple[str, str]],
        *,
        operator: str,
        reason: str,
    ) -> list[int]:
        why = {"operator": operator, "reason": reason}
        return postgres_trail.begin_all(self._store, action, recipient, messages, **why)

    def conclude(self, results: Iterable[tuple[int, str]]) -> None:
        postgres_trail.conclude(self._store, results)

    def feed(self, *, limit: int) -> Feed:
        return lambda after: postgres_feed.read_page(self._store, after=after, limit=limit)


class _Recipient:
    def __init__(self, url: str, name: str) -> None:
        self._name = name
        self._store = open_postgres(url, *RECIPIENTS[name], name=NAME)
        self.close = self._store.close
        self.record_replay = partial(postgres_decisions.record_replay, self._store, name)
        self.record_drop = partial(postgres_decisions.record_drop, self._store, name)

    def pruned(self) -> float:
        with reading():
            return postgres_inbox.pruned_before(self._store, self._name)

    def receipt(self, message_id: str) -> Receipt | None:
        with reading():
            return postgres_inbox.receipt_of(self._store, self._name, message_id)

    def decisions(self, message_id: str) -> list[Decision]:
        with reading():
            return postgres_decisions.decisions_on(self._store, message_id)


# As with SQLite's files, these two change nothing: they create no table, and may meet older ones.


def _receipts(url: str, name: str) -> dict[str, Any] | None:
    try:
        with closing(open_postgres(url, name=NAME)) as store:
            return receipts(store, name)
    except (DeliveryError, psycopg.Error):
        return None


def _standings(url: str, name: str, events: Sequence[str]) -> list[dict[str, Any]]:
    try:
        with closing(open_postgres(url, name=NAME)) as store:
            return [_standing(store, name, each) for each in events]
    except (DeliveryError, psycopg.Error) as error:
        why = " ".join(str(error).split())
        return [{"state": NOT_VISIBLE, "error": why} for _ in events]


def _standing(store: Connection, name: str, event_id: str) -> dict[str, Any]:
    failures = failures_of(store, name, event_id) if _has(store, "failure") else []
    decided = postgres_decisions.decisions_on(store, event_id) if _has(store, "decision") else []
    return standing_by(
        postgres_inbox.receipt_of(store, name, event_id),
        failures,
        [each for each in decided if each.recipient == name],
        now=_now(store),
    )


def _has(store: Connection, table: str) -> bool:
    return store.execute("SELECT to_regclass(%s)", (table,)).fetchone() != (None,)


def _now(store: Connection) -> float:
    (now,) = store.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone() or (
        time.time(),
    )
    return float(now)
