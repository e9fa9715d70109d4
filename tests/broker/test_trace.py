"""One event, followed by real commands through real processes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace, retries_ms=(60_000,)) as opened:
        yield opened


@pytest.fixture
def quick(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace, retries_ms=(100,)) as opened:
        yield opened


def traced(exchange: Exchange, word: str) -> list[dict[str, Any]]:
    ended = exchange.run("trace", word, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


def catalog(exchange: Exchange, event_id: str) -> dict[str, Any]:
    (found,) = traced(exchange, event_id)
    standing: dict[str, Any] = found["recipients"]["catalog"]
    return standing


def test_an_event_on_its_way(exchange: Exchange) -> None:
    """Pending, then confirmed and not seen, then settled for one and waiting for the other."""
    (event_id,) = exchange.accept("m-1", key="r-1")
    (found,) = traced(exchange, event_id)
    assert (found["confirmed_at"], found["attempts"]) == (None, 0)
    assert "outbox: pending, not tried yet" in exchange.run("trace", "r-1").stdout

    exchange.start("relay", "audit")
    exchange.await_receipt("audit", event_id)
    (found,) = traced(exchange, event_id)
    assert (found["outcome"], found["attempts"]) == ("confirmed", 1)
    assert found["recipients"]["audit"]["effect"] == "applied"

    with exchange.refusing("m-1"):
        exchange.start("catalog")
        wait_for(lambda: exchange.place("catalog").retry == (1,), "the retry queue has it")
        wait_for(lambda: catalog(exchange, event_id)["state"] == "retry", "the retry is noted")
    waits = catalog(exchange, event_id)
    assert waits["next_attempt"] == 2
    assert 0 < waits["retry_at"] - time.time() <= 60
    shown = exchange.run("trace", "m-1").stdout
    assert re.search(
        r"catalog: waits for attempt 2 until \S+ \S+ \(in \d+ s\): .*not ready", shown
    ), shown
    assert re.search(r"audit: applied \S+ \S+ \(\d+ s ago\)", shown), shown
    assert "(matched by material_id)" in shown


def test_a_dead_event_says_why_and_what_was_done_about_it(quick: Exchange) -> None:
    """Dead with its reason, then replayed and waiting, then settled."""
    quick.start("relay", "catalog")
    with quick.refusing("m-1"):
        (event_id,) = quick.accept("m-1")
        quick.await_dead("catalog")
        wait_for(lambda: catalog(quick, event_id)["state"] == "dead", "it is noted")
    dead = catalog(quick, event_id)
    assert (dead["reason"], dead["in_dead_queue"]) == ("exhausted", True)
    assert [each["attempt"] for each in dead["failures"]] == [1, 2]
    assert "catalog: dead (exhausted) since" in quick.run("trace", event_id).stdout

    quick.cast.stop("catalog")
    replay = ("dead", "replay", "catalog", "--all", "--reason", "mended", "--wait", "0")
    quick.run(*replay, DELIVERY_OPERATOR="rosa")
    assert catalog(quick, event_id)["state"] == "replayed"
    assert "by rosa (mended); nothing seen after that" in quick.run("trace", event_id).stdout
    quick.start("catalog")
    quick.await_receipt("catalog", event_id)
    assert catalog(quick, event_id)["state"] == "settled"


def test_the_dead_queue_has_the_last_word(quick: Exchange) -> None:
    """A dead message that nobody noted is found; one that was purged is said to be gone."""
    quick.start("relay", "catalog")
    with quick.refusing("m-1"):
        (event_id,) = quick.accept("m-1")
        quick.await_dead("catalog")
    quick.cast.stop("catalog")
    quick.execute("catalog", "DELETE FROM failure")
    found = catalog(quick, event_id)
    assert (found["state"], found["reason"], found["failures"]) == ("dead", "exhausted", [])

    quick.execute(
        "catalog", f"INSERT INTO failure VALUES ('catalog', '{event_id}', 1, 1, 'e', NULL, 'r')"
    )
    quick.purge_dead("catalog")
    assert catalog(quick, event_id)["in_dead_queue"] is False
    assert "but not in the dead queue now" in quick.run("trace", event_id).stdout


def test_several_events_of_a_material_are_listed(exchange: Exchange) -> None:
    """Oldest first, and it is said what matched."""
    events = exchange.accept("m-1", "m-1", "m-2")
    assert [each["event_id"] for each in traced(exchange, "m-1")] == events[:2]
    shown = exchange.run("trace", "m-1").stdout
    assert shown.startswith("2 events, matched by material_id, oldest first\n")
    assert re.findall(r"^event (\S+): m-1 revision (\d)$", shown, re.M) == [
        (events[0], "1"),
        (events[1], "2"),
    ]


def test_without_a_broker_the_files_are_read_alone(exchange: Exchange) -> None:
    """It is said that the dead queues were not looked into; an unknown word ends with 1."""
    (event_id,) = exchange.accept("m-1")
    nobody = "amqp://guest:guest@127.0.0.1:9/%2F"
    ended = exchange.run("trace", event_id, DELIVERY_AMQP_URL=nobody)
    assert ended.returncode == 0
    assert "the dead queues were not looked into: no broker at 127.0.0.1:9" in ended.stderr
    assert f"event {event_id}: m-1 revision 1" in ended.stdout
    unknown = exchange.run("trace", "nobody")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "'nobody'" in unknown.stderr
