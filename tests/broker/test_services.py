"""The exchange's processes together: replay, restarts, one relay, reconcile, operators."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.events import event
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for

from delivery.books import accounts
from delivery.broker import Broker
from delivery.cast import Actor
from delivery.client import post
from delivery.codec import encode
from delivery.connection import connect
from delivery.errors import DeliveryError
from delivery.feed import read_page
from delivery.handling import Effect
from delivery.inbox import prune
from delivery.ledger_stores import Recipient, sqlite_shelves
from delivery.plan import Prospect, Result
from delivery.reconcile import missing
from delivery.stores import PUBLISHER
from delivery.triage import DeskBusy, held


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        yield opened


@pytest.fixture
def breakable(breakable_broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(breakable_broker, tmp_path, namespace) as opened:
        yield opened


def kill_one(exchange: Exchange, material_id: str = "m-1") -> str:
    """Publish an event that audit applies and that dies for the catalog; return its id."""
    with exchange.refusing(material_id):
        (event_id,) = exchange.accept(material_id)
        exchange.await_dead("catalog")
    exchange.await_receipt("audit", event_id)
    return event_id


# -- replay, drop: the operator's desk


def test_a_replay_is_for_its_own_recipient_only(exchange: Exchange) -> None:
    """Case 14: a dead catalog message is replayed; audit gets nothing new, not even a duplicate."""
    exchange.start("relay", "catalog", "audit")
    event_id = kill_one(exchange)
    audit_before = exchange.receipt("audit", event_id)
    assert exchange.cast.stop("audit") == 0  # what came for it now would stay in its queue

    replayed = exchange.run("dead", "replay", "catalog", "--id", event_id, "--reason", "healed")

    assert (replayed.returncode, replayed.stdout) == (0, f"{event_id}  applied\n")
    assert exchange.receipt("catalog", event_id).effect is Effect.APPLIED
    assert exchange.receipt("audit", event_id) == audit_before
    assert exchange.place("audit").ready == 0
    assert sum(exchange.place("audit").retry) == 0
    exchange.assert_all_applied()


def test_the_plan_says_what_is_owed_and_changes_nothing(exchange: Exchange) -> None:
    """No receipt: the effect is owed. With one: only a duplicate would be counted."""
    exchange.start("relay", "catalog", "audit")
    event_id = kill_one(exchange)
    with exchange.desk("catalog") as desk:
        (planned,) = desk.plan()
        assert (planned.message.key, planned.prospect) == (event_id, Prospect.EFFECT)
        assert planned.message.reason == "exhausted"
        assert planned.message.attempts == len(exchange.config.retries_ms) + 1
        assert "the search index is not ready" in planned.message.error

        (body,) = exchange.select(PUBLISHER, "SELECT body FROM outbox")
        exchange.put("catalog", body, event_id)
        receipt = exchange.await_receipt("catalog", event_id)
        (planned,) = desk.plan()

    assert (planned.prospect, planned.receipt) == (Prospect.DUPLICATE, receipt)
    assert exchange.place("catalog").dead == 1


def test_a_second_replay_says_who_was_first(exchange: Exchange) -> None:
    """Who, when, why, and what the receipt says: the second operator need not guess."""
    exchange.start("relay", "catalog", "audit")
    event_id = kill_one(exchange)
    replay = ("dead", "replay", "catalog", "--id", event_id, "--reason", "index is back")
    assert exchange.run(*replay, DELIVERY_OPERATOR="rosa").returncode == 0

    second = exchange.run(*replay, DELIVERY_OPERATOR="paul")

    assert (second.returncode, second.stdout) == (1, "")
    assert re.fullmatch(
        rf"error: {event_id} is not among the dead messages of catalog;"
        r" replayed by rosa at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(index is back\);"
        r" its receipt says applied\n",
        second.stderr,
    )
    assert exchange.receipt("catalog", event_id).duplicates == 0


def test_a_replay_that_dies_again_says_so(exchange: Exchange) -> None:
    """The cause is still there: dead again, exit 1, and the replays are counted."""
    exchange.start("relay", "catalog", "audit")
    with exchange.refusing("m-1"):
        (event_id,) = exchange.accept("m-1")
        exchange.await_dead("catalog")
        for replays in (1, 2):
            ended = exchange.run("dead", "replay", "catalog", "--all", "--reason", "hoping")
            assert (ended.returncode, ended.stdout) == (1, f"{event_id}  dead again\n")
            with exchange.desk("catalog") as desk:
                assert [each.replays for each in desk.browse()] == [replays]
    assert exchange.receipt("catalog", event_id) is None


def test_a_replay_without_a_recipient_has_no_result_yet(exchange: Exchange) -> None:
    """Nobody consumes: the command says that it waits, and does not call it a success."""
    exchange.start("relay", "catalog", "audit")
    event_id = kill_one(exchange)
    exchange.cast.stop("catalog")

    ended = exchange.run(
        *("dead", "replay", "catalog", "--all", "--reason", "early", "--wait", "0.5")
    )

    assert ended.returncode == 1
    assert ended.stdout.startswith(f"{event_id}  no result yet")
    assert exchange.place("catalog").ready == 1


def test_where_receipts_were_pruned_a_replay_needs_force(exchange: Exchange) -> None:
    """A receipt that is gone could have been there: refused, nothing sent, until --force."""
    exchange.start("relay", "catalog", "audit")
    event_id = kill_one(exchange)
    with closing(exchange.config.stores.open("catalog")) as store:
        prune(store, "catalog", before=time.time() + 60, oldest_dead=None)
    replay = ("dead", "replay", "catalog", "--id", event_id, "--reason", "healed")

    refused = exchange.run(*replay)
    assert refused.returncode == 1
    assert event_id in refused.stderr
    assert "--force" in refused.stderr
    assert exchange.place("catalog").dead == 1
    assert exchange.select("catalog", "SELECT count(*) FROM decision") == [0]

    assert exchange.run(*replay, "--force").stdout == f"{event_id}  applied\n"
    exchange.assert_all_applied()


def test_a_message_that_is_given_up_stays_in_the_books(exchange: Exchange) -> None:
    """Dropped: the queue is empty, the ledger balances, who and why are kept, a copy is refused."""
    exchange.start("relay", "catalog", "audit")
    event_id = kill_one(exchange)
    drop = ("dead", "drop", "catalog", "--id", event_id, "--reason", "test data")
    dropped = exchange.run(*drop, DELIVERY_OPERATOR="rosa")

    assert (dropped.returncode, dropped.stdout) == (0, f"{event_id}  dropped\n")
    assert exchange.place("catalog").dead == 0
    assert exchange.select("catalog", "SELECT action, operator, reason FROM decision") == [
        ("drop", "rosa", "test data")
    ]
    account = exchange.accounts()["catalog"]
    assert (account.dropped, account.applied, account.difference) == (1, 0, 0)

    (body,) = exchange.select(PUBLISHER, "SELECT body FROM outbox")
    exchange.put("catalog", body, event_id)
    assert exchange.await_receipt("catalog", event_id, duplicates=1).effect is Effect.DROPPED
    assert exchange.select("catalog", "SELECT count(*) FROM catalog") == [0]


def test_a_decision_without_a_reason_is_none(exchange: Exchange) -> None:
    """A blank reason is refused before anything is moved or deleted."""
    exchange.start("relay", "catalog", "audit")
    event_id = kill_one(exchange)
    for action in ("replay", "drop"):
        ended = exchange.run("dead", action, "catalog", "--id", event_id, "--reason", " ")
        assert ended.returncode == 1
        assert "reason" in ended.stderr
    assert exchange.place("catalog").dead == 1
    assert exchange.receipt("catalog", event_id) is None


def test_two_operators_at_once_replay_each_message_once(exchange: Exchange) -> None:
    """Both press the button: every message is applied once, and none is lost."""
    exchange.start("relay", "catalog", "audit")
    with exchange.refusing("m-1"):
        events = exchange.accept(*["m-1"] * 8)
        exchange.await_dead("catalog", 8)
    start = threading.Barrier(2)

    def work(name: str) -> dict[str, Result]:
        with exchange.desk("catalog") as desk:
            keys = set(events)
            start.wait(10)
            replayed = desk.replay(keys, reason="both", operator=name, seconds=3)
            return {planned.message.key: result for planned, result in replayed}

    with ThreadPoolExecutor(2) as pool:
        rosa, paul = pool.map(work, ["rosa", "paul"])

    assert Result.WAITING not in {*rosa.values(), *paul.values()}
    good = (Result.APPLIED, Result.STALE, Result.ALREADY_APPLIED)
    assert {key for own in (rosa, paul) for key, result in own.items() if result in good} == set(
        events
    )
    for event_id in events:
        exchange.await_receipt("catalog", event_id)
        assert exchange.receipt("catalog", event_id).duplicates == 0
    exchange.assert_all_applied()
    assert exchange.place("catalog").dead == 0


def test_one_operator_at_a_time(exchange: Exchange) -> None:
    """Somebody else holds the dead messages: that is said; it is neither "none" nor a success."""
    exchange.start("relay", "catalog", "audit")
    event_id = kill_one(exchange)
    route = exchange.config.route("catalog")
    with (
        exchange.desk("catalog") as desk,
        connect(exchange.config.broker) as other,
        held(other, route) as (_, messages),
    ):
        assert [message.key for message in messages] == [event_id]
        with pytest.raises(DeskBusy, match="catalog"):
            desk.replay({event_id}, reason="r", operator="o", seconds=1)
    assert exchange.place("catalog").dead == 1
    assert exchange.select("catalog", "SELECT count(*) FROM decision") == [0]


def test_a_message_that_another_operator_takes_after_the_plan_is_gone(exchange: Exchange) -> None:
    """Between plan and replay it went: said so at once, and no decision is recorded for it."""
    exchange.start("relay", "catalog", "audit")
    event_id = kill_one(exchange)

    class Interrupted(set[str]):
        """Keys that are looked at after the plan: then another operator comes in."""

        def __contains__(self, key: object) -> bool:
            if exchange.place("catalog").dead:
                replay = ("dead", "replay", "catalog", "--all", "--reason", "first")
                assert exchange.run(*replay, DELIVERY_OPERATOR="paul").returncode == 0
            return super().__contains__(key)

    with exchange.desk("catalog") as desk:
        keys = Interrupted({event_id})
        ((_, result),) = desk.replay(keys, reason="second", operator="rosa", seconds=1)

    assert result is Result.GONE
    assert exchange.select("catalog", "SELECT operator FROM decision") == ["paul"]
    assert exchange.receipt("catalog", event_id).duplicates == 0


def test_an_incompatible_message_is_listed_shown_and_planned(exchange: Exchange) -> None:
    """Bytes that are no event, without an id: they have a key, a reason, and are not lost."""
    exchange.start("catalog")
    exchange.put("catalog", b"\xff not an event", "")
    exchange.await_dead("catalog")
    with exchange.desk("catalog") as desk:
        (planned,) = desk.plan()
    key = planned.message.key
    assert key.startswith("sha256-")
    assert planned.prospect is Prospect.NOT_AN_EVENT

    shown = exchange.run("dead", "show", "catalog", key)
    assert shown.returncode == 0
    assert "  \\xff not an event" in shown.stdout
    assert exchange.accounts(0.5)["catalog"].foreign_dead == 1


def test_what_is_accepted_while_the_ledger_is_read_is_no_strangers(exchange: Exchange) -> None:
    """One is accepted and applied between the two looks. What nobody published is still named."""
    exchange.start("relay", "catalog", "audit")
    shelves = sqlite_shelves(exchange.config.stores)

    @contextmanager
    def late(name: str) -> Iterator[Recipient]:
        (event_id,) = exchange.accept(f"m-{name}")
        exchange.await_receipt(name, event_id)
        with shelves.recipient(name) as opened:
            yield opened

    def strangers() -> list[tuple[str, ...]]:
        with connect(exchange.config.broker) as connection:
            found = accounts(exchange.config, connection, replace(shelves, recipient=late))
        return [each.never_accepted for each in found]

    assert strangers() == [(), ()]
    stranger = event("m-stranger")
    exchange.put("audit", encode(stranger), stranger.id)
    exchange.await_receipt("audit", stranger.id)
    assert strangers() == [(), (stranger.id,)]


# -- reconcile


def test_a_lost_message_is_found_and_healed(exchange: Exchange) -> None:
    """Purged on purpose: reconcile finds it, sends it to the catalog alone, and finds no more."""
    lost, kept = exchange.accept("m-1", "m-2")
    exchange.start("relay", "audit")
    for event_id in (lost, kept):
        exchange.await_receipt("audit", event_id)
    assert exchange.purge("catalog") == 2
    (body,) = exchange.select(PUBLISHER, f"SELECT body FROM outbox WHERE event_id = '{kept}'")
    exchange.put("catalog", body, kept)
    exchange.start("catalog")
    exchange.await_receipt("catalog", kept)
    audit_before = exchange.receipt("audit", lost)
    assert exchange.accounts(0.5)["catalog"].missing == (lost,)

    waiting = exchange.run("reconcile", "catalog")  # confirmed less than 60 s ago: left alone
    assert waiting.stdout == ""
    planned = exchange.run("reconcile", "catalog", "--grace", "0")
    assert planned.stdout == f"{lost}\n"
    assert "--apply" in planned.stderr
    assert exchange.receipt("catalog", lost) is None

    applied = exchange.run("reconcile", "catalog", "--grace", "0", "--apply")
    assert (applied.returncode, applied.stdout) == (0, f"{lost}\n")
    exchange.await_receipt("catalog", lost)

    again = exchange.run("reconcile", "catalog", "--grace", "0", "--apply")
    assert (again.returncode, again.stdout) == (0, "")
    exchange.assert_all_applied()
    assert exchange.receipt("audit", lost) == audit_before


def test_what_is_dead_or_not_confirmed_is_not_missing(exchange: Exchange) -> None:
    """Reconcile leaves to the operator what is dead, and to the relay what is pending."""
    exchange.start("relay", "catalog", "audit")
    dead = kill_one(exchange)
    exchange.cast.stop("relay")
    exchange.accept("m-2")
    ended = exchange.run("reconcile", "catalog", "--grace", "0", "--apply")
    assert (ended.returncode, ended.stdout) == (0, "")

    route = exchange.config.route("catalog")
    with (
        closing(exchange.config.stores.open(PUBLISHER)) as feed,
        closing(exchange.config.stores.open("catalog")) as inbox,
    ):
        found = missing(read_page(feed), inbox, route, dead=(), grace=0)
        assert [each.event_id for each in found] == [dead]


# -- the ledger and the status, as commands


def test_the_ledger_command_ends_with_1_if_an_event_is_nowhere(exchange: Exchange) -> None:
    """The exit code is for scripts, the id for people; an effect without cause counts, too."""
    exchange.start("relay", "audit")
    (event_id,) = exchange.accept("m-1")
    exchange.await_receipt("audit", event_id)
    waits = exchange.run("ledger", "--within", "0.5")
    assert waits.returncode == 0  # in the catalog's queue: somewhere

    exchange.purge("catalog")
    ended = exchange.run("ledger", "--within", "0.5")
    assert ended.returncode == 1
    assert f"catalog: missing: {event_id}" in ended.stdout

    stranger = event("m-9")
    exchange.start("catalog")
    exchange.run("reconcile", "catalog", "--grace", "0", "--apply")
    exchange.put("catalog", encode(stranger), stranger.id)
    exchange.await_receipt("catalog", stranger.id)
    ended = exchange.run("ledger", "--within", "0.5")
    assert ended.returncode == 1
    assert f"catalog: never accepted: {stranger.id}" in ended.stdout


def test_the_management_plugin_tells_what_is_unacked(exchange: Exchange) -> None:
    """A message that a reader holds is neither ready nor gone: it is unacked, and counted."""
    assert exchange.config.management is not None
    (event_id,) = exchange.accept("m-1")
    exchange.start("relay", "audit")
    exchange.await_receipt("audit", event_id)
    queue = exchange.config.route("catalog").queue
    with connect(exchange.config.broker) as connection:
        method, _, _ = connection.channel().basic_get(queue)
        assert method is not None
        wait_for(lambda: exchange.config.management.unacked(queue) == 1, "the plugin's sample")
        shown = exchange.run("status")
        assert re.search(r"^unacked +1 +0 +up to \d+ s ago *$", shown.stdout, re.M), shown.stdout
        assert exchange.accounts(0)["catalog"].unacked == 1


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9", "amqp"], ids=["none", "dead", "no HTTP"])
def test_without_management_unacked_is_not_visible(exchange: Exchange, url: str) -> None:
    """Nobody could tell: "not visible" for people, null for machines, and never 0."""
    if url == "amqp":  # an address where something else answers
        url = f"http://{exchange.config.broker.address}"
    shown = exchange.run("status", DELIVERY_MANAGEMENT_URL=url)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"^unacked +not visible +not visible ", shown.stdout, re.M), shown.stdout
    assert re.search(r"^ready +0 +0 +now *$", shown.stdout, re.M), shown.stdout
    assert "catalog: unacked is not visible: the management plugin" in shown.stdout

    machines = exchange.run("status", "--json", DELIVERY_MANAGEMENT_URL=url)
    assert [each["unacked"] for each in json.loads(machines.stdout)["recipients"]] == [None, None]


def test_what_is_for_machines_can_be_parsed(exchange: Exchange) -> None:
    """--json of status, ledger, reconcile, dead list, plan and show, on real content."""
    exchange.start("relay", "catalog", "audit")
    event_id = kill_one(exchange)

    def parsed(*words: str) -> Any:
        ended = exchange.run(*words)
        assert (ended.returncode, ended.stderr) == (0, "")
        return json.loads(ended.stdout)

    status = parsed("status", "--json")
    assert status["outbox"]["accepted"] == status["outbox"]["confirmed"] == 1
    assert [each["dead"] for each in status["recipients"]] == [1, 0]
    ledger = parsed("ledger", "--json", "--within", "0")
    assert [(each["dead"], each["difference"]) for each in ledger] == [(1, 0), (0, 0)]
    found = parsed("reconcile", "audit", "--grace", "0", "--json")
    assert found == {"recipient": "audit", "sent": False, "missing": [], "parked": 0}
    (listed,) = parsed("dead", "list", "catalog", "--json")
    assert (listed["id"], listed["reason"], listed["attempts"]) == (event_id, "exhausted", 3)
    (planned,) = parsed("dead", "plan", "catalog", "--json")
    assert (planned["id"], planned["prospect"], planned["receipt"]) == (event_id, "effect", None)
    (shown,) = parsed("dead", "show", "catalog", event_id, "--json")
    assert shown["decoded"]["id"] == event_id
    assert json.loads(shown["body"])["id"] == event_id
    assert "the search index is not ready" in shown["traceback"]


# -- one relay


def test_a_queue_that_stays_full_costs_a_new_channel_now_and_then(exchange: Exchange) -> None:
    """The relay can't tell it from a channel that refuses for good: that is no trouble to report.

    It is sent as soon as there is room, by the relay that has been there all the time.
    """
    (relay,) = exchange.start("relay")
    queue, management = exchange.config.route("catalog").queue, exchange.config.management
    assert management is not None
    policy = f"/api/policies/%2F/{queue}"
    full = {"max-length": 1, "overflow": "reject-publish"}
    management.put(policy, {"pattern": f"^{queue}$", "definition": full, "apply-to": "queues"})
    try:
        wait_for(
            lambda: exchange.accept("m-1") and relay.said("message.not_confirmed"),
            "the queue is full",
        )
        relay.await_event("relay.reopened")
    finally:
        management.delete(policy)
    exchange.await_sent()

    exchange.start("catalog", "audit")
    exchange.assert_all_applied()
    assert relay.said("relay.ready") == 1
    troubles = re.findall(r"^\S+ (?:warning|error) (\S+)", relay.log(), re.M)
    assert set(troubles) == {"message.not_confirmed"}


def test_the_second_relay_says_who_is_the_first(exchange: Exchange) -> None:
    """Case 18: one relay per SQLite outbox; after a crash nothing has to be cleared."""
    (first,) = exchange.start("relay")
    second = exchange.run("relay")
    assert second.returncode == 1
    (error,) = [line for line in second.stderr.splitlines() if line.startswith("error:")]
    assert f"process {first.process.pid}, since " in error
    assert "Traceback" not in second.stderr

    exchange.kill("relay")
    exchange.start("relay", "catalog", "audit")
    exchange.accept("m-1")
    exchange.assert_all_applied()


# -- the broker goes, and comes back

CYCLE = ("relay", "catalog", "audit")


def pauses(actor: Actor) -> list[float]:
    return [float(p) for p in re.findall(r" warning \S+ .*?pause=([\d.]+)", actor.log())]


def await_back(exchange: Exchange, ready: dict[str, int], deadline: float) -> None:
    """Each process is ready again, and each queue has exactly one consumer."""
    for name in CYCLE:
        left = deadline - time.monotonic()
        exchange.cast[name].await_event(f"{name}.ready", times=ready[name] + 1, seconds=left)
    for recipient in ("catalog", "audit"):
        left = deadline - time.monotonic()
        wait_for(lambda r=recipient: exchange.place(r).consumers == 1, f"one {recipient}", left)


def test_every_process_survives_the_broker(breakable_broker: Broker, breakable: Exchange) -> None:
    """Case 15: restarted, then killed: said, awaited with growing pauses, back within 30 s."""
    actors = breakable.start(*CYCLE)
    breakable.accept("m-1")
    breakable.assert_all_applied()

    def killed_for_a_while() -> None:
        breakable_broker.kill()
        breakable.accept("m-2")  # the API goes on without a broker
        for actor in actors:  # long enough to see the pauses grow
            wait_for(lambda a=actor: len(pauses(a)) >= 4, f"{actor.name} tries again")
        breakable_broker.start()

    for number, trouble in enumerate((breakable_broker.restart, killed_for_a_while), start=3):
        ready = {actor.name: actor.said(f"{actor.name}.ready") for actor in actors}
        trouble()
        await_back(breakable, ready, time.monotonic() + 30)
        (event_id,) = breakable.accept(f"m-{number}")
        for recipient in ("catalog", "audit"):
            breakable.await_receipt(recipient, event_id)
    breakable.assert_all_applied()

    for actor in actors:
        assert actor.process.poll() is None
        assert "Traceback" not in actor.log()
    assert_growing_and_jittered([pauses(actor) for actor in actors])


def assert_growing_and_jittered(all_pauses: list[list[float]]) -> None:
    """Each pause is within half to all of first * 2**n, and no two processes pause alike."""
    for own in all_pauses:
        failures = 0
        for pause in own:
            # A pause that fits no longer run of failures starts a new one: 0.25 to 0.5 s.
            full = min(15.0, 0.5 * 2**failures)
            if not full / 2 - 0.01 <= pause <= full + 0.01:
                failures, full = 0, 0.5
            assert full / 2 - 0.01 <= pause <= full + 0.01, own
            failures += 1
        assert max(own) >= 1.0, own
    assert len({tuple(own[:4]) for own in all_pauses}) == len(all_pauses)


# -- many writers, one file


def test_twenty_seconds_of_everybody_writing(exchange: Exchange) -> None:
    """Case 13: API, relay and recipients on their files at once: nobody finds one locked."""
    exchange.start("api", *CYCLE)
    end = time.monotonic() + 20
    url = exchange.url

    def client(number: int) -> int:
        accepted = 0
        while time.monotonic() < end:
            command = {"title": f"T {accepted}", "slug": "a-title", "author": "A"}
            command["material_id"] = f"m-{number}-{accepted % 7}"
            status, answer, _ = post(url, command, f"{number}-{accepted}")
            assert status == 202, answer
            accepted += 1
        return accepted

    def reader() -> int:
        """Somebody who looks at every file meanwhile, and writes to one now and then."""
        looks = 0
        while time.monotonic() < end:
            for participant in (PUBLISHER, "catalog", "audit"):
                store = sqlite3.connect(exchange.config.stores.path(participant))
                with closing(store):
                    store.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            looks += 1
            time.sleep(0.05)
        return looks

    with ThreadPoolExecutor(4) as pool:
        looking = pool.submit(reader)
        accepted = sum(pool.map(client, range(3)))
        assert looking.result() > 50

    accounts = exchange.accounts(60)
    assert all(each.accepted == accepted > 100 for each in accounts.values()), accounts
    exchange.assert_all_applied()
    for name in ("api", *CYCLE):
        log = exchange.cast[name].log()
        assert "database is locked" not in log
        assert "pause=" not in log
        assert "Traceback" not in log


def test_a_missing_dead_queue_is_explained(exchange: Exchange) -> None:
    """The operator's first command on a fresh broker says what to do."""
    with connect(exchange.config.broker) as connection:
        connection.channel().queue_delete(exchange.dead_queue("catalog"))
    with (
        exchange.desk("catalog") as desk,
        pytest.raises(DeliveryError, match="delivery topology declare"),
    ):
        desk.browse()
    exchange.accept("m-1")
    ended = exchange.run("reconcile", "catalog")
    assert ended.returncode == 1
    assert "delivery topology declare" in ended.stderr
