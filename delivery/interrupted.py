"""Say, after Ctrl-C in the middle of a move, what stands where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer

from delivery.relocation import Move, aside
from delivery.terminal import say

__all__ = ["told_if_interrupted"]


@contextmanager
def told_if_interrupted(plan: Callable[[], Sequence[Move]]) -> Iterator[None]:
    """End the command with 130 if its block is interrupted, with what *plan* says is still to do.

    *plan* asks the broker anew, and raises what it raises.
    """
    try:
        yield
    except BaseException as error:
        if not _by_interrupt(error):
            raise
        say("interrupted: nothing is lost; run it again, with the recipients stopped, to end it")
        for move in plan():
            say(
                f"  {move.queue}: {move.kind}; {move.ready} ready here,"
                f" {move.set_aside} in {aside(move.queue)}"
            )
        raise typer.Exit(130) from None


def _by_interrupt(error: BaseException | None) -> bool:
    # What was interrupted may fail to close its connection: that error comes instead.
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
