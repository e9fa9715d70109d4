"""A recipient in PostgreSQL: receipt and effect commit together, however many consumers it has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support import child_postgres_consumer, children
from support.children import KILLED
from support.events import event
from support.stores import AUDIT, postgres_append
from support.waiting import wait_for
from support.world import World

from delivery import postgres_revision
from delivery.connection import connect
from delivery.consumer import Settlement, consume_with
from delivery.contract import Event
from delivery.handling import Effect
from delivery.postgres import Connection, open_postgres, transaction
from delivery.postgres_inbox import (
    SCHEMA,
    PostgresHandler,
    applying,
    once,
    receipt_of,
)
from delivery.postgres_revision import latest_only
from delivery.routes import Route
from delivery.store import StoreUnavailable

ROUTE = Route("audit", "ns")


@pytest.fixture
def opened(database: str) -> Iterator[Callable[[], Connection]]:
    """Open connections to the recipient's database."""
    found: list[Connection] = []

    def another() -> Connection:
        found.append(open_postgres(database, SCHEMA, postgres_revision.SCHEMA, AUDIT))
        return found[-1]

    yield another
    for each in found:
        each.close()


def consume(world: World, store: Connection, handle: PostgresHandler, **options: Any) -> None:
    with connect(world.settings) as connection:
        options.setdefault("idle", 0.4)
        consume_with(connection.channel(), world.audit.queue, applying(store, handle), **options)


def audited(store: Connection) -> list[tuple[str, int]]:
    return store.execute("SELECT material_id, revision FROM audit ORDER BY entry").fetchall()


def waits(store: Connection, other: Connection) -> bool:
    query = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
    return store.execute(query, (other.info.backend_pid,)).fetchone() == ("Lock",)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


def test_copies_of_one_message_have_one_effect(world: World, opened: Any) -> None:
    """In one batch or in two."""
    world.declare(routes=[world.audit])
    one, two = event("m-1"), event("m-2")
    world.publish(one, two, one, one)

    store = opened()
    consume(world, store, once(world.audit, postgres_append), batch=2)

    assert audited(store) == [("m-1", 1), ("m-2", 1)]
    receipt = receipt_of(store, "audit", one.id)
    assert receipt is not None
    assert receipt.duplicates == 2
    assert world.ready(world.audit.queue) == 0


def test_the_same_message_on_two_consumers_at_once_has_one_effect(opened: Any) -> None:
    """The second one waits for the first one's commit, and finds its receipt."""
    of, handle = event(), once(ROUTE, postgres_append)
    first, second, look = opened(), opened(), opened()

    def again() -> Effect:
        with transaction(second) as tx:
            return handle(of, tx)

    with transaction(first) as tx:
        assert handle(of, tx) is Effect.APPLIED
        thread, found = in_thread(again)
        wait_for(lambda: waits(look, second), "the second one waits")
    thread.join()
    assert found == [Effect.DUPLICATE]
    assert audited(look) == [("m-1", 1)]


def test_an_effect_that_is_rolled_back_leaves_the_message_to_the_other_consumer(
    opened: Any,
) -> None:
    """The second one waited, finds no receipt, and does it."""
    of, handle = event(), once(ROUTE, postgres_append)
    first, second, look = opened(), opened(), opened()

    def again() -> Effect:
        with transaction(second) as tx:
            return handle(of, tx)

    with pytest.raises(RuntimeError), transaction(first) as tx:
        handle(of, tx)
        thread, found = in_thread(again)
        wait_for(lambda: waits(look, second), "the second one waits")
        raise RuntimeError
    thread.join()
    assert found == [Effect.APPLIED]
    assert audited(look) == [("m-1", 1)]


def test_an_older_revision_on_another_consumer_waits_for_the_newer_one(opened: Any) -> None:
    """It compared with what was committed before; it must not overwrite what is committed now."""
    handle = latest_only(postgres_append)
    first, second, look = opened(), opened(), opened()
    with transaction(first) as tx:
        handle(event("m-1", 1), tx)

    def older() -> Effect:
        with transaction(second) as tx:
            return handle(event("m-1", 2), tx)

    with transaction(first) as tx:
        assert handle(event("m-1", 3), tx) is Effect.APPLIED
        thread, found = in_thread(older)
        wait_for(lambda: waits(look, second), "the older one waits")
    thread.join()
    assert found == [Effect.STALE]
    assert audited(look) == [("m-1", 1), ("m-1", 3)]


