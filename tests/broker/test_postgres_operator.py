"""An exchange in PostgreSQL, seen and healed by the operator's commands: the same screens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.client import post
from delivery.connection import connect
from delivery.lanes import unrouted_queue
from delivery.postgres import open_postgres

SENT = "outbox WHERE confirmed_at IS NOT NULL"
COMMAND = {"title": "Title", "slug": "a-title", "author": "An Author"}


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str, database: str) -> Iterator[Exchange]:
    """The publisher and the catalog in PostgreSQL, the audit log in its SQLite file."""
    more = {
        "DELIVERY_POSTGRES_URL": database,
        "DELIVERY_POSTGRES_INBOXES": f"catalog={database}",
        "DELIVERY_OPERATOR": "rosa",
    }
    with exchange_on(broker, tmp_path, namespace, retries_ms=(100,), **more) as opened:
        start = opened.cast.start
        start("api", ["postgres", "api", "--port", "0"])
        start("relay", ["postgres", "relay"])
        start("catalog", ["postgres", "receive", "catalog"])
        start("audit", ["receive", "audit"])
        for name in ("api", "relay", "catalog", "audit"):
            opened.cast[name].await_event(f"{name}.ready")
        yield opened


def publish(exchange: Exchange, material_id: str) -> str:
    answer = post(exchange.url, {"material_id": material_id, **COMMAND}, f"r-{material_id}")[1]
    return str(answer["event_id"])


def asked(exchange: Exchange, *command: str, code: int = 0) -> Any:
    ended = exchange.run("postgres", *command, "--json")
    assert ended.returncode == code, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def catalog_of(exchange: Exchange, event_id: str) -> dict[str, Any]:
    (found,) = asked(exchange, "trace", event_id)
    standing: dict[str, Any] = found["recipients"]["catalog"]
    return standing


def on_the_page(exchange: Exchange, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    with httpx.stream("GET", f"{exchange.url}/live/events", timeout=60, trust_env=False) as answer:
        seen = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
        return next(each for each in seen if wanted(each))


def execute(database: str, statement: str) -> None:
    with closing(open_postgres(database)) as store:
        store.execute(statement.encode())


def await_rows(database: str, what: str, count: int) -> None:
    def there() -> bool:
        with closing(open_postgres(database)) as store:
            return store.execute(f"SELECT FROM {what}".encode()).rowcount == count

    wait_for(there, f"{count} of {what}")


def test_an_operator_sees_and_heals_an_exchange_in_postgresql(
    exchange: Exchange, database: str
) -> None:
    """Dead, found, planned, replayed, dropped, lost, sent again: and the trail tells of it."""
    execute(database, "ALTER TABLE catalog ADD CONSTRAINT trouble CHECK (material_id <> 'm-2')")
    events = [publish(exchange, f"m-{number}") for number in (1, 2, 3)]
    exchange.await_dead("catalog")
    exchange.await_receipt("audit", events[2])
    await_rows(database, SENT, 3)
    await_rows(database, "receipt", 2)
    _status_says_where_everything_is(exchange)
    _the_page_shows_it_too(exchange)
    _trace_tells_of_each_recipient(exchange, events)
    _the_dead_are_replayed_and_dropped(exchange, database, events)
    _what_was_lost_is_sent_again(exchange, database)
    _what_was_parked_is_sent_again(exchange, database)


def _status_says_where_everything_is(exchange: Exchange) -> None:
    found = asked(exchange, "status")
    assert (found["outbox"]["accepted"], found["outbox"]["pending"]) == (3, {})
    catalog, audit = found["recipients"]
    assert (catalog["dead"], catalog["receipts"]["applied"], catalog["difference"]) == (1, 2, 0)
    assert (audit["dead"], audit["receipts"]["applied"], audit["difference"]) == (0, 3, 0)
    shown = exchange.run("postgres", "status").stdout
    assert "accepted 3, confirmed 3, pending 0" in shown
    assert re.search(r"^dead +1 +0 ", shown, re.M), shown
    assert re.search(r"^difference +0 +0 ", shown, re.M), shown


def _the_page_shows_it_too(exchange: Exchange) -> None:
    page = httpx.get(f"{exchange.url}/", trust_env=False)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    found = on_the_page(exchange, lambda each: each["stores"]["seen"] and each["broker"]["seen"])
    assert (found["outbox"]["accepted"], found["outbox"]["pending"]) == (3, {})
    catalog, audit = found["recipients"]
    assert (catalog["dead"], catalog["receipts"]["applied"]) == (1, 2)
    assert (audit["dead"], audit["receipts"]["applied"]) == (0, 3)
    assert [each["receipts"]["catalog"] for each in found["latest"]] == ["applied", None, "applied"]


def _trace_tells_of_each_recipient(exchange: Exchange, events: list[str]) -> None:
    dead = catalog_of(exchange, events[1])
    assert (dead["state"], dead["reason"], dead["in_dead_queue"]) == ("dead", "exhausted", True)
    assert [each["attempt"] for each in dead["failures"]] == [1, 2]
    assert "trouble" in dead["error"]
    assert catalog_of(exchange, events[0])["effect"] == "applied"
    shown = exchange.run("postgres", "trace", "r-m-2").stdout
    assert "outbox: confirmed" in shown
    assert "catalog: dead (exhausted) since" in shown
    assert "audit: applied" in shown
    unknown = exchange.run("postgres", "trace", "nobody")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    told = httpx.get(f"{exchange.url}/publications/m-2", trust_env=False).json()
    assert told["recipients"]["catalog"]["state"] == "dead"
    assert told["recipients"]["audit"]["effect"] == "applied"


def _the_dead_are_replayed_and_dropped(
    exchange: Exchange, database: str, events: list[str]
) -> None:
    exchange.put("catalog", b"no event", "bad-1")
    exchange.await_dead("catalog", 2)
    listed = asked(exchange, "dead", "list", "catalog")
    assert {each["id"] for each in listed} == {events[1], "bad-1"}
    assert {each["reason"] for each in asked(exchange, "dead", "groups")} == {
        "exhausted",
        "incompatible",
    }
    (shown,) = asked(exchange, "dead", "show", "catalog", events[1])
    assert shown["decoded"]["subject"] == "m-2"
    planned = asked(exchange, "dead", "plan", "catalog", "--group", "exhausted")
    assert [each["prospect"] for each in planned] == ["effect"]

    execute(database, "ALTER TABLE catalog DROP CONSTRAINT trouble")
    replay = ("dead", "replay", "catalog", "--group", "exhausted", "--reason", "mended")
    assert asked(exchange, *replay) == [{"id": events[1], "result": "applied"}]
    drop = ("dead", "drop", "catalog", "--id", "bad", "--reason", "a test's")
    assert asked(exchange, *drop) == [{"id": "bad-1", "result": "dropped"}]
    trail = asked(exchange, "dead", "trail")
    assert [(each["action"], each["message_id"], each["result"]) for each in trail] == [
        ("replay", events[1], "applied"),
        ("drop", "bad-1", "dropped"),
    ]
    assert {each["operator"] for each in trail} == {"rosa"}
    assert catalog_of(exchange, events[1])["decisions"][0]["reason"] == "mended"
    gone = exchange.run("postgres", "dead", "show", "catalog", "bad-1")
    assert gone.returncode == 1
    assert "dropped by rosa" in gone.stderr
    with closing(exchange.config.stores.open("publisher")) as files:
        assert files.execute("SELECT count(*) FROM trail").fetchone() == (0,)


def _what_was_lost_is_sent_again(exchange: Exchange, database: str) -> None:
    assert exchange.cast.stop("catalog") == 0
    lost = publish(exchange, "m-4")
    wait_for(lambda: exchange.place("catalog").ready == 1, "it is in the queue")
    exchange.purge("catalog")
    await_rows(database, SENT, 4)
    assert asked(exchange, "status")["recipients"][0]["difference"] == 1
    exchange.cast.start("catalog", ["postgres", "receive", "catalog"])
    again = asked(exchange, "reconcile", "catalog", "--grace", "0", "--apply")
    assert (again["sent"], again["missing"]) == (True, [lost])
    await_rows(database, "receipt", 4)
    assert catalog_of(exchange, lost)["effect"] == "applied"
    assert asked(exchange, "reconcile", "catalog", "--grace", "0")["missing"] == []
    (act,) = asked(exchange, "dead", "trail", "--id", lost)
    assert (act["action"], act["result"]) == ("send again", "sent")
    for account in asked(exchange, "ledger"):
        assert (account["accepted"], account["difference"]) == (4, 0)


def _what_was_parked_is_sent_again(exchange: Exchange, database: str) -> None:
    config, parking = exchange.config, unrouted_queue(exchange.config.exchange)
    assert config.management is not None
    try:
        assert exchange.run("unrouted", "declare").returncode == 0
        with connect(config.broker) as connection:
            for each in config.topology().bindings:
                connection.channel().queue_unbind(each.queue, each.exchange, each.key)
        parked = publish(exchange, "m-5")
        await_rows(database, SENT, 5)
        assert [each["key"] for each in asked(exchange, "unrouted", "list")] == [parked]
        planned = exchange.run("postgres", "reconcile", "catalog", "--grace", "0")
        assert (planned.returncode, planned.stdout) == (0, ""), planned
        assert "catalog: 1 parked: delivery postgres unrouted list\n" in planned.stderr
        hint = 'delivery postgres unrouted replay --all --reason "..."'
        assert f"once one does: {hint}\n" in exchange.run("postgres", "status").stdout
        shown = on_the_page(exchange, lambda each: each.get("parked") and each["parked"]["ready"])
        assert shown["parked"]["hint"] == hint
        replay = ("unrouted", "replay", "--all", "--reason", "bound again")
        assert [each["key"] for each in asked(exchange, *replay)] == [parked]
        (act,) = asked(exchange, "dead", "trail", "--id", parked)
        assert (act["recipient"], act["operator"], act["result"]) == ("unrouted", "rosa", "sent")
        with closing(config.stores.open("publisher")) as files:
            assert files.execute("SELECT count(*) FROM trail").fetchone() == (0,)
    finally:
        config.management.delete(f"/api/policies/%2F/{parking}")
        exchange.delete_queue(parking)
        with connect(config.broker) as connection:
            connection.channel().exchange_delete(parking)
