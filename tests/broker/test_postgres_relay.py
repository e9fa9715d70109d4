"""Several relays share an outbox in PostgreSQL: each row goes out, each material in its order."""

from __future__ import annotations

import logging
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

import pytest
from support import child_postgres_relay, children
from support.children import KILLED
from support.events import event
from support.proxy import proxied
from support.waiting import wait_for
from support.world import World

from delivery import postgres, postgres_outbox, postgres_relay
from delivery.codec import decode
from delivery.config import Config
from delivery.confirms import Answer, Outcome
from delivery.contract import Event
from delivery.errors import DeliveryError
from delivery.outbox import Batch, Outbox
from delivery.pipeline import ConfirmedChannel
from delivery.postgres import Connection, open_postgres, transaction
from delivery.postgres_outbox import SCHEMA, PostgresOutbox, add, forget_sent
from delivery.postgres_relay import run_postgres_relay
from delivery.relay import relay_once
from delivery.stopping import Stop
from delivery.store import StoreUnavailable
from delivery.stores import Stores

MARKED = Answer(Outcome.CONFIRMED)


@pytest.fixture
def store(database: str) -> Iterator[Connection]:
    with closing(open_postgres(database, SCHEMA)) as opened:
        yield opened


def put(store: Connection, *events: Event) -> None:
    with transaction(store) as tx:
        for each in events:
            add(tx, each, correlation_id="request-1", accepted_at=time.time())


def box(store: Connection, exchange: str = "ns.events") -> PostgresOutbox:
    return PostgresOutbox(store, exchange)


def due(store: Connection, limit: int = 100) -> list[str]:
    with box(store).batch(limit) as batch:
        return [str(message.properties.message_id) for message in batch.messages]


def facts(store: Connection) -> list[tuple[object, ...]]:
    return store.execute(
        "SELECT outcome, attempts, confirmed_at IS NOT NULL FROM outbox ORDER BY position"
    ).fetchall()


def pending(store: Connection) -> int:
    return sum(not confirmed for *_, confirmed in facts(store))


def stop_all(*relays: subprocess.Popen[bytes]) -> None:
    for relay in relays:
        relay.terminate()
    assert [relay.wait(20) for relay in relays] == [0] * len(relays)


def sessions(store: Connection) -> int:
    row = store.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'delivery'"
    ).fetchone()
    return int(row[0]) if row else 0


def arrived(world: World) -> list[Event]:
    return [decode(body) for _, body in world.take(world.audit.queue)]


def assert_in_order(events: list[Event]) -> None:
    """The first copies of each material's events are 1, 2, 3 ..."""
    seen: dict[str, list[int]] = {}
    for each in {each.id: each for each in events}.values():  # the first copy gives the place
        seen.setdefault(each.subject, []).append(each.data.revision)
    assert seen == {subject: sorted(revisions) for subject, revisions in seen.items()}


# -- several relays at once


def test_three_relays_send_each_row_once(world: World, database: str, store: Connection) -> None:
    """300 rows, 300 publishes; 30 materials, and each ends at its 10th revision."""
    world.declare(routes=[world.audit])
    start = partial(children.start, child_postgres_relay, world, database=database)

    before = sessions(store)
    with start() as one, start() as two, start() as three:
        wait_for(lambda: sessions(store) == before + 3, "all three are there", 60)
        put(store, *(event(f"m-{m}", revision) for revision in range(1, 11) for m in range(30)))
        wait_for(lambda: pending(store) == 0, "all are confirmed", 60)
        stop_all(one, two, three)

    events = arrived(world)
    assert len(events) == len({each.id for each in events}) == 300
    assert_in_order(events)
    assert set(facts(store)) == {("confirmed", 1, True)}


