"""What a backlog costs: an event beside a million others, and the memory of each process."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from bench import ours
from bench.exchange import exchange, peak_of
from bench.load import Place, events, fill_outbox, fresh, place
from bench.scene import Curve, Row, Scene, beside, interleaved
from support.waiting import wait_for

from delivery import outbox
from delivery.codec import encode
from delivery.connection import connect
from delivery.dead import PARKED, REASON, dead_queue, dead_topology
from delivery.publisher import properties_of
from delivery.retention import sent_round
from delivery.routes import topology_of
from delivery.store import open_store, transaction
from delivery.stores import PUBLISHER
from delivery.topology import declare
from delivery.triage import held

FEW, PENDING, RECEIPTS, DEAD = 1_000, 1_000_000, 5_000_000, 1_000_000
STEPS = (1_000, 10_000, 100_000, 1_000_000)
EACH = 2_000  # events moved in one measurement
Took = tuple[float, float]  # microseconds for each message, and how long of it our process worked
# Ids as they grow with time, all older than those that are made now.
_ID = "printf('01900000-%04x-7%03x-8000-%012x', n / 4096, n % 4096, n)"
_COUNT = "WITH RECURSIVE c(n) AS (SELECT {0} UNION ALL SELECT n + 1 FROM c WHERE n + 1 < {1})"


def rows(scene: Scene) -> list[Row]:
    """Cost of an event at both ends of the scale, then memory."""
    return [*_cost(scene), *_dead(scene), _writer(scene), *_memory(scene)]


def curves(scene: Scene) -> list[Curve]:
    """Cost against backlog."""
    found = Curve("Cost against backlog", "rows that are there", "microseconds an event")
    with place(scene.url) as at, _stores(scene.folder) as (pending, receipts):
        last = 0
        for step in (each for each in STEPS if each <= scene.many(PENDING)):
            add_pending(pending, last, step)
            add_receipts(receipts, last, step)
            last = step
            relayed = median(_relayed(at, pending) for _ in range(3))
            received = median(_received(at, receipts) for _ in range(3))
            found.lines.setdefault("relay", []).append((step, relayed))
            found.lines.setdefault("receive", []).append((step, received))
    return [found]


def _cost(scene: Scene) -> list[Row]:
    many, receipts = scene.many(PENDING), scene.many(RECEIPTS)
    with place(scene.url) as at, _stores(scene.folder) as big, _stores(scene.folder) as small:
        add_pending(big[0], 0, many)
        add_receipts(big[1], 0, receipts)
        add_pending(small[0], 0, FEW)
        add_receipts(small[1], 0, FEW)
        found = interleaved(
            scene,
            {
                f"at {FEW:,} pending": lambda: _relayed(at, small[0]),
                "relay": lambda: _relayed(at, big[0]),
                f"at {FEW:,} receipts": lambda: _received(at, small[1]),
                "receive": lambda: _received(at, big[1]),
            },
        )
    limit = "<= 1.1 x"
    return [
        beside(
            f"relay at {many:,} pending",
            found,
            "relay",
            f"at {FEW:,} pending",
            target=limit,
            unit="us",
        ),
        beside(
            f"receive at {receipts:,} receipts",
            found,
            "receive",
            f"at {FEW:,} receipts",
            target=limit,
            unit="us",
        ),
    ]


def _dead(scene: Scene) -> list[Row]:
    """Looking through the dead: the time for each; the few before and after the many.

    Beside it what of that our own process works, and what pika alone needs to read as many: the
    rest is the broker's.
    """
    count = scene.many(DEAD)
    looks: dict[int, list[Took]] = {FEW: [], count: []}
    plain: dict[int, list[Took]] = {FEW: [], count: []}
    with place(scene.url) as few, place(scene.url) as many:
        _parked(few, FEW)
        _parked(many, count)
        for _ in range(2):
            looks[FEW] += [_looked(few, FEW) for _ in range(scene.rounds)]
            looks[count].append(_looked(many, count))
            looks[FEW] += [_looked(few, FEW) for _ in range(scene.rounds)]
        plain[FEW] += [_read(few, FEW) for _ in range(scene.rounds)]
        plain[count].append(_read(many, count))
        plain[FEW] += [_read(few, FEW) for _ in range(scene.rounds)]
        for at in (few, many):
            with connect(at.settings) as connection:
                connection.channel().queue_delete(dead_queue(at.route))

    def row(work: str, took: dict[int, list[Took]], part: int, target: str = "") -> Row:
        theirs = f"at {FEW:,} dead"
        found = {"ours": [e[part] for e in took[count]], theirs: [e[part] for e in took[FEW]]}
        return beside(work, found, "ours", theirs, target=target, unit="us")

    return [
        row(f"one look through {count:,} dead, each", looks, 0, "<= 1.1 x"),
        row(f"one look through {count:,} dead: our own processor time, each", looks, 1),
        row(f"pika alone reads {count:,} dead, each", plain, 0),
    ]


def _writer(scene: Scene) -> Row:
    """A writer's longest wait for the store, beside the removal of old rows without a pause."""
    waits, stop = [0.0], threading.Event()
    with exchange(scene) as opened:
        path = opened.config.stores.path(PUBLISHER)
        opened.config.stores.open(PUBLISHER).close()

        def write() -> None:
            with closing(sqlite3.connect(path, isolation_level=None)) as store:
                while not stop.is_set():
                    begun = time.perf_counter()
                    store.execute("BEGIN IMMEDIATE")
                    waits.append(time.perf_counter() - begun)
                    store.execute("ROLLBACK")
                    time.sleep(0.002)

        with closing(opened.config.stores.open(PUBLISHER)) as store:
            add_pending(store, 0, scene.many(100_000))
            store.execute("UPDATE outbox SET confirmed_at = 1, accepted_at = 1")
            writer = threading.Thread(target=write)
            writer.start()
            for _ in sent_round(store, 60.0):
                time.sleep(0.005)
            stop.set()
            writer.join()
    work = "a writer's longest wait beside the removal of old rows"
    return Row(work, max(waits) * 1000, "ms", target="<= 50 ms")


