"""What the live page is told: counts that are not guesses, and news that can be caught up on."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import pytest
from support.events import event
from support.waiting import wait_for

from delivery.contract import PublishMaterial
from delivery.errors import DeliveryError
from delivery.handling import Effect
from delivery.inbox import once
from delivery.listeners import Listener, Listeners
from delivery.live import Onlooker
from delivery.live_counts import LATEST, Counts, Outgoing, Receipts, count
from delivery.live_snapshot import PARKED, Places, snapshot
from delivery.live_story import KEPT, Story
from delivery.live_sums import add_up
from delivery.live_watch import NOT_YET, SHARE, WAITING, Seen, Watcher
from delivery.management import Sample
from delivery.materials import accept
from delivery.observe import Waiting
from delivery.parking import Parked
from delivery.routes import RECIPIENTS, Route
from delivery.store import transaction
from delivery.stores import PUBLISHER, Stores

HOSTILE = "<img src=x onerror=alert(1)>"


def place(
    ready: int | None = 0, *, consumers: int = 1, retry: tuple[int, ...] = (0, 0), dead: int = 0
) -> Waiting:
    return Waiting("catalog", ready, consumers, retry, dead, None, 5.0, 0.0)


def opener(stores: Stores, name: str):
    return lambda: stores.open_to_read(name)


def counted(stores: Stores) -> Counts:
    return count(opener(stores, PUBLISHER), {r: opener(stores, r) for r in RECIPIENTS})


def publish(stores: Stores, material: str, title: str = "Title", *, key: str = "") -> str:
    command = PublishMaterial(title=title, slug="s", author="A")
    with closing(stores.open(PUBLISHER)) as store:
        return accept(store, material, command, key=key or material)[0].event_id


def settle(stores: Stores, recipient: str, event_id: str, *, times: int = 1) -> None:
    handle = once(Route(recipient), lambda *_: Effect.APPLIED)
    with closing(stores.open(recipient)) as store:
        for _ in range(times):
            with transaction(store) as tx:
                handle(event(event_id=event_id), tx)


# -- sums


def test_what_is_nowhere_is_a_difference_and_is_exact_when_nothing_moves() -> None:
    """Ten accepted, six settled, one of each kind waits: one is missing."""
    seen = place(1, retry=(1, 0), dead=1)
    found = add_up(Outgoing(10, {}, None), Receipts(5, 1, 0, 9), seen, unacked=0, moving=False)
    assert found is not None
    assert (found.difference, found.extra, found.exact) == (1, 0, True)
    assert (found.on_the_way, found.dead, found.in_hand) == (2, 1, 0)


@pytest.mark.parametrize(
    ("consumers", "unacked", "moving", "in_hand", "difference"),
    [
        (1, 3, False, 3, 0),
        (1, None, False, 0, 3),  # no sample is not "they are in hand"
        (1, 0, True, 3, 0),  # a counter of five seconds ago is not held against them
        (0, 3, False, 0, 3),  # nobody has any in hand, whatever an old counter says
        (0, 3, True, 0, 3),
    ],
)
def test_only_who_is_there_can_have_messages_in_hand(
    consumers: int, unacked: int | None, moving: bool, in_hand: int, difference: int
) -> None:
    """Three of three accepted are nowhere else."""
    found = add_up(
        Outgoing(3, {}, None),
        Receipts(0, 0, 0, 0),
        place(consumers=consumers),
        unacked=unacked,
        moving=moving,
    )
    assert found is not None
    assert (found.in_hand, found.difference, found.exact) == (in_hand, difference, not moving)


def test_strangers_and_second_copies_are_extra_and_never_less_than_nothing() -> None:
    """A dead message that nobody accepted does not make the difference negative."""
    receipts = Receipts(1, 0, 0, 0)
    found = add_up(Outgoing(1, {}, None), receipts, place(dead=2), unacked=0, moving=False)
    assert found is not None
    assert (found.difference, found.extra) == (0, 2)


@pytest.mark.parametrize("missing", ["outbox", "receipts", "place", "queue"])
def test_a_sum_with_a_part_that_nobody_saw_is_no_sum(missing: str) -> None:
    """None, not 0."""
    outgoing = None if missing == "outbox" else Outgoing(1, {}, None)
    receipts = None if missing == "receipts" else Receipts(1, 0, 0, 0)
    seen = None if missing == "place" else place(None if missing == "queue" else 0)
    assert add_up(outgoing, receipts, seen, unacked=0, moving=False) is None


# -- counts


def test_counts_come_from_every_store_and_a_missing_one_is_none(tmp_path: Path) -> None:
    """The audit's file is not there: not visible is not 0."""
    stores = Stores(tmp_path)
    assert counted(stores) == Counts(None, {"catalog": None, "audit": None}, ())
    first, second = publish(stores, "m-1"), publish(stores, "m-2", HOSTILE)
    settle(stores, "catalog", first, times=3)
    found = counted(stores)
    assert found.outgoing is not None
    assert (found.outgoing.accepted, found.outgoing.pending) == (2, {"not tried": 2})
    assert found.receipts == {"catalog": Receipts(1, 0, 0, 2), "audit": None}
    newest, older = found.latest
    assert (newest["event_id"], newest["title"]) == (second, HOSTILE)
    assert (older["event_id"], older["receipts"]) == (first, {"catalog": "applied"})