def test_a_relay_killed_among_three_costs_repeats_and_nothing_else(
    world: World, database: str, store: Connection
) -> None:
    """While six writers add; what it held is sent by the others, under the same ids, in order."""
    world.declare(routes=[world.audit])
    start = partial(children.start, child_postgres_relay, world, database=database)
    died = threading.Event()

    def write(writer: int) -> None:
        dice, done = random.Random(writer), dict.fromkeys(range(writer, 60, 6), 0)
        with closing(open_postgres(database)) as own:
            while min(done.values()) < 10 or not died.is_set():
                with transaction(own) as tx:
                    for number in dice.sample(sorted(done), dice.randint(1, 4)):
                        done[number] += 1
                        new = event(f"m-{number}", done[number])
                        add(tx, new, correlation_id="r", accepted_at=time.time())
                    time.sleep(dice.random() / 100)  # positions are given, not yet committed

    writers = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(6)]
    before = sessions(store)
    with start() as one, start() as two, start(die_at=["relay.confirmed", 5]) as killed:
        wait_for(lambda: sessions(store) == before + 3, "all three are there", 60)
        for writer in writers:
            writer.start()
        assert killed.wait(60) == KILLED
        died.set()
        for writer in writers:
            writer.join()
        wait_for(lambda: pending(store) == 0, "all are confirmed", 60)
        stop_all(one, two)

    events, rows = arrived(world), len(facts(store))
    assert len({each.id for each in events}) == rows >= 600
    assert rows <= len(events) <= rows + 20  # the batch that was confirmed, but not marked
    assert_in_order(events)


def test_what_one_relay_holds_no_other_takes(database: str, store: Connection) -> None:
    """Nor what comes after it for the same material; the rest is free. Nobody waits for a lock."""
    first, second, other = event("m-1", 1), event("m-1", 2), event("m-2", 1)
    put(store, first, second, other)
    with closing(open_postgres(database)) as another:
        with box(store).batch(1) as batch:
            assert [m.properties.message_id for m in batch.messages] == [first.id]
            assert due(another) == [other.id]
            batch.record([MARKED])
            assert due(another) == [other.id]  # recorded, but not committed
        assert due(another) == [second.id, other.id]


def test_a_relay_whose_connection_dies_gives_back_what_it_held(
    database: str, store: Connection
) -> None:
    """At once; and it can't mark anything any more."""
    of = event()
    put(store, of)
    with (
        closing(open_postgres(database)) as dying,
        pytest.raises(StoreUnavailable),
        box(dying).batch(10) as batch,
    ):
        assert due(store) == []
        store.execute("SELECT pg_terminate_backend(%s)", (dying.info.backend_pid,))
        wait_for(lambda: due(store) == [of.id], "the row is given back")
        batch.record([MARKED])
    assert facts(store) == [(None, 0, False)]


def test_the_server_ends_a_relay_that_holds_rows_and_says_nothing(
    database: str, store: Connection
) -> None:
    """Its machine may be gone: nobody would close its connection."""
    of = event()
    put(store, of)
    with closing(open_postgres(database)) as silent:
        (limit,) = silent.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        assert limit == "1min"  # six times as long as a broker may take for a confirm
        silent.execute("SET idle_in_transaction_session_timeout = '50ms'")
        with pytest.raises(StoreUnavailable), box(silent).batch(10) as batch:
            wait_for(lambda: due(store) == [of.id], "the row is given back")
            batch.record([MARKED])


# -- what writers do to relays


def test_a_late_commit_is_not_skipped(database: str, store: Connection) -> None:
    """A lower position that is committed after a higher one was sent."""
    early, late = event("m-1"), event("m-2")
    with closing(open_postgres(database)) as slow:
        with transaction(slow) as tx:
            add(tx, late, correlation_id="r", accepted_at=1.0)
            put(store, early)
            with box(store).batch(10) as batch:
                assert [m.properties.message_id for m in batch.messages] == [early.id]
                batch.record([MARKED])
        assert due(store) == [late.id]


def test_writers_of_one_material_take_turns(database: str, store: Connection) -> None:
    """So that no revision gets a position before one that is committed later."""
    with closing(open_postgres(database)) as other:
        first, second = event("m-1", 1), event("m-1", 2)
        store.execute("BEGIN")
        add(store, first, correlation_id="r", accepted_at=1.0)
        waiting = threading.Thread(target=put, args=(other, second))
        waiting.start()
        query = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
        pid = other.info.backend_pid
        with closing(open_postgres(database)) as look:
            wait_for(
                lambda: look.execute(query, (pid,)).fetchone() == ("advisory",),
                "the second writer waits",
            )
            assert due(look) == []
        store.execute("COMMIT")
        waiting.join()
    assert due(store) == [first.id]
    positions = store.execute("SELECT event_id FROM outbox ORDER BY position").fetchall()
    assert positions == [(first.id,), (second.id,)]


def test_a_writer_that_waits_too_long_is_told_so(database: str, store: Connection) -> None:
    """It is the store's trouble, and passes."""
    with closing(open_postgres(database)) as other, transaction(store) as tx:
        add(tx, event("m-1", 1), correlation_id="r", accepted_at=1.0)
        other.execute("SET lock_timeout = '50ms'")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            put(other, event("m-1", 2))


