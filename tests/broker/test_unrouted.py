"""The commands about what no queue wanted, on an exchange that already runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.confirms import Outcome
from delivery.connection import connect
from delivery.lanes import unrouted_queue
from delivery.observe import Depth, depth
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope
from delivery.stores import PUBLISHER


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as exchange:
        yield exchange
        parking = unrouted_queue(exchange.config.exchange)
        with connect(exchange.config.broker) as connection:
            connection.channel().queue_delete(parking)
            connection.channel().exchange_delete(parking)
        assert exchange.config.management is not None
        exchange.config.management.delete(f"/api/policies/%2F/{parking}")


def parsed(exchange: Exchange, *words: str, code: int = 0) -> Any:
    ended = exchange.run("unrouted", *words, "--json")
    assert (ended.returncode, ended.stderr) == (code, ""), ended
    return json.loads(ended.stdout)


def send(exchange: Exchange, message_id: str, key: str) -> Outcome:
    about = envelope(message_id, "material.published.v1", timestamp=1)
    with ConfirmedChannel(exchange.config.broker) as channel:
        return channel.send(Message(exchange.config.exchange, key, about, b"{}")).outcome


def test_caught_listed_and_replayed_on_an_exchange_that_runs(exchange: Exchange) -> None:
    """The policy takes effect without another declare; processes declare as before."""
    exchange.start("relay")
    assert send(exchange, "lost", "typo.material") is Outcome.RETURNED

    made = parsed(exchange, "declare")

    assert made["parking"] == f"{made['exchange']}.unrouted"
    wait_for(lambda: send(exchange, "m-1", "typo.material") is Outcome.CONFIRMED, "the policy acts")
    assert parsed(exchange, "list") == [
        {
            "key": "m-1",
            "exchange": made["exchange"],
            "routing_key": "typo.material",
            "wanted": False,
        }
    ]
    assert len(parsed(exchange, "list", "--check", code=1)) == 1
    seen = json.loads(exchange.run("status", "--json").stdout)["parked"]
    assert (seen["queue"], seen["ready"]) == (made["parking"], 1)
    assert "delivery unrouted replay" in seen["hint"]
    assert parsed(exchange, "replay", "--all", "--reason", "try") == []
    exchange.start("catalog")  # it declares the topology, and is no conflict with the policy
    assert exchange.run("topology", "declare").returncode == 0


def test_an_exchange_with_another_policy_is_not_said_to_be_caught(exchange: Exchange) -> None:
    """Only one policy holds: what no queue wants would be confirmed and gone, and declare: well."""
    name, management = exchange.config.exchange, exchange.config.management
    assert management is not None
    path, parking = f"/api/policies/%2F/{name}.other", unrouted_queue(name)
    rule = {"pattern": f"^{name}$", "apply-to": "exchanges", "priority": 9}
    try:
        for alternate, code in (("elsewhere", 1), (parking, 0)):
            management.put(path, {**rule, "definition": {"alternate-exchange": alternate}})
            ended = exchange.run("unrouted", "declare")
            assert (ended.returncode, "only one holds" in ended.stderr) == (code, bool(code))
        assert send(exchange, "m-1", "typo.material") is Outcome.CONFIRMED
        assert len(parsed(exchange, "list", "--check", code=1)) == 1
    finally:
        management.delete(path)
        parsed(exchange, "declare")


def unbind(exchange: Exchange) -> None:
    with connect(exchange.config.broker) as connection:
        for binding in exchange.config.topology().bindings:
            connection.channel().queue_unbind(binding.queue, binding.exchange, binding.key)


def test_what_is_parked_has_a_place_in_the_ledger(exchange: Exchange) -> None:
    """Found by its id, if it is the event; trace and reconcile know it, and nothing is taken."""
    exchange.start("relay")
    parking = parsed(exchange, "declare")["parking"]
    unbind(exchange)
    (lost,) = exchange.accept("m-1")
    exchange.await_sent()
    with connect(exchange.config.broker) as connection:
        wait_for(lambda: connection.channel().queue_purge(parking).method.message_count, "lost")
    exchange.put("audit", b"{}", lost, queue=parking)  # not the event: it only has its id
    (kept,) = exchange.accept("m-2")
    exchange.await_sent()

    ended = exchange.run("ledger", "--within", "0", "--json")

    assert ended.returncode == 1, ended
    for each in json.loads(ended.stdout):
        assert (each["parked"], each["difference"], each["missing"]) == (1, 1, [lost])
    shown = exchange.run("ledger", "--within", "0").stdout
    assert re.search(r"^parked +1 +1 *$", shown, re.M), shown
    assert "catalog: 1 parked: delivery unrouted list" in shown
    for event_id, state in (
        (kept, f"parked in {parking}: no queue wanted it"),
        (lost, "not seen"),
    ):
        said = exchange.run("trace", event_id)
        assert said.stderr == ""
        assert f"  catalog: {state}\n  audit: {state}\n" in said.stdout
    planned = exchange.run("reconcile", "catalog", "--grace", "0")
    assert (planned.returncode, planned.stdout) == (0, f"{lost}\n"), planned
    assert planned.stderr == (
        "catalog: 1 parked: delivery unrouted list\n"
        "catalog: 1 to send again (plan only: add --apply)\n"
    )
    sent = exchange.run("reconcile", "catalog", "--grace", "0", "--apply", "--json")
    fields = {"recipient": "catalog", "sent": True, "missing": [lost], "parked": 1}
    assert json.loads(sent.stdout) == fields
    assert exchange.place("catalog").ready == 1
    with connect(exchange.config.broker) as connection:
        assert depth(connection, parking) == Depth(ready=2, consumers=0)


def test_a_replay_is_in_the_trail_before_it_is_sent(exchange: Exchange) -> None:
    """The binding was away for a while; the event is sent to all who want it, and why is kept."""
    exchange.start("relay")
    parsed(exchange, "declare")
    unbind(exchange)
    (event_id,) = exchange.accept("m-1")
    confirmed = "SELECT count(*) FROM outbox WHERE confirmed_at IS NOT NULL"
    wait_for(lambda: exchange.select(PUBLISHER, confirmed) == [1], "confirmed, though parked")

    ended = exchange.run("unrouted", "replay", "--all", "--reason", "bound again")

    assert "1 message(s)" in ended.stdout
    assert exchange.place("catalog").ready == exchange.place("audit").ready == 1
    columns = "action, recipient, message_id, dead_reason, reason, result"
    assert exchange.select(PUBLISHER, f"SELECT {columns} FROM trail") == [
        ("replay", "unrouted", event_id, "unrouted", "bound again", "sent")
    ]
    assert parsed(exchange, "list", "--check") == []


def test_a_choice_that_is_none_is_refused(exchange: Exchange) -> None:
    """Neither or both of --id and --all; an id that is not parked, or stays so; no parking queue.

    A strange id moves no cursor where it is listed.
    """
    exchange.start("relay")
    assert "delivery unrouted declare" in exchange.run("unrouted", "list").stderr
    parsed(exchange, "declare")
    send(exchange, "m-\n1", "typo.material")
    listed = exchange.run("unrouted", "list").stdout.splitlines()
    assert listed[0].startswith("m-\\n1  "), listed

    for words, said in (
        ((), "say which messages"),
        (("--all", "--id", "m-1"), "say which messages"),
        (("--id", "m-9"), "not parked"),
        (("--id", "m-\n1"), "no queue wants it"),
    ):
        ended = exchange.run("unrouted", "replay", "--reason", "r", *words)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert said in ended.stderr
