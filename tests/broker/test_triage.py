"""An operator's work on many dead messages: groups, prefixes, a pace, and a trail of it all."""

from __future__ import annotations

import itertools
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
from delivery.plan import Result


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace, retries_ms=(50,)) as opened:
        opened.environ["DELIVERY_OPERATOR"] = "rosa"
        yield opened


def parsed(exchange: Exchange, *words: str, code: int = 0) -> Any:
    ended = exchange.run(*words, "--json")
    assert (ended.returncode, ended.stderr) == (code, ""), ended
    return json.loads(ended.stdout)


def kill(exchange: Exchange, exhausted: int, incompatible: int) -> list[str]:
    """Let so many messages die for the catalog; return the ids of the exhausted ones."""
    exchange.start("relay", "catalog")
    with exchange.refusing("m-1"):
        events = exchange.accept(*["m-1"] * exhausted)
        for n in range(incompatible):
            exchange.put("catalog", b'{"n": %d}' % n, f"bad-{n}")
        exchange.await_dead("catalog", exhausted + incompatible)
    return events


def test_the_dead_by_reason_and_a_replay_of_one_group(exchange: Exchange) -> None:
    """Counts and times of each group; only the named group is sent again; the trail tells it."""
    before = int(time.time())
    events = kill(exchange, exhausted=3, incompatible=2)
    exhausted, incompatible = parsed(exchange, "dead", "groups")
    assert (exhausted["recipient"], exhausted["reason"], exhausted["count"]) == (
        *("catalog", "exhausted"),
        3,
    )
    assert (incompatible["reason"], incompatible["count"]) == ("incompatible", 2)
    assert before <= exhausted["first"] <= exhausted["last"] <= time.time()
    assert "the search index is not ready" in exhausted["error"]
    shown = exchange.run("dead", "groups", "catalog").stdout
    assert re.search(r"^catalog +incompatible +2 +\d{4}-", shown, re.M), shown
    assert parsed(exchange, "dead", "groups", "audit") == []
    assert len(parsed(exchange, "dead", "list", "catalog", "--group", "incompatible")) == 2
    assert len(parsed(exchange, "dead", "plan", "catalog", "--group", "exhausted")) == 3

    replay = ("dead", "replay", "catalog", "--group", "exhausted", "--reason", "index is back")
    replayed = parsed(exchange, *replay)
    assert {each["id"] for each in replayed} == set(events)
    # Revisions 1 to 3 of one material, in their order.
    assert [each["result"] for each in replayed] == ["applied"] * 3
    assert exchange.place("catalog").dead == 2

    drop = ("dead", "drop", "catalog", "--group", "incompatible", "--reason", "a test's")
    assert parsed(exchange, *drop) == [
        {"id": "bad-0", "result": "dropped"},
        {"id": "bad-1", "result": "dropped"},
    ]
    trail = parsed(exchange, "dead", "trail")
    assert [(each["action"], each["dead_reason"], each["result"]) for each in trail] == [
        *[("replay", "exhausted", "applied")] * 3,
        *[("drop", "incompatible", "dropped")] * 2,
    ]
    assert {each["operator"] for each in trail} == {"rosa"}
    assert {each["reason"] for each in trail} == {"index is back", "a test's"}
    assert parsed(exchange, "dead", "trail", "audit") == []
    (one,) = parsed(exchange, "dead", "trail", "--id", events[0][:-2])
    assert one["message_id"] == events[0]
    shown = exchange.run("dead", "trail", "catalog").stdout
    act = f"  rosa  replay  catalog  {events[0]} (dead: exhausted)  index is back  -> applied"
    assert [line[19:] for line in shown.splitlines() if events[0] in line] == [act]


def test_a_group_that_is_none_and_a_choice_that_is_none(exchange: Exchange) -> None:
    """What there is is said; nothing is done by default, and not two things at once."""
    kill(exchange, exhausted=1, incompatible=0)
    replay = ("dead", "replay", "catalog", "--reason", "r")
    wrong = exchange.run(*replay, "--group", "rejected")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "no message is dead as 'rejected'; there is: exhausted" in wrong.stderr
    for choice in ((), ("--all", "--group", "exhausted"), ("--id", "x", "--all")):
        ended = exchange.run(*replay, *choice)
        assert ended.returncode == 1
        assert "say which messages" in ended.stderr
    assert parsed(exchange, "dead", "trail") == []


