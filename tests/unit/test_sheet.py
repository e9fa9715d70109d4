"""Any number of dead messages on a sheet, and the rows of it that are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import pytest

from delivery import listing, progress, sheet
from delivery.acts import Acts
from delivery.choice import choose
from delivery.errors import DeliveryError
from delivery.handling import Effect
from delivery.inbox import Receipt
from delivery.listing import lines, rest
from delivery.plan import Planned, Prospect, Result
from delivery.progress import ticker, told
from delivery.sheet import Sheet
from delivery.triage import DeadMessage

RECEIPT = Receipt(Effect.APPLIED, 17.5, 2)


def dead(key: str, reason: str = "exhausted", *, replays: int = 0) -> DeadMessage:
    return DeadMessage(key, reason, f"first\nof {key}", 3, replays, 2**70, 5, True)


MANY = [dead(f"k{n}", "rejected" if n % 3 == 0 else "exhausted") for n in range(7)]


def planned(message: DeadMessage) -> Planned:
    known = message.key in ("k1", "k4")
    prospect = Prospect.DUPLICATE if known else Prospect.EFFECT
    return Planned(message, RECEIPT if known else None, prospect)


def plan(page: Sequence[DeadMessage]) -> list[Planned]:
    assert len(page) <= sheet.PAGE
    return [planned(message) for message in page]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheet, "PAGE", 3)


@pytest.fixture
def acts() -> Iterator[Acts]:
    with closing(Acts()) as opened:
        yield opened


def test_what_is_written_is_read_in_its_order(acts: Acts) -> None:
    """Also a stranger's: a count that no database holds, text of two lines, an id twice."""
    odd = [*MANY, dead("k1", "?", replays=2**90), dead("")]
    acts.write(iter(odd))
    assert list(acts.messages()) == odd
    assert list(acts) == [message.key for message in odd]
    assert len(acts) == 9
    assert "k1" in acts
    assert "k" not in acts
    assert acts.reasons() == {"exhausted": 5, "rejected": 3, "?": 1}


def test_a_plan_is_asked_for_by_the_page(acts: Acts) -> None:
    """It is what the plan said of each, receipt and all."""
    acts.write(MANY)
    acts.plan(plan)
    assert list(acts.planned()) == [planned(message) for message in MANY]
    assert acts.prospects() == {Prospect.EFFECT: 5, Prospect.DUPLICATE: 2}


def test_what_was_done_and_what_came_of_it(acts: Acts) -> None:
    """The first result counts; a copy has its message's; what was not there is said last."""
    acts.write([*MANY[:4], MANY[1]])
    acts.plan(plan)
    for entry, key in ((11, "k1"), (12, "k2"), (13, "k1"), (14, "k3")):
        acts.begun(entry, key)
    acts.settle_others(Result.GONE.value)
    assert [each.message.key for each in acts.waiting()] == ["k1", "k2", "k3", "k1"]
    acts.settle("k1", Result.APPLIED.value)
    acts.died("k1", 1)
    acts.died("k2", 0)  # as often as before: it is the one that was sent
    assert list(acts.unsettled()) == ["k2", "k3"]
    acts.died("k2", 2**90)
    acts.settle_rest(Result.WAITING.value)
    assert acts.left() == 0
    said = [
        ("k1", "applied"),
        ("k2", "dead again"),
        ("k3", Result.WAITING.value),
        ("k0", Result.GONE.value),
    ]
    assert list(acts.said()) == said
    assert [(each.message.key, result.value) for each, result in acts.results()] == [
        *(*said[:3], said[0], said[3])
    ]
    assert acts.outcomes() == {result for _, result in said}
    assert list(acts.entries()) == [
        *((11, "applied"), (12, "dead again"), (13, "applied"), (14, Result.WAITING.value))
    ]


@pytest.mark.parametrize(
    ("choice", "keys"),
    [
        ({"every": True}, [f"k{n}" for n in range(7)]),
        ({"group": "rejected"}, ["k0", "k3", "k6"]),
        ({"ids": ["k5", "k2"]}, ["k2", "k5"]),
    ],
)
def test_a_choice_is_what_is_left_on_the_sheet(
    acts: Acts, choice: dict[str, object], keys: list[str]
) -> None:
    """All, one group, or those that are named, in their order."""
    assert chosen(acts, MANY, **choice) == keys


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({}, "say which messages"),
        ({"every": True, "group": "rejected"}, "say which messages"),
        ({"group": "killer"}, "no message is dead as 'killer'; there is: exhausted, rejected"),
        ({"ids": ["k1", "k9"]}, "no k9"),
        ({"ids": ["k"]}, "7 ids begin with 'k'"),
    ],
)
def test_what_is_no_choice_is_refused(acts: Acts, choice: dict[str, object], sentence: str) -> None:
    """With one sentence."""
    with pytest.raises(DeliveryError, match=sentence):
        chosen(acts, MANY, **choice)


def chosen(acts: Acts, messages: Iterable[DeadMessage], **choice: object) -> list[str]:
    options = {"ids": [], "every": False, "group": "", "absence": lambda key: f"no {key}"}
    choose(acts, messages, **{**options, **choice})  # type: ignore[arg-type]
    return list(acts)


def test_a_line_each_in_columns_as_wide_as_the_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later cell that is wider moves the rest of its line; nothing is cut."""
    monkeypatch.setattr(listing, "ROWS", 2)
    rows = [("a", "1", "x y"), ("bbb", "22", ""), ("ccccc", "3", "z")]
    assert list(lines(("id", "count", "error"), iter(rows))) == [
        "id   count  error",
        "a    1      x y",
        "bbb  22",
        "ccccc  3      z",
    ]
    assert list(lines(("id",), [])) == ["id"]


def test_what_is_not_shown_is_counted_by_kind() -> None:
    """The largest kinds by name; nothing is said if all was shown."""
    assert list(rest(7, {"a": 4, "b": 3})) == []
    first, *kinds, ways = rest(1_000, {"a\n": 99_000, **{str(n): 1 for n in range(1_000)}})
    assert first == "and 99,000 more; of all 100,000:"
    assert kinds[0] == r"  a\n: 99,000"
    assert kinds[-1] == "  991 more kinds"
    assert len(kinds) == listing.NAMED + 1
    assert "--all" in ways
    assert "--json" in ways


def test_only_long_work_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in a while, however many there are; the connection is served as often."""
    said: list[str] = []
    served: list[None] = []
    monkeypatch.setattr(progress, "STEP", 10)

    def work(pieces: int) -> None:
        tick = ticker(said.append, "read", serve=lambda: served.append(None))
        assert list(told(range(pieces), tick)) == list(range(pieces))

    work(100)
    assert (said, len(served)) == ([], 10)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    work(9)
    assert (said, len(served)) == ([], 10)
    work(29)
    assert said == ["read: 10 so far", "read: 20 so far"]


def test_a_sheet_keeps_no_message_in_memory() -> None:
    """What it reads, it lets go of before the next; what it gives, nobody keeps."""
    alive = 0

    class Counted(DeadMessage):
        def __init__(self, *fields: object) -> None:
            nonlocal alive
            super().__init__(*fields)  # type: ignore[arg-type]
            alive += 1

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def many() -> Iterator[DeadMessage]:
        for n in range(50):
            assert alive <= 2
            yield Counted(f"k{n}", "r", "e", 1, 0, 0, 0, True)

    with closing(Sheet()) as written:
        written.write(many())
        assert alive == 0
        assert len(written) == 50