@pytest.mark.parametrize(
    ("point", "committed"), [("consumer.applied", False), ("consumer.committed", True)]
)
def test_a_recipient_killed_around_its_commit_loses_nothing(
    world: World, database: str, opened: Any, point: str, committed: bool
) -> None:
    """Before it nothing happened; after it, the redelivery is recognised."""
    world.declare(routes=[world.audit])
    of, store = event(), opened()
    world.publish(of)
    run = children.run

    died = run(child_postgres_consumer, world, database=database, die_at=[point, 1])
    assert died == KILLED
    wait_for(lambda: world.ready(world.audit.queue) == 1, "the broker has it back")
    wait_for(lambda: (receipt_of(store, "audit", of.id) is not None) is committed, "it is decided")

    assert run(child_postgres_consumer, world, database=database) == 0
    receipt = receipt_of(store, "audit", of.id)
    assert receipt is not None
    assert receipt.duplicates == int(committed)
    assert audited(store) == [("m-1", 1)]


def test_a_connection_that_is_lost_in_a_handler_settles_nothing(world: World, opened: Any) -> None:
    """No message is at fault: the whole batch returns to the queue, and no attempt is spent."""
    world.declare(routes=[world.audit])
    events = [event(f"m-{n}") for n in range(3)]
    world.publish(*events)
    store, other = opened(), opened()

    def cut(of: Event, tx: Connection) -> Effect:
        effect = postgres_append(of, tx)
        if of.id == events[1].id:
            other.execute("SELECT pg_terminate_backend(%s)", (tx.info.backend_pid,))
            tx.execute("SELECT 1")
        return effect

    with pytest.raises(StoreUnavailable, match="terminating connection"):
        consume(world, store, once(world.audit, cut), batch=3, prefetch=3)
    wait_for(lambda: world.ready(world.audit.queue) == 3, "the broker has them back")
    assert audited(other) == []

    consume(world, other, once(world.audit, postgres_append), batch=3)
    assert audited(other) == [("m-0", 1), ("m-1", 1), ("m-2", 1)]


def test_a_right_that_is_missing_settles_nothing(world: World, opened: Any) -> None:
    """No message is at fault: all would be dead before somebody has given it."""
    world.declare(routes=[world.audit])
    world.publish(event("m-1"), event("m-2"))
    store = opened()

    def apply(of: Event, tx: Connection) -> Effect:
        tx.execute("SET LOCAL ROLE pg_monitor")
        tx.execute("SELECT FROM pg_authid")  # which it may not read
        return postgres_append(of, tx)

    def policy(delivery: Any, error: Exception) -> Any:
        raise error

    with pytest.raises(StoreUnavailable, match="permission denied"):
        consume(world, store, once(world.audit, apply), on_failure=policy)
    wait_for(lambda: world.ready(world.audit.queue) == 2, "the broker has them back")


def test_trouble_with_a_database_of_the_handlers_own_is_a_failed_message(
    world: World, opened: Any
) -> None:
    """Ours is well: the others of the batch are committed."""
    world.declare(routes=[world.audit])
    world.publish(event("m-1"), event("m-2"))
    store, failed = opened(), []

    def apply(of: Event, tx: Connection) -> Effect:
        if of.subject == "m-1":
            psycopg.connect("postgresql://127.0.0.1:1/nowhere", connect_timeout=2)
        return postgres_append(of, tx)

    def policy(delivery: Any, error: Exception) -> Any:
        failed.append(type(error))
        return Settlement.ELSEWHERE

    consume(world, store, apply, batch=2, on_failure=policy)
    assert failed == [psycopg.OperationalError]
    assert audited(store) == [("m-2", 1)]


def test_data_that_the_database_has_no_room_for_is_its_messages_fault(
    world: World, opened: Any
) -> None:
    """It would have none tomorrow: to wait and try again would hold up the queue for ever."""
    world.declare(routes=[world.audit])
    world.publish(event("m-1"), event("m-2"))
    store, failed = opened(), []

    def apply(of: Event, tx: Connection) -> Effect:
        if of.subject == "m-1":
            key = "".join(f"{number:x}" for number in range(20_000))  # too large for an index
            tx.execute("INSERT INTO latest VALUES (%s, 1, '')", (key,))
        return postgres_append(of, tx)

    def policy(delivery: Any, error: Exception) -> Any:
        failed.append(type(error))
        return Settlement.ELSEWHERE

    consume(world, store, apply, batch=2, on_failure=policy)
    assert failed == [psycopg.errors.ProgramLimitExceeded]
    assert audited(store) == [("m-2", 1)]
