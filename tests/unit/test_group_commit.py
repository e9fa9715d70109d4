"""What is asked for while a commit runs is in the next one; each caller gets his own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

from support.loops import run

from delivery.group_commit import MOST, GroupCommit

SECONDS = 20.0


class Committer:
    """Answers with ten times what was asked; it holds the first group until *go* is set."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.groups: list[list[int]] = []
        self.begun, self.go, self.second = (threading.Event() for _ in range(3))
        self._trouble = trouble

    def __call__(self, asked: Sequence[int]) -> list[int | Exception]:
        self.groups.append(list(asked))
        (self.second if self.begun.is_set() else self.begun).set()
        assert self.go.wait(SECONDS)
        if len(self.groups) == 1:
            assert not self.second.wait(0.1), "two commits at once"
        if self._trouble and len(self.groups) == 2:
            raise self._trouble
        return [ValueError(f"{each} is odd") if each % 2 else each * 10 for each in asked]


def outcome(task: asyncio.Task[int]) -> int | BaseException:
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or int(task.result())


def answers_of(
    committer: Committer, *asked: int, leaving: int | None = None
) -> list[int | BaseException]:
    """Ask for 0, and during its commit for *asked* at once; *leaving* of them is cancelled."""

    async def callers() -> list[int | BaseException]:
        group: GroupCommit[int, int] = GroupCommit(committer)

        def started(number: int) -> asyncio.Task[int]:
            asking: Coroutine[Any, Any, int] = group.submit(number)
            return asyncio.create_task(asking)

        first = started(0)
        assert await asyncio.to_thread(committer.begun.wait, SECONDS)
        rest = {number: started(number) for number in asked}
        await asyncio.sleep(0)  # each has asked, and waits
        assert not any(each.done() for each in (first, *rest.values()))
        if leaving is not None:
            rest[leaving].cancel()
        committer.go.set()
        await asyncio.wait([first, *rest.values()])
        return [outcome(each) for each in (first, *rest.values())]

    return run(asyncio.wait_for(callers(), SECONDS))


def test_what_comes_during_a_commit_is_in_the_next_one() -> None:
    """In the order in which it was asked for, and nobody gets another one's answer."""
    committer = Committer()

    assert answers_of(committer, 2, 4, 6) == [0, 20, 40, 60]

    assert committer.groups == [[0], [2, 4, 6]]


def test_a_refusal_is_for_its_own_caller() -> None:
    """The others of the group have their answers."""
    first, two, three, four = answers_of(Committer(), 2, 3, 4)

    assert (first, two, four) == (0, 20, 40)
    assert isinstance(three, ValueError)
    assert str(three) == "3 is odd"


def test_a_commit_that_fails_fails_for_all_of_its_group_and_the_next_one_is_tried() -> None:
    """Trouble with the store is over some time."""
    trouble = OSError("no store")
    committer = Committer(trouble)
    asked = [number * 2 for number in range(1, MOST + 2)]

    answers = answers_of(committer, *asked)

    assert answers == [0, *([trouble] * MOST), asked[-1] * 10]


def test_a_group_is_bounded() -> None:
    """Whoever came first does not wait for everybody behind him."""
    committer = Committer()

    answers_of(committer, *range(2, 2 * MOST + 4, 2))

    assert [len(each) for each in committer.groups] == [1, MOST, 1]


def test_a_caller_that_leaves_takes_nobody_with_it() -> None:
    """Its own request is committed: it is said of the answer only that nobody hears it."""
    committer = Committer()

    first, two, four = answers_of(committer, 2, 4, leaving=2)

    assert (first, four) == (0, 40)
    assert isinstance(two, asyncio.CancelledError)
    assert committer.groups == [[0], [2, 4]]