def test_a_file_that_is_no_store_is_not_visible(tmp_path: Path) -> None:
    """Somebody's half-made file does not hide the other stores."""
    stores = Stores(tmp_path)
    publish(stores, "m-1")
    sqlite3.connect(stores.path("catalog")).close()
    stores.path("audit").write_bytes(b"no database" * 100)
    found = counted(stores)
    assert found.receipts == {"catalog": None, "audit": None}
    assert len(found.latest) == 1


def test_only_the_latest_are_told_one_by_one(tmp_path: Path) -> None:
    """A snapshot has a bounded size."""
    stores = Stores(tmp_path)
    for number in range(LATEST + 3):
        publish(stores, f"m-{number}")
    found = counted(stores)
    assert found.outgoing is not None
    assert found.outgoing.accepted == LATEST + 3
    assert [each["material_id"] for each in found.latest][:2] == [
        f"m-{LATEST + 2}",
        f"m-{LATEST + 1}",
    ]
    assert len(found.latest) == LATEST


# -- the snapshot


def test_what_was_not_seen_is_none_in_the_snapshot_and_says_why() -> None:
    """Neither stores nor broker: no figure is made up."""
    blind: Seen[object] = Seen(None, "no broker is running here", 0.0, 0.0)
    found = snapshot(blind, blind, blind, listeners=blind, calm=60.0)  # type: ignore[arg-type]
    assert (found["outbox"], found["listeners"]) == (None, None)
    assert found["broker"]["seen"] is False
    assert found["broker"]["why"] == "no broker is running here"
    for each in found["recipients"]:
        values = {each[name] for name in ("ready", "consumers", "retry", "dead", "receipts", "sum")}
        assert values == {None}


def test_who_listens_is_shown_no_longer_than_it_is_said_to_be_old() -> None:
    """Nobody looked for a minute, or the plugin took half of one: no count is passed on."""
    lane = Listener("audit.urgent", ("urgent.#",), 0, "classic", 7, 0, 1, None, None)
    nothing: Seen[Counts] = Seen(None, "", 0.0, 0.0)
    blind: Seen[Places] = Seen(None, "", 0.0, 0.0)
    unasked: Seen[Mapping[str, Sample]] = Seen({}, "", 0.0, 0.0)

    def told(value: Listeners | None, *, ago: float = 0.0, took: float = 0.0) -> tuple[object, str]:
        seen = Seen(value, "", time.time() - ago, took)
        found = snapshot(nothing, blind, unasked, listeners=seen, calm=60.0)
        return found["listeners"], found["listeners_why"]

    found = Listeners((lane,), 0)
    assert told(found, ago=5.0, took=1.0) == (asdict(found), "")
    late = (None, "the management plugin is slow, or nobody has looked for long")
    assert told(found, ago=60.0) == told(found, ago=1.0, took=30.0) == late
    assert told(None) == (None, "the management plugin's address is not known")