def test_to_add_needs_a_transaction(store: Connection) -> None:
    """Without one the event would be sent, whatever becomes of the fact."""
    with pytest.raises(ValueError, match="no transaction"):
        add(store, event(), correlation_id="r", accepted_at=1.0)
    assert due(store) == []


# -- what does not succeed


def test_a_row_that_fails_holds_up_its_own_material_only(world: World, store: Connection) -> None:
    """Its later revisions wait until it is confirmed; every other material goes on."""
    world.declare(routes=[world.audit])
    bad, later, good = event("m-1", 1), event("m-1", 2), event("m-2", 1)
    put(store, bad, later, good)
    store.execute("UPDATE outbox SET event_type = 'nobody.listens' WHERE position = 1")
    exchange = world.audit.exchange

    with ConfirmedChannel(world.settings) as channel:
        counts = relay_once(box(store, exchange), channel)
        assert counts == {Outcome.RETURNED: 1, Outcome.CONFIRMED: 1}
        assert relay_once(box(store, exchange), channel) == {}
        assert facts(store) == [("returned", 1, False), (None, 0, False), ("confirmed", 1, True)]

        store.execute("UPDATE outbox SET event_type = %s WHERE position = 1", (bad.type,))
        store.execute("UPDATE outbox SET next_attempt_at = now() WHERE position = 1")
        assert relay_once(box(store, exchange), channel) == {Outcome.CONFIRMED: 1}
        assert relay_once(box(store, exchange), channel) == {Outcome.CONFIRMED: 1}

    assert [each.id for each in arrived(world)] == [good.id, bad.id, later.id]


def test_an_unknown_outcome_is_sent_again_under_the_same_id(
    world: World, store: Connection
) -> None:
    """The confirm is lost on the way: the row stays pending, and its id stays the same."""
    world.declare(routes=[world.audit])
    of = event()
    put(store, of)
    with (
        proxied(world.settings.url) as proxy,
        ConfirmedChannel(replace(world.settings, url=proxy.url)) as channel,
    ):
        proxy.swallow_replies = True

        def cut() -> None:
            wait_for(lambda: proxy.swallowed, "the confirm is swallowed")
            proxy.cut()

        cutting = threading.Thread(target=cut)
        cutting.start()
        assert relay_once(box(store, world.audit.exchange), channel) == {Outcome.UNKNOWN: 1}
        cutting.join()
    assert facts(store) == [("unknown", 1, False)]

    store.execute("UPDATE outbox SET next_attempt_at = now()")
    with ConfirmedChannel(world.settings) as channel:
        assert relay_once(box(store, world.audit.exchange), channel) == {Outcome.CONFIRMED: 1}
    assert [each.id for each in arrived(world)] == [of.id, of.id]


# -- the process


@contextmanager
def running(
    world: World, url: str, *, wrap: Callable[[Outbox], Outbox] = lambda outbox: outbox
) -> Iterator[None]:
    stop, config = (
        Stop(),
        Config(broker=world.settings, stores=Stores(world.folder), namespace=world.namespace),
    )
    thread = threading.Thread(
        target=run_postgres_relay, args=(config, url, stop), kwargs={"wrap": wrap}
    )
    thread.start()
    try:
        yield
    finally:
        stop.request()
        thread.join()