def _memory(scene: Scene) -> list[Row]:
    """The most that each process ever held, with all three backlogs in place."""
    most = "<= 80 MiB"
    pending, receipts, dead = scene.many(PENDING), scene.many(RECEIPTS), scene.many(DEAD)
    with exchange(scene) as opened:
        with closing(opened.config.stores.open(PUBLISHER)) as store:
            add_pending(store, 0, pending)
        for recipient in ("catalog", "audit"):
            with closing(opened.config.stores.open(recipient)) as store:
                add_receipts(store, pending, receipts, recipient)
        opened.start("relay", "catalog", "audit", "api")
        with closing(opened.client()) as api:
            for number in range(200):
                api.publish(f"m-{number}", "T" * 300)
        with closing(opened.config.stores.open(PUBLISHER)) as store:
            wait_for(lambda: _confirmed(store) >= min(pending, 100_000), "relay at work", 300)
        found = [
            Row(f"memory of {role}", opened.peak(role), "MiB", target=most)
            for role in opened.processes
        ]
        opened.stop()
        _parked(Place(scene.url, opened.config.route("catalog")), dead)
        found.append(
            Row(
                f"memory of ledger: {pending:,} pending, {receipts:,} receipts, {dead:,} dead",
                _peak([*opened.program, "ledger", "--within", "0"], opened.environ),
                "MiB",
                target=most,
            )
        )
    return found


def _peak(argv: list[str], environ: dict[str, str]) -> float:
    """Run a command to its end, and return the most memory that it held, in MiB."""
    most = 0.0
    with subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError, ValueError):  # it has just ended
                most = max(most, peak_of(process.pid))
            time.sleep(0.05)
    assert process.returncode in (0, 1), f"{argv} ended with {process.returncode}"
    return most


