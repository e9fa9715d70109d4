"""Several relays on one PostgreSQL outbox, each a process, beside the article's worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

from bench import article_worker
from bench.load import Place, events, place
from bench.scene import Contestant, Row, Scene, beside, interleaved

from delivery.codec import encode
from delivery.connection import BrokerSettings
from delivery.contract import Event
from delivery.pipeline import ConfirmedChannel
from delivery.postgres import Connection, open_postgres
from delivery.postgres_outbox import SCHEMA, PostgresOutbox
from delivery.relay import relay_once

RELAYS = 3
BATCH = 200  # three batches are in hand, of 1,000 materials
SHARED = f"relay: PostgreSQL outbox, {RELAYS} relays"
ALONE = "relay: PostgreSQL outbox, 1 relay"
ARTICLE = "article worker, PostgreSQL"


def rows(scene: Scene) -> list[Row]:
    """Three relays and one beside the article's worker, in turn."""
    made, few = events(scene.many(20_000)), scene.many(2_000)
    with (
        place(scene.url) as at,
        article_worker.worker(at, scene.postgres) as article,
        closing(open_postgres(scene.postgres, SCHEMA)) as store,
    ):

        def emptied(run: Contestant) -> Contestant:
            return lambda: (at.purge(), run())[1]

        found = interleaved(
            scene,
            {
                SHARED: emptied(lambda: shared(at, store, scene.postgres, made, RELAYS)),
                ALONE: emptied(lambda: shared(at, store, scene.postgres, made, 1)),
                ARTICLE: emptied(lambda: article.relayed(few)),
            },
        )
    return [
        beside(SHARED, found, SHARED, ARTICLE, target=">= 8 x"),
        beside(ALONE, found, ALONE, ARTICLE),
        beside(SHARED, found, SHARED, ALONE),
    ]


def shared(at: Place, store: Connection, url: str, made: Sequence[Event], relays: int) -> float:
    """Let so many relays empty an outbox of *made*; return the events a second, all marked."""
    fill(store, made)
    context = get_context("spawn")
    barrier = context.Barrier(relays + 1)
    running = [
        context.Process(target=relay, args=(barrier, at.url, url, at.route.exchange))
        for _ in range(relays)
    ]
    for process in running:
        process.start()
    barrier.wait(60)  # all are connected
    begun = time.time()
    for process in running:
        process.join(300)
        assert process.exitcode == 0
    found = store.execute(
        "SELECT count(*), min(attempts), max(attempts), max(confirmed_at) FROM outbox"
    ).fetchone()
    assert found is not None
    *counts, last = found
    assert counts == [len(made), 1, 1], f"not each exactly once: {counts}"
    return float(len(made) / (last.timestamp() - begun))


def relay(barrier: Barrier, broker: str, url: str, exchange: str) -> None:
    """One relay; it ends when nothing is pending."""
    with (
        closing(open_postgres(url)) as store,
        ConfirmedChannel(BrokerSettings(url=broker, name="bench")) as channel,
    ):
        box = PostgresOutbox(store, exchange)
        barrier.wait(60)
        while store.execute("SELECT 1 FROM outbox WHERE confirmed_at IS NULL LIMIT 1").fetchone():
            if not relay_once(box, channel, limit=BATCH):
                time.sleep(0.002)  # the others hold the rest


def fill(store: Connection, made: Sequence[Event]) -> None:
    """Put *made* into an empty outbox, as COPY does it: to fill it is not what is measured."""
    store.execute("TRUNCATE outbox")
    columns = "event_id, event_type, body, correlation_id, accepted_at, subject"
    with store.transaction(), store.cursor().copy(f"COPY outbox ({columns}) FROM STDIN") as into:
        for each in made:
            into.write_row((each.id, each.type, encode(each), each.id, each.time, each.subject))
    store.execute("ANALYZE outbox")