def test_a_commit_wakes_the_relay(
    world: World, database: str, store: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not look by itself for an hour."""
    monkeypatch.setattr(postgres_relay, "RECHECK", 3600.0)
    world.declare()
    with running(world, database):
        put(store, event("m-1"))
        wait_for(lambda: facts(store) == [("confirmed", 1, True)], "the first one is sent")
        put(store, event("m-2"))
        wait_for(lambda: facts(store) == [("confirmed", 1, True)] * 2, "the second one, too")


def waits(store: Connection, name: str) -> bool:
    """Say whether the session of that name has been silent: it is between two looks."""
    (found,) = store.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state = 'idle'"
        " AND clock_timestamp() - state_change > interval '0.3 s'",
        (name,),
    ).fetchone() or (0,)
    return bool(found)


def test_a_commit_that_nobody_announces_is_found(
    world: World, database: str, store: Connection
) -> None:
    """NOTIFY wakes up; it is never what is relied on."""
    world.declare()
    with running(world, database):
        put(store, event("m-1"))
        wait_for(lambda: facts(store) == [("confirmed", 1, True)], "it runs")
        wait_for(lambda: waits(store, f"{world.namespace} relay"), "it waits for the next one")
        store.execute(
            "INSERT INTO outbox"
            " (event_id, event_type, body, correlation_id, accepted_at, subject)"
            " SELECT 'silent', event_type, body, 'r', now(), 'm-2' FROM outbox"
        )
        wait_for(lambda: facts(store) == [("confirmed", 1, True)] * 2, "it is found")


def test_a_relay_outlives_its_database_connection(
    world: World, database: str, store: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """It says what is the matter, comes back, and goes on."""
    world.declare()
    caplog.set_level(logging.INFO, logger="delivery")
    with running(world, database):
        put(store, event("m-1"))
        wait_for(lambda: facts(store) == [("confirmed", 1, True)], "it runs")
        store.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            (f"{world.namespace} relay",),
        )
        put(store, event("m-2"))
        wait_for(lambda: facts(store) == [("confirmed", 1, True)] * 2, "it goes on")
    assert "store.unavailable" in [record.message for record in caplog.records]


class Slow:
    """An outbox whose broker takes a tenth of a second for each confirm."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    @contextmanager
    def batch(self, limit: int) -> Iterator[Batch]:
        with self._outbox.batch(limit) as batch:
            threading.Event().wait(len(batch.messages) / 10)
            yield batch


def test_a_broker_that_confirms_slowly_gets_smaller_batches(
    world: World, database: str, store: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that takes longer than a session may be silent is never marked: it would go on so."""
    silence = {"idle_in_transaction_session_timeout": 1_000}
    monkeypatch.setattr(postgres, "_SETTINGS", postgres._SETTINGS | silence)
    world.declare()
    put(store, *(event(f"m-{n}") for n in range(40)))
    with running(world, database, wrap=Slow):
        wait_for(lambda: pending(store) == 0, "all are confirmed", 40)


# -- many rows


def fill(store: Connection, count: int, *, confirmed: bool) -> None:
    store.execute(
        "INSERT INTO outbox (event_id, event_type, body, correlation_id, accepted_at, subject,"
        " confirmed_at) SELECT gen_random_uuid(), 't', '', 'r', now(), 'm-' || n,"
        " CASE WHEN %s THEN now() - interval '1 day' END FROM generate_series(1, %s) AS n",
        (confirmed, count),
    )


@pytest.mark.parametrize("analyzed", [False, True])
def test_what_was_sent_costs_nothing_to_pass_by(store: Connection, analyzed: bool) -> None:
    """The due rows are found by indexes that hold pending rows only, known to be few or not."""
    fill(store, 20_000, confirmed=True)
    fill(store, 50, confirmed=False)
    if analyzed:
        store.execute("ANALYZE outbox")
    for statement in (postgres_outbox._DUE, postgres_outbox._FAR):
        plan = store.execute(b"EXPLAIN " + statement, {"limit": 100, "longest": 30.0}).fetchall()
        text = "\n".join(line for (line,) in plan)
        assert "Seq Scan" not in text, text
        assert "outbox_due" in text, text


def test_what_was_sent_long_ago_is_forgotten_in_steps(store: Connection) -> None:
    """What is not confirmed stays."""
    fill(store, 5, confirmed=True)
    fill(store, 2, confirmed=False)
    assert forget_sent(store, keep=2 * 86_400) == 0
    assert forget_sent(store, keep=3_600, most=3) == 3
    assert forget_sent(store, keep=3_600, most=3) == 2
    assert len(due(store)) == 2


# -- the way to the database


@pytest.mark.parametrize(
    "url",
    [
        *("postgre://u:s3cret@h/db", "postgresql://u:x@s3cret@h/db", "postgresql://u:12/s3@h/db"),
        "s3cret",
    ],
)
def test_no_piece_of_a_password_is_in_an_error(url: str) -> None:
    """libpq repeats what it can't read, and what it takes for a host."""
    with pytest.raises(DeliveryError, match="URL can't be read; expected postgresql://") as refusal:
        open_postgres(url)
    assert "s3" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_a_question_that_nothing_answers_ends_the_connection(store: Connection) -> None:
    """Keepalives are not sent while data is on its way, which is when a relay usually waits."""
    with socket.socket(fileno=os.dup(store.fileno())) as opened:
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
