"""The ledger counts each accepted event once, in one place, and says what is nowhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.handling import Effect
from delivery.ledger import Account, Books, account

NOTHING = Books(
    recipient="catalog",
    accepted=(),
    pending=(),
    receipts={},
    dead=(),
    ready=0,
    retry=0,
    unacked=0,
)
PLACES = ("applied", "stale", "dropped", "dead", "pending", "parked", "retry", "unacked", "ready")


def places(found: Account) -> dict[str, int]:
    return {place: getattr(found, place) for place in PLACES if getattr(found, place)}


@pytest.mark.parametrize(
    ("books", "place"),
    [
        ({"receipts": {"a": Effect.APPLIED}}, "applied"),
        ({"receipts": {"a": Effect.DUPLICATE}}, "applied"),
        ({"receipts": {"a": Effect.STALE}}, "stale"),
        ({"receipts": {"a": Effect.DROPPED}}, "dropped"),
        ({"dead": ["a"]}, "dead"),
        ({"pending": ["a"]}, "pending"),
        ({"parked": ["a"]}, "parked"),
        ({"ready": 1}, "ready"),
        ({"retry": 1}, "retry"),
        ({"unacked": 1}, "unacked"),
    ],
)
def test_one_event_is_in_one_place(books: dict[str, object], place: str) -> None:
    """Wherever an accepted event is, it is counted there, once, and the sum is right."""
    found = account(replace(NOTHING, accepted=["a"], **books))

    assert places(found) == {place: 1}
    assert (found.accepted, found.difference, found.copies, found.missing) == (1, 0, 0, ())
    assert found.balanced


def test_what_is_settled_counts_before_every_copy() -> None:
    """A copy that is dead, pending, ready or on its way again is not a second event."""
    books = replace(NOTHING, accepted=["a"], receipts={"a": Effect.APPLIED})
    for copy in ({"dead": ["a", "a"]}, {"pending": ["a"]}, {"ready": 3}, {"retry": 2}):
        found = account(replace(books, **copy))
        assert places(found) == {"applied": 1}
        assert found.balanced
    assert account(replace(books, ready=3, retry=2, unacked=1)).copies == 6


def test_a_dead_copy_does_not_hide_that_it_was_published() -> None:
    """Dead counts before pending: the relay may send again what has died already."""
    found = account(replace(NOTHING, accepted=["a"], dead=["a"], pending=["a"]))
    assert places(found) == {"dead": 1}


def test_a_parked_event_counts_once_and_covers_no_other() -> None:
    """Sent again it waits in two places; not marked yet it is pending; it is not forgotten."""
    books = replace(NOTHING, accepted=["a", "b"], parked=["a", "x"])
    found = account(books)
    assert (places(found), found.difference, found.missing) == ({"parked": 1}, 1, ("b",))
    assert account(replace(books, ready=1)).difference == 0
    for more, place in (({"pending": ["a"]}, "pending"), ({"dead": ["a"]}, "dead")):
        assert places(account(replace(books, **more))) == {place: 1}
    assert places(account(replace(books, forgettable=["a"]))) == {"parked": 1}
    assert account(replace(books, accepted=["a"], ready=1)).copies == 1


def test_a_lost_event_is_a_difference_with_its_id() -> None:
    """Accepted, confirmed, and nowhere: the ledger names what to look for."""
    found = account(replace(NOTHING, accepted=["b", "a", "c"], receipts={"b": Effect.APPLIED}))

    assert (found.difference, found.missing) == (2, ("a", "c"))
    assert not found.balanced


def test_with_one_of_two_on_the_broker_both_are_suspects() -> None:
    """A queue tells how many wait, not which: all that could be missing are named."""
    found = account(replace(NOTHING, accepted=["a", "b"], ready=1))
    assert (found.ready, found.difference, found.missing) == (1, 1, ("a", "b"))


def test_an_effect_of_what_nobody_accepted_is_shown() -> None:
    """A receipt without an accepted event is no balance, whatever the sum says."""
    found = account(replace(NOTHING, receipts={"x": Effect.APPLIED, "y": Effect.STALE}))

    assert found.never_accepted == ("x", "y")
    assert found.difference == 0
    assert not found.balanced


def test_a_foreign_dead_message_is_shown_and_owes_nothing() -> None:
    """Somebody else's bytes in our dead queue are counted apart."""
    found = account(replace(NOTHING, accepted=["a"], receipts={"a": Effect.STALE}, dead=["x"]))

    assert (found.foreign_dead, found.dead, found.difference) == (1, 0, 0)
    assert found.balanced


