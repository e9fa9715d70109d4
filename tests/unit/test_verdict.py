"""The judge of a chaos run finds each way in which a promise can be broken, and names the ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from delivery.errors import DeliveryError
from delivery.handling import Effect
from delivery.ledger import Account, Books, account
from delivery.stopping import Stop
from delivery.traffic import KILLER, MOODY, Entry, Journal, Traffic
from delivery.verdict import Facts, Tally, differences, tally

ENTRIES = [
    Entry("e-1", "m-1", 1, "first", 0.0),
    Entry("e-2", "m-1", 2, "second", 1.0),
    Entry("e-3", "m-2", 1, "other", 2.0),
]
RIGHT = Facts(
    outbox={"e-1", "e-2", "e-3"},
    audit=["e-1", "e-2", "e-3"],
    catalog={"m-1": (2, "second"), "m-2": (1, "other")},
    dead={"catalog": {}, "audit": {}},
    written={(e.event_id, e.material_id, e.revision, e.title) for e in ENTRIES},
)


WITHOUT_3 = dict.fromkeys(("e-1", "e-2"), Effect.APPLIED)


def books(**changes: object) -> Account:
    applied = dict.fromkeys(RIGHT.outbox, Effect.APPLIED)
    given: dict[str, object] = {
        "recipient": "audit", "accepted": RIGHT.outbox, "pending": (), "receipts": applied,
        "dead": (), "ready": 0, "retry": 0, "unacked": 0,
    }  # fmt: skip
    return account(Books(**{**given, **changes}))  # type: ignore[arg-type]


def test_a_run_in_which_every_promise_was_kept() -> None:
    assert differences(ENTRIES, RIGHT, [books()]) == []
    assert tally(ENTRIES, RIGHT) == Tally(accepted=3, lost=0, doubled=0, stuck=0, overwritten=0)
    assert tally(ENTRIES, RIGHT).clean


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"outbox": {"e-1", "e-2"}}, "promised to a client, and not in the outbox: 1: e-3"),
        ({"outbox": {*RIGHT.outbox, "e-4"}}, "in the outbox, and no client was told: 1: e-4"),
        ({"audit": ["e-1", "e-3"]}, "audit has no entry for: 1: e-2"),
        ({"audit": [*RIGHT.audit, "e-2"]}, "audit has more than one entry for: 1: e-2"),
        ({"audit": [*RIGHT.audit, "e-9"]}, "audit has an entry for what nobody accepted: 1: e-9"),
        (
            {"catalog": {**RIGHT.catalog, "m-1": (1, "first")}},
            "the catalog does not show the highest revision of: 1: m-1",
        ),
        (
            {"catalog": {**RIGHT.catalog, "m-1": (2, "another title")}},
            "the catalog does not show the highest revision of: 1: m-1",
        ),
        (
            {"catalog": {"m-1": (2, "second")}},
            "the catalog does not show the highest revision of: 1: m-2",
        ),
        (
            {"catalog": {**RIGHT.catalog, "m-9": (1, "x")}},
            "the catalog shows what nobody published: 1: m-9",
        ),
        (
            {"written": {*RIGHT.written, ("e-2", "m-1", 2, "another title")}},
            "audit has something else than was accepted for: 1: e-2",
        ),
        (
            {"dead": {"catalog": {"e-1": "incompatible"}, "audit": {}}},
            "dead for catalog for a reason that is not theirs: 1: e-1",
        ),
        (
            {"dead": {"catalog": {}, "audit": {"invented": "incompatible"}}},
            "dead for audit, and nobody sent it: 1: invented",
        ),
    ],
)
def test_each_broken_promise_is_named(changes: dict[str, object], says: str) -> None:
    found = differences(ENTRIES, replace(RIGHT, **changes), [books()])  # type: ignore[arg-type]
    assert found[0] == says


def test_what_nobody_accepted_is_named_once() -> None:
    entry = ("e-9", "m-9", 1, "t")
    facts = replace(RIGHT, audit=[*RIGHT.audit, "e-9"], written={*RIGHT.written, entry})
    assert differences(ENTRIES, facts, []) == [
        "audit has an entry for what nobody accepted: 1: e-9"
    ]


def test_what_is_dead_with_a_good_reason_is_not_missed() -> None:
    """The highest revision is dead for the catalog: the one before it is the right one."""
    for title, reason in ((f"{KILLER} message", "killer"), (f"{MOODY} 7", "exhausted")):
        entries = [*ENTRIES, Entry("e-4", "m-1", 3, title, 3.0)]
        facts = replace(
            RIGHT,
            outbox={*RIGHT.outbox, "e-4"},
            dead={"catalog": {"e-4": reason}, "audit": {"e-4": reason}},
        )
        assert differences(entries, facts, []) == []
        assert tally(entries, facts).clean


@pytest.mark.parametrize("reason", ["killer", "exhausted"])
def test_who_did_not_ask_to_die_is_missed(reason: str) -> None:
    """No store refused a calm title, and it killed nobody: its attempts were spent by trouble."""
    facts = replace(RIGHT, dead={"catalog": {"e-1": reason}, "audit": {}})
    assert differences(ENTRIES, facts, []) == [
        "dead for catalog for a reason that is not theirs: 1: e-1"
    ]


def test_a_revision_that_two_events_were_promised_is_named() -> None:
    """The later one changed nothing: its client believes that it did."""
    entries = [*ENTRIES, Entry("e-4", "m-1", 2, "overwritten", 3.0)]
    facts = replace(RIGHT, outbox={*RIGHT.outbox, "e-4"}, audit=[*RIGHT.audit, "e-4"])
    assert differences(entries, facts, []) == [
        "two events were promised the same revision of: 1: m-1"
    ]


def test_an_event_that_was_promised_to_somebody_else_is_no_answer() -> None:
    """A journal that kept one of the two promises only would find nothing wrong."""

    class Answering(Journal):
        def _ask(self, command: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
            return 202, {"event_id": "e-1", "revision": 1}

    journal = Answering("", Stop())
    journal.publish("m-1", "first")
    with pytest.raises(DeliveryError, match="promised e-1 to two requests"):
        journal.publish("m-2", "second")
    assert [entry.title for entry in journal.entries.values()] == ["first"]


def test_publishing_that_ends_by_itself_says_why() -> None:
    """A thread that only died would leave a run that was hardly under load, and adds up."""

    class Nameless(Journal):
        def _ask(self, command: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
            return 202, {"revision": 1}

    traffic = Traffic(Nameless("", Stop()), rate=1000, materials=1, seed=1)
    traffic.run()
    assert repr(traffic.error) == "KeyError('event_id')"


def test_the_reason_of_a_foreign_message_is_its_own() -> None:
    dead = {"catalog": {"stranger": "incompatible"}, "audit": {}}
    facts = replace(RIGHT, dead=dead, strangers={"stranger"})
    assert differences(ENTRIES, facts, []) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"receipts": {"e-1": Effect.APPLIED, "e-2": Effect.STALE}}, "audit: no trace of: 1: e-3"),
        ({"ready": 2}, "audit: 2 still on the way"),
        ({"receipts": WITHOUT_3, "ready": 1}, "audit: 1 still on the way"),
        ({"receipts": WITHOUT_3, "retry": 1}, "audit: 1 still on the way"),
        ({"receipts": WITHOUT_3, "unacked": 1}, "audit: 1 still on the way"),
        ({"receipts": WITHOUT_3, "pending": {"e-3"}}, "audit: 1 still on the way"),
        (
            {"receipts": {**dict.fromkeys(RIGHT.outbox, Effect.APPLIED), "e-9": Effect.APPLIED}},
            "audit: applied, and never accepted: 1: e-9",
        ),
    ],
)
def test_the_ledger_has_its_say(changes: dict[str, object], says: str) -> None:
    assert differences(ENTRIES, RIGHT, [books(**changes)])[0] == says


def test_a_difference_in_the_ledger_is_told_though_no_id_is_known() -> None:
    """The ids may be too many to be kept."""
    lost = replace(books(), difference=1, missing=())
    assert differences(ENTRIES, RIGHT, [lost]) == ["audit: the ledger's difference is 1"]


def test_every_kind_of_loss_is_counted() -> None:
    facts = replace(
        RIGHT,
        audit=["e-1", "e-1", "e-1"],
        catalog={"m-1": (1, "first")},
        pending=["e-3"],
    )
    assert tally(ENTRIES, facts) == Tally(accepted=3, lost=1, doubled=2, stuck=1, overwritten=2)
    for wrong in ("lost", "doubled", "stuck", "overwritten"):
        assert not replace(tally(ENTRIES, RIGHT), **{wrong: 1}).clean


def test_every_id_is_named_however_many() -> None:
    entries = [Entry(f"e-{n:02}", "m-1", n, "t", 0.0) for n in range(1, 13)]
    facts = replace(RIGHT, outbox={e.event_id for e in entries}, audit=[], catalog={})
    (said,) = [line for line in differences(entries, facts, []) if line.startswith("audit has no")]
    assert said == f"audit has no entry for: 12: {', '.join(e.event_id for e in entries)}"
