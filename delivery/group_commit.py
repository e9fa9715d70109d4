"""Commit together what several callers ask for at once: while one commit runs, the next gathers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool

__all__ = ["GroupCommit"]

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
MOST = 64  # the first of a group waits for the last


@dataclass
class _Group:
    asked: list[Any] = field(default_factory=list)
    answers: asyncio.Task[Sequence[Any]] | None = None


class GroupCommit(Generic[Asked, Answer]):
    """A queue before *commit*, for the callers of one event loop.

    *commit* runs in a thread, never twice at once. It gets what was asked for, in order, and
    returns an answer for each; an Exception as an answer is raised to that caller alone.
    """

    def __init__(self, commit: Callable[[Sequence[Asked]], Sequence[Answer | Exception]]) -> None:
        self._commit = commit
        self._turn = asyncio.Lock()
        self._gathering: _Group | None = None

    async def submit(self, asked: Asked) -> Answer:
        """Return the answer, which is committed. Raises, to the whole group, what *commit* raises.

        A caller that is cancelled leaves; what it asked for is committed all the same.
        """
        group = self._gathering
        if group is None or len(group.asked) >= MOST:
            group = self._gathering = _Group()
            group.answers = asyncio.create_task(self._run(group))
        assert group.answers is not None
        place = len(group.asked)
        group.asked.append(asked)
        answer: Answer | Exception = (await asyncio.shield(group.answers))[place]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _run(self, group: _Group) -> Sequence[Answer | Exception]:
        async with self._turn:  # first come, first served
            if self._gathering is group:
                self._gathering = None
            return await run_in_threadpool(self._commit, group.asked)