def test_a_foreign_message_that_was_given_up_is_no_effect() -> None:
    """Dropping what nobody accepted leaves a receipt; it is not "applied without cause"."""
    found = account(replace(NOTHING, receipts={"x": Effect.DROPPED}))

    assert (found.never_accepted, found.dropped) == ((), 0)
    assert found.balanced


def test_not_visible_is_not_zero() -> None:
    """Where nobody could tell what is unacked, the account says so, and a gap is a difference."""
    found = account(replace(NOTHING, accepted=["a"], unacked=None))

    assert (found.unacked, found.unacked_seen, found.difference) == (0, False, 1)
    assert account(replace(NOTHING, accepted=["a"], unacked=1)).unacked_seen


ids = st.sets(st.sampled_from("abcdefgh"))
some_books = st.builds(
    Books,
    recipient=st.just("catalog"),
    accepted=ids,
    pending=ids,
    receipts=st.dictionaries(st.sampled_from("abcdefghxy"), st.sampled_from(Effect)),
    dead=st.lists(st.sampled_from("abcdefghxy")),
    ready=st.integers(0, 12),
    retry=st.integers(0, 12),
    unacked=st.none() | st.integers(0, 12),
)


@given(some_books)
def test_the_columns_always_sum_to_what_was_accepted(books: Books) -> None:
    """For any books: accepted = the sum of the places + difference, and nothing is negative."""
    found = account(books)
    counts = [getattr(found, place) for place in PLACES]

    assert sum(counts) + found.difference == found.accepted == len(books.accepted)
    assert min(*counts, found.difference, found.copies, found.foreign_dead) >= 0
    assert bool(found.missing) is (found.difference > 0)
    assert len(found.missing) >= found.difference
    assert set(found.missing) <= books.accepted - set(books.receipts) - set(books.dead)
    assert not set(found.never_accepted) & books.accepted


@given(some_books, st.sampled_from("abcdefgh"))
def test_losing_an_event_shows(books: Books, lost: str) -> None:
    """At rest, one more accepted event that is nowhere is exactly one more difference."""
    rest = replace(books, ready=0, retry=0, unacked=0)
    gone = replace(
        rest,
        accepted=rest.accepted - {lost},
        receipts={each: effect for each, effect in rest.receipts.items() if each != lost},
        dead=[each for each in rest.dead if each != lost],
        pending=rest.pending - {lost},
    )
    found = account(replace(gone, accepted=gone.accepted | {lost}))

    assert found.difference == account(gone).difference + 1
    assert lost in found.missing


def test_what_may_have_been_pruned_is_forgotten_and_not_missing() -> None:
    """An old event without receipt is neither a loss nor settled: it has its own column."""
    found = account(replace(NOTHING, accepted=["old", "new"], forgettable=["old"]))

    assert (found.forgotten, found.difference, found.missing) == (1, 1, ("new",))


def test_dead_bytes_that_are_no_event_hide_no_loss() -> None:
    """They are counted as foreign, whatever id they claim."""
    found = account(replace(NOTHING, accepted=["a"], dead_bytes=1))

    assert (found.foreign_dead, found.dead, found.difference) == (1, 0, 1)


def test_a_receipt_of_a_removed_row_is_nothing_foreign() -> None:
    """Its event was accepted once; one that is younger than every removed row was not."""
    receipts = {"a": Effect.APPLIED, "b": Effect.APPLIED, "c": Effect.STALE, "d": Effect.DROPPED}
    found = account(replace(NOTHING, accepted=["b"], receipts=receipts, removed=["a", "b"]))
    assert found.never_accepted == ("c",)
    assert (found.accepted, found.applied) == (1, 1)


def test_a_million_ids_are_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterators are read side by side: nothing is collected but the first ids of what is wrong."""
    monkeypatch.setattr("delivery.ledger.SHOWN", 3)
    held = most = 0

    class Id(str):
        def __new__(cls, number: int) -> Id:
            nonlocal held, most
            held += 1
            most = max(most, held)
            return super().__new__(cls, f"{number:07}")

        def __del__(self) -> None:
            nonlocal held
            held -= 1

    found = account(
        replace(
            NOTHING,
            accepted=(Id(n) for n in range(20_000)),
            receipts=((Id(n), Effect.APPLIED) for n in range(0, 25_000, 2)),
            dead=(Id(n) for n in range(1, 20_000, 4)),
        )
    )

    assert (found.accepted, found.applied, found.dead) == (20_000, 10_000, 5_000)
    assert (found.difference, len(found.missing), len(found.never_accepted)) == (5_000, 3, 3)
    assert most < 20