def parking(ready: int | None = 3, *, held: bool = False, at: float = 0.0) -> Parked:
    return Parked("e.unrouted", "the command", ready, held, None, at)


def test_what_is_parked_is_told_and_its_age_alone_is_no_news() -> None:
    """Its count and kind; None if there is no parking queue, or nobody saw the broker."""
    nothing: Seen[Counts] = Seen(None, "", 0.0, 0.0)
    samples = Seen({PARKED: Sample(0, "quorum")}, "", 0.0, 0.0)

    def told(places: Places | None) -> object:
        seen = (nothing, Seen(places, "", 0.0, 0.0), samples)
        return snapshot(*seen, listeners=nothing, calm=60.0)["parked"]

    first, second = (told(Places([place()], parking(at=at))) for at in (1.0, 2.0))
    assert first == second
    assert first == {
        "queue": "e.unrouted",
        "hint": "the command",
        "ready": 3,
        "held": False,
        "kind": "quorum",
        "why": "",
    }
    assert [told(Places([place()])), told(None)] == [None, None]


def test_a_lookout_looks_only_while_somebody_watches(tmp_path: Path) -> None:
    """Nobody watches: no query, no connection. The broker's absence is said in its own words."""

    def find():
        raise DeliveryError("no broker is running here")

    lookout = Onlooker(Stores(tmp_path), find)
    publish(Stores(tmp_path), "m-1")
    assert lookout.snapshot()["stores"]["why"] == NOT_YET
    with lookout.watched():
        wait_for(lambda: lookout.snapshot()["outbox"], "the outbox is seen")
        wait_for(lambda: lookout.snapshot()["broker"]["why"] == "no broker is running here", "why")
    wait_for(lambda: lookout.snapshot()["stores"]["age"] > 1.5, "nobody looks any more", 5)
    lookout.close()


# -- the watcher


def test_a_look_that_fails_says_why_and_the_next_one_is_shown() -> None:
    """An error replaces the value: an old figure must not pass for a new one."""
    answers = iter([1, OSError("gone"), 3])

    def look() -> int:
        answer = next(answers, 3)
        if isinstance(answer, OSError):
            raise answer
        return answer

    told: list[int | None] = []
    watcher = Watcher("test", look, period=0.0, told=told.append)
    watcher.want(True)
    wait_for(lambda: len(told) >= 3, "three looks")
    watcher.close()
    assert told[:3] == [1, None, 3]


def test_looking_takes_its_share_of_the_time_and_no_more() -> None:
    """A look of 50 ms is not repeated within half a second."""
    begun: list[float] = []
    pause = threading.Event()

    def look() -> float:
        begun.append(time.monotonic())
        pause.wait(0.05)
        return begun[-1]

    watcher = Watcher("test", look, period=0.01)
    watcher.want(True)
    wait_for(lambda: len(begun) >= 2, "a second look")
    watcher.close()
    assert begun[1] - begun[0] >= 0.05 / SHARE * 0.95


def test_a_look_that_mostly_waits_is_repeated_sooner() -> None:
    """A broker that took 0.3 s to answer is asked again long before 3 s are over."""
    begun: list[float] = []
    pause = threading.Event()

    def look() -> float:
        begun.append(time.monotonic())
        pause.wait(0.3)
        return begun[-1]

    watcher = Watcher("test", look, period=0.01, share=WAITING)
    watcher.want(True)
    wait_for(lambda: len(begun) >= 2, "a second look")
    watcher.close()
    assert begun[1] - begun[0] < 0.3 / SHARE * 0.8