@contextmanager
def _stores(folder: Path) -> Iterator[tuple[sqlite3.Connection, sqlite3.Connection]]:
    with (
        closing(open_store(fresh(folder), outbox.SCHEMA)) as pending,
        closing(open_store(fresh(folder), *ours.SCHEMAS)) as receipts,
    ):
        yield pending, receipts


def add_pending(store: sqlite3.Connection, first: int, last: int) -> None:
    """Put rows *first* to *last* into the outbox, each with an event of 512 bytes."""
    (like,) = events(1)
    body = encode(like).decode()
    with transaction(store) as tx:
        tx.execute(
            _COUNT.format(first, last) + " INSERT INTO outbox"
            " (event_id, event_type, body, correlation_id, accepted_at, subject)"
            f" SELECT {_ID}, ?, CAST(replace(?, ?, {_ID}) AS BLOB), {_ID}, ?, 'm-' || (n % 1000)"
            " FROM c",
            (like.type, body, like.id, time.time()),
        )
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def add_receipts(
    store: sqlite3.Connection, first: int, last: int, recipient: str = "catalog"
) -> None:
    """Put receipts *first* to *last* into the inbox."""
    with transaction(store) as tx:
        tx.execute(
            _COUNT.format(first, last)
            + " INSERT INTO receipt (recipient, message_id, effect, received_at, event_at)"
            f" SELECT ?, {_ID}, 'applied', ? + n / 1e3, ? FROM c",
            (recipient, time.time() - 86_400, time.time() - 86_400),
        )
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _relayed(at: Place, store: sqlite3.Connection) -> float:
    """Relay EACH events, put as many in their place, and return the microseconds for each."""
    at.purge()
    fill_outbox(store, events(EACH))
    return 1e6 / ours.relay_all(store, at, EACH)


def _received(at: Place, store: sqlite3.Connection) -> float:
    at.fill(events(EACH))
    (path,) = (row[2] for row in store.execute("PRAGMA database_list") if row[1] == "main")
    return 1e6 / ours.received(at, Path(path), EACH, batch=100)


def _parked(at: Place, count: int) -> None:
    """Put *count* events into the dead queue."""
    with connect(at.settings) as connection:
        declare(connection, topology_of([at.route]) + dead_topology([at.route]))
    for first in range(0, count, 20_000):
        made = events(min(20_000, count - first))
        properties = [properties_of(each) for each in made]
        for each in properties:
            each.headers = {REASON: "exhausted", PARKED: int(time.time())}
        at.publish_raw([encode(e) for e in made], properties, queue=dead_queue(at.route))


def _looked(at: Place, count: int) -> Took:
    """Look through *count* dead messages."""
    with connect(at.settings) as connection:
        begun, worked = time.perf_counter(), time.process_time()
        with held(connection, at.route) as (_, messages):
            assert sum(1 for _ in messages) == count
            return _each(begun, worked, count)


def _read(at: Place, count: int) -> Took:
    """Receive *count* dead messages, and do nothing with them."""
    with connect(at.settings) as connection:
        channel, left = connection.channel(), count
        begun, worked = time.perf_counter(), time.process_time()

        def got(*_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                channel.stop_consuming()

        channel.basic_consume(dead_queue(at.route), got)
        channel.start_consuming()
        return _each(begun, worked, count)


def _each(begun: float, worked: float, count: int) -> Took:
    took, own = time.perf_counter() - begun, time.process_time() - worked
    return took / count * 1e6, own / count * 1e6


def _confirmed(store: sqlite3.Connection) -> int:
    # Positions are marked in their order: no need to count a million rows each time.
    row = store.execute(
        "SELECT position FROM outbox WHERE confirmed_at IS NULL AND next_attempt_at = 0"
        " ORDER BY next_attempt_at, position LIMIT 1"
    ).fetchone()
    return int(row[0]) if row else 1_000_000_000
