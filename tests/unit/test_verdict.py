"""The judge of a chaos run finds each way in which a promise can be broken, and names the ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delivery.handling import Effect
from delivery.ledger import Account, Books, account
from delivery.traffic import Entry
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
)


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
            {"dead": {"catalog": {"e-3": "incompatible"}, "audit": {}}},
            "dead for catalog for a reason that is not theirs: 1: e-3",
        ),
    ],
)
def test_each_broken_promise_is_named(changes: dict[str, object], says: str) -> None:
    found = differences(ENTRIES, replace(RIGHT, **changes), [books()])  # type: ignore[arg-type]
    assert found[0] == says


def test_what_is_dead_with_a_good_reason_is_not_missed() -> None:
    """The highest revision is dead for the catalog: the one before it is the right one."""
    facts = replace(
        RIGHT,
        audit=["e-1", "e-3"],
        catalog={"m-1": (1, "first"), "m-2": (1, "other")},
        dead={"catalog": {"e-2": "killer"}, "audit": {"e-2": "exhausted"}},
    )
    assert differences(ENTRIES, facts, []) == []
    assert tally(ENTRIES, facts).clean


def test_the_reason_of_a_foreign_message_is_its_own() -> None:
    facts = replace(RIGHT, dead={"catalog": {"stranger": "incompatible"}, "audit": {}})
    assert differences(ENTRIES, facts, []) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"receipts": {"e-1": Effect.APPLIED, "e-2": Effect.STALE}}, "audit: no trace of: 1: e-3"),
        ({"ready": 2}, "audit: 2 still on the way"),
        (
            {"receipts": {**dict.fromkeys(RIGHT.outbox, Effect.APPLIED), "e-9": Effect.APPLIED}},
            "audit: applied, and never accepted: 1: e-9",
        ),
    ],
)
def test_the_ledger_has_its_say(changes: dict[str, object], says: str) -> None:
    assert differences(ENTRIES, RIGHT, [books(**changes)])[0] == says


def test_every_kind_of_loss_is_counted() -> None:
    facts = replace(
        RIGHT,
        audit=["e-1", "e-1", "e-1"],
        catalog={"m-1": (1, "first")},
        pending=["e-3"],
    )
    assert tally(ENTRIES, facts) == Tally(accepted=3, lost=1, doubled=2, stuck=1, overwritten=2)


def test_a_long_list_of_ids_is_cut() -> None:
    entries = [Entry(f"e-{n:02}", "m-1", n, "t", 0.0) for n in range(1, 13)]
    facts = replace(RIGHT, outbox={e.event_id for e in entries}, audit=[], catalog={})
    (said,) = [line for line in differences(entries, facts, []) if line.startswith("audit has no")]
    assert said.startswith("audit has no entry for: 12: e-01, e-02,")
    assert said.endswith("e-10 ...")
