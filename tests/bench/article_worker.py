"""The article's worker, timed: its own claim, publish, confirm, SENT, one row after the other."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pika
from bench.load import Place, events

from delivery.codec import encode

FILE = Path(__file__).parent / "baselines" / "article.py"


class Worker:
    """Its tables in a schema of their own; its exchange is *place*'s."""

    def __init__(self, article: ModuleType, place: Place) -> None:
        self._article, self._place = article, place

    def relayed(self, count: int) -> float:
        """Put *count* rows into its outbox, let it send them, and return the events a second."""
        article, made = self._article, events(count)
        with article.database("bench") as db:
            db.execute("TRUNCATE outbox")
            with db.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO outbox (event_id, material_id, revision, payload)"
                    " VALUES (%s, %s, 1, %s)",
                    [(each.id, each.subject, encode(each).decode()) for each in made],
                )
            connection = pika.BlockingConnection(pika.URLParameters(self._place.url))
            channel = connection.channel()
            channel.confirm_delivery()
            begun = time.perf_counter()
            while rows := article.claim(db):
                for row in rows:
                    article.send(db, channel, *row)
            rate = count / (time.perf_counter() - begun)
            connection.close()
            (sent,) = db.execute("SELECT count(*) FROM outbox WHERE status = 'SENT'").fetchone()
            assert sent == count, f"{sent} of {count} sent"
        return rate


@contextlib.contextmanager
def worker(place: Place, dsn: str) -> Iterator[Worker]:
    """Give the worker; its schema goes with it."""
    spec = importlib.util.spec_from_file_location("article", FILE)
    assert spec is not None and spec.loader is not None
    article: Any = importlib.util.module_from_spec(spec)
    sys.modules["article"] = article
    spec.loader.exec_module(article)
    article.AMQP_URL, article.POSTGRES = place.url, dsn
    article.NAMESPACE, article.EXCHANGE = place.route.namespace, place.route.exchange
    article.create_tables()
    yield Worker(article, place)
    with article.database("bench") as db:
        db.execute(f'DROP SCHEMA "{place.route.namespace}" CASCADE')
