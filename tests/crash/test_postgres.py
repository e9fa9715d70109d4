"""Relays of the command line on one PostgreSQL outbox, killed: all arrives, each effect once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.events import event
from support.exchange import KILLED, Exchange, exchange_on
from support.waiting import wait_for

from delivery import postgres_trail
from delivery.broker import Broker
from delivery.cast import Actor
from delivery.postgres import Connection, open_postgres, transaction
from delivery.postgres_outbox import SCHEMA, add
from delivery.postgres_receiver import SCHEMAS
from delivery.retention import STEP


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str, database: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        opened.environ["DELIVERY_POSTGRES_URL"] = database
        yield opened


@pytest.fixture
def store(database: str) -> Iterator[Connection]:
    with closing(
        open_postgres(database, SCHEMA, postgres_trail.SCHEMA, *SCHEMAS["audit"])
    ) as opened:
        yield opened


def at(*points: str) -> pytest.MarkDecorator:
    """Run the test once for each point; it kills a process there."""
    return pytest.mark.parametrize("point", points)


def relay(exchange: Exchange, name: str, **environ: str) -> Actor:
    return exchange.cast.start(name, ["postgres", "relay", "--batch", "5"], **environ)


def put(store: Connection, *names: tuple[str, int]) -> list[str]:
    made = [event(*name) for name in names]
    with transaction(store) as tx:
        for each in made:
            add(tx, each, correlation_id="r", accepted_at=time.time())
    return [each.id for each in made]


def count(store: Connection, where: str) -> int:
    row = store.execute(f"SELECT count(*) FROM outbox WHERE {where}").fetchone()
    assert row is not None
    return int(row[0])


def test_relays_are_killed_one_after_the_other(exchange: Exchange, store: Connection) -> None:
    """The last one of three sends the rest; what the others held was free at once."""
    actors = [relay(exchange, f"relay-{number}") for number in range(3)]
    for actor in actors:
        actor.await_event("relay.ready")
    exchange.start("audit")
    events = []
    for revision in range(1, 7):
        events += put(store, *((f"m-{number}", revision) for number in range(20)))
        if revision in (2, 4):
            exchange.kill(actors.pop().name)
    wait_for(lambda: count(store, "confirmed_at IS NULL") == 0, "all is sent", 60)
    for event_id in events:
        wait_for(lambda e=event_id: exchange.receipt("audit", e), "its receipt")

    assert exchange.cast.stop(actors[0].name) == 0
    query = "SELECT material_id, revision FROM audit ORDER BY entry"
    seen: dict[str, list[int]] = {}
    for material, revision in exchange.select("audit", query):
        seen.setdefault(material, []).append(revision)
    assert seen == {f"m-{number}": [1, 2, 3, 4, 5, 6] for number in range(20)}


@at("postgres.forgotten", "postgres.trail_forgotten")
def test_a_relay_killed_while_it_removes_what_is_old(
    exchange: Exchange, store: Connection, point: str
) -> None:
    """What was removed is gone, the next relay removes the rest, and nothing pending is touched."""
    store.execute(
        "INSERT INTO outbox (event_id, event_type, body, correlation_id, accepted_at, subject,"
        " confirmed_at) SELECT n::text, 't', '', 'r', now(), 'm', now() - interval '90 days'"
        " FROM generate_series(1, %s) AS n",
        (STEP + 50,),
    )
    store.execute(
        "INSERT INTO trail (decided_at, action, recipient, message_id, dead_reason, operator,"
        " reason) SELECT now() - make_interval(days => n), 'drop', 'audit', 'e', 'r', 'o', 'r'"
        " FROM unnest(ARRAY[400, 100]) AS n"
    )
    (young,) = put(store, ("m-1", 1))
    killed = relay(exchange, "relay", DELIVERY_KILL_AT=point)
    exchange.await_death("relay")
    assert killed.process.returncode == KILLED
    forgotten = (count(store, "event_type = 't'"), days(store, "trail", "decided_at"))
    assert forgotten == ((50, [100, 400]) if point == "postgres.forgotten" else (0, [100]))

    relay(exchange, "relay").await_event("relay.ready")
    wait_for(lambda: count(store, "event_type = 't'") == 0, "the rest is removed")
    wait_for(lambda: days(store, "trail", "decided_at") == [100], "the trail is kept for a year")
    exchange.start("audit")
    exchange.await_receipt("audit", young)
    assert count(store, "true") == 1


def days(store: Connection, table: str, column: str) -> list[int]:
    """How old each row is."""
    query = f"SELECT extract(day FROM now() - {column})::int FROM {table} ORDER BY 1"
    return [age for (age,) in store.execute(query.encode()).fetchall()]


def receive(exchange: Exchange, **environ: str) -> Actor:
    actor = exchange.cast.start("audit", ["postgres", "receive", "audit"], **environ)
    actor.await_event("audit.ready")
    return actor


def receipts(store: Connection) -> list[tuple[str, str]]:
    return store.execute("SELECT message_id, effect FROM receipt ORDER BY 1").fetchall()


def test_a_message_that_kills_its_process_ends_dead(exchange: Exchange, store: Connection) -> None:
    """Three deaths, then reason killer; the messages around it have their effects, once."""
    relay(exchange, "relay").await_event("relay.ready")
    before, killer, after = put(store, ("m-1", 1), ("m-2", 1), ("m-3", 1))
    for _ in range(3):
        receive(exchange, DELIVERY_KILL_AT=f"consumer.handled@{killer}")
        exchange.await_death("audit")
    receive(exchange, DELIVERY_KILL_AT=f"consumer.handled@{killer}")
    exchange.await_dead("audit")

    wanted = sorted([(before, "applied"), (after, "applied")])
    wait_for(lambda: receipts(store) == wanted, "the others are applied")
    entries = store.execute("SELECT event_id FROM audit").fetchall()
    assert sorted(entries) == sorted([(before,), (after,)])
    assert store.execute("SELECT * FROM strike").fetchall() == []
    listed = exchange.run("dead", "list", "audit", "--json")
    assert "killer" in listed.stdout, listed.stdout + listed.stderr
    assert exchange.cast.stop("audit") == 0


def test_who_has_nothing_to_do_finds_out_that_the_database_takes_no_writes(
    exchange: Exchange, store: Connection
) -> None:
    """As when it has become a standby: it pauses, and is not well between two attempts."""
    actors = [relay(exchange, "relay"), receive(exchange)]
    actors[0].await_event("relay.ready")
    begun = [actor.mark() for actor in actors]
    store.execute("SET default_transaction_read_only = off")  # for ourselves
    store.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    try:
        store.execute("SELECT pg_reload_conf()")
        for actor, since in zip(actors, begun, strict=True):
            line = actor.await_event("store.unavailable", times=2, since=since)
            assert "read-only" in line
            assert actor.said(f"{actor.name}.ready", since=since) == 0
    finally:
        store.execute("ALTER SYSTEM RESET default_transaction_read_only")
        store.execute("SELECT pg_reload_conf()")
    for actor, since in zip(actors, begun, strict=True):
        actor.await_event(f"{actor.name}.ready", since=since)


@at(
    "postgres.receipts_forgotten",
    "postgres.failures_forgotten",
    "postgres.decisions_forgotten",
)
def test_a_recipient_killed_while_it_forgets_what_is_old(
    exchange: Exchange, store: Connection, point: str
) -> None:
    """The next one forgets the rest, and knows since when a missing receipt proves nothing."""
    store.execute(
        "INSERT INTO receipt SELECT 'audit', n::text, 'applied', now() - interval '90 days', 0,"
        " now() FROM generate_series(1, %s) AS n",
        (STEP + 50,),
    )
    store.execute(
        "INSERT INTO failure (recipient, message_id, attempt, failed_at, error) SELECT 'audit',"
        " 'e', n, now() - make_interval(days => n), 'e' FROM unnest(ARRAY[90, 10]) AS n"
    )
    store.execute(
        "INSERT INTO decision (decided_at, action, recipient, message_id, operator, reason) SELECT"
        " now() - make_interval(days => n), 'drop', 'audit', 'e', 'o', 'r'"
        " FROM unnest(ARRAY[400, 100]) AS n"
    )
    exchange.cast.start("audit", ["postgres", "receive", "audit"], DELIVERY_KILL_AT=point)
    exchange.await_death("audit")
    assert len(receipts(store)) == (50 if point == "postgres.receipts_forgotten" else 0)

    receive(exchange)
    wait_for(lambda: receipts(store) == [], "the rest is forgotten")
    pruned = store.execute("SELECT now() - before > interval '29 days' FROM receipts_pruned")
    assert pruned.fetchall() == [(True,)]
    wait_for(lambda: days(store, "decision", "decided_at") == [100], "decisions: after a year")
    assert days(store, "failure", "failed_at") == [10]