def test_after_a_look_that_failed_the_next_one_comes_soon() -> None:
    """A connect that took 0.3 s to fail is tried again after 1 s, not after 3."""
    begun: list[float] = []
    pause = threading.Event()

    def look() -> float:
        begun.append(time.monotonic())
        pause.wait(0.3)
        raise OSError("refused")

    watcher = Watcher("test", look, period=0.01)
    watcher.want(True)
    wait_for(lambda: len(begun) >= 2, "a second look")
    watcher.close()
    assert begun[1] - begun[0] < 0.3 / SHARE * 0.8


def test_the_page_knows_the_words_for_not_yet() -> None:
    """It says that it is looking, and not that there is nothing."""
    script = (files("delivery") / "static" / "ledger.js").read_text("utf-8")
    assert f'export const NOT_YET = "{NOT_YET}"' in script


# -- the story


def test_the_same_news_makes_one_line_that_a_viewer_gets_again_when_it_grows() -> None:
    """Two hundred effects a second are not two hundred lines."""
    story = Story()
    story.tell("catalog", "applied", tone="good", count=2)
    (line,) = story.since(0)
    story.tell("catalog", "applied", tone="good", count=3)
    (grown,) = story.since(line.number)
    assert (grown.first, grown.count) == (line.first, 5)
    assert story.since(grown.number) == []


def test_what_a_presenter_did_is_a_line_of_its_own_each_time() -> None:
    """Two kills are two lines."""
    story = Story()
    story.tell("stage", "catalog killed")
    story.tell("stage", "catalog killed")
    assert [line.count for line in story.since(0)] == [1, 1]


def test_the_story_is_bounded_and_can_begin_anew() -> None:
    """The oldest lines go first; numbers are never used twice."""
    story = Story()
    for number in range(KEPT + 5):
        story.tell("stage", str(number))
    lines = story.since(0)
    assert (len(lines), lines[0].what) == (KEPT, "5")
    story.clear()
    assert story.since(0) == []
    story.tell("stage", "again")
    assert story.since(lines[-1].number)[0].what == "again"


def test_news_is_what_there_is_more_of() -> None:
    """Accepted, confirmed, returned, settled, dead and consumers; less of something is no news."""
    story = Story()
    old = Counts(Outgoing(1, {"not tried": 1}, 1.0), {"catalog": Receipts(0, 0, 0, 0)}, ())
    new = Counts(Outgoing(3, {"returned": 1}, 1.0), {"catalog": Receipts(2, 1, 0, 1)}, ())
    story.compare_counts(None, old)
    assert story.since(0) == []
    story.compare_counts(old, new)
    story.compare_places([place(consumers=1)], [place(consumers=0, retry=(1, 0), dead=2)])
    story.compare_places([place()], None)
    told = {(line.who, line.what): line.count for line in story.since(0)}
    assert told == {
        ("api", "accepted"): 2,
        ("relay", "confirmed by the broker"): 2,
        ("relay", "returned: stays in the outbox"): 1,
        ("catalog", "applied"): 2,
        ("catalog", "stale: a newer revision was there"): 1,
        ("catalog", "duplicate: recognised by its receipt"): 1,
        ("catalog", "dead"): 2,
        ("catalog", "waits for retry 1"): 1,
        ("catalog", "nobody consumes its queue"): 1,
        ("broker", "out of sight"): 1,
    }
    story.clear()
    story.compare_counts(new, old)
    assert story.since(0) == []


def test_what_is_parked_is_news_but_not_what_somebody_gave_back() -> None:
    """A look at the parked messages takes them out of the count for a moment."""
    story = Story()
    story.compare_parked(None, parking(1))
    story.compare_parked(parking(1), parking(0, held=True))
    story.compare_parked(parking(0, held=True), parking(1))
    story.compare_parked(parking(1), parking(3))
    story.compare_parked(parking(3), None)
    assert [(line.who, line.what, line.count) for line in story.since(0)] == [
        ("exchange", "parked: no queue wanted it", 3)
    ]