def test_where_nothing_is_dead_that_is_said(exchange: Exchange) -> None:
    """No line at all could be taken for a command that failed; for machines it is an empty list."""
    for act in ("replay", "drop"):
        words = ("dead", act, "catalog", "--all", "--reason", "r")
        ended = exchange.run(*words)
        said = (ended.returncode, ended.stdout, ended.stderr)
        assert said == (0, "", "catalog: nothing is dead\n")
        assert parsed(exchange, *words) == []


def test_an_id_may_be_shortened_as_long_as_it_names_one(exchange: Exchange) -> None:
    """For show, replay and drop; a beginning that two have is refused, and nothing is done."""
    (event_id,) = kill(exchange, exhausted=1, incompatible=2)
    (shown,) = parsed(exchange, "dead", "show", "catalog", event_id[:6])
    assert (shown["id"], shown["decoded"]["subject"]) == (event_id, "m-1")
    two = exchange.run("dead", "drop", "catalog", "--id", "bad-", "--reason", "r")
    assert two.returncode == 1
    assert "2 ids begin with 'bad-': bad-0, bad-1; say more of it" in two.stderr
    assert exchange.place("catalog").dead == 3
    dropped = parsed(exchange, "dead", "drop", "catalog", "--id", "bad-0", "--reason", "r")
    assert dropped == [{"id": "bad-0", "result": "dropped"}]
    replay = ("dead", "replay", "catalog", "--id", event_id[:8], "--reason", "r")
    assert exchange.run(*replay).stdout == f"{event_id}  applied\n"
    gone = exchange.run("dead", "show", "catalog", "bad-0")
    assert gone.returncode == 1
    assert "dropped by rosa" in gone.stderr


def test_one_message_in_full_for_people(exchange: Exchange) -> None:
    """Headers, the last calls of the traceback, and the body as it reads."""
    (event_id,) = kill(exchange, exhausted=1, incompatible=0)
    shown = exchange.run("dead", "show", "catalog", event_id).stdout
    assert f"id: {event_id}\nreason: exhausted\n" in shown
    assert "  x-delivery-attempt: 2\n" in shown
    assert re.search(r"^traceback \(its last calls\):\n +Traceback", shown, re.M)
    assert '    "material_id": "m-1",\n' in shown
    assert shown.count("Traceback (most recent call last)") == 1


def test_a_replay_keeps_to_its_rate(exchange: Exchange) -> None:
    """4 messages at 5 a second: three pauses of 0.2 s, and no message is left behind."""
    events = kill(exchange, exhausted=4, incompatible=0)
    with exchange.desk("catalog") as desk:
        replayed = desk.replay(set(events), reason="r", operator="o", rate=5.0)
    assert {result for _, result in replayed} == {Result.APPLIED}
    times = [each["decided_at"] for each in parsed(exchange, "dead", "trail")]
    assert all(later - earlier >= 0.19 for earlier, later in itertools.pairwise(times))


def test_a_replay_without_a_result_yet_is_in_the_trail_as_that(exchange: Exchange) -> None:
    """Nobody guesses: the recipient is down, and the trail says that there is no result."""
    kill(exchange, exhausted=1, incompatible=0)
    exchange.cast.stop("catalog")
    replay = ("dead", "replay", "catalog", "--all", "--wait", "0", "--reason", "r")
    parsed(exchange, *replay, code=1)
    (act,) = parsed(exchange, "dead", "trail")
    assert act["result"] == Result.WAITING.value


def test_what_reconcile_sends_again_is_in_the_trail(exchange: Exchange) -> None:
    """It is an operator's act like the others."""
    (event_id,) = exchange.accept("m-1")
    exchange.start("relay")
    wait_for(lambda: exchange.place("catalog").ready == 1, "it is in the queue")
    exchange.purge("catalog")
    parsed(exchange, "reconcile", "catalog", "--grace", "0")
    assert parsed(exchange, "dead", "trail") == []
    exchange.run("reconcile", "catalog", "--grace", "0", "--apply")
    (act,) = parsed(exchange, "dead", "trail", "catalog")
    assert (act["action"], act["message_id"], act["result"]) == ("send again", event_id, "sent")
