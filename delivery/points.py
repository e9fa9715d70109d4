"""Named points between two durable steps, where a test may stop the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

__all__ = ["arm", "arm_from", "kill_here", "reach"]

_armed: dict[str, Callable[[str], None]] = {}


def reach(point: str, about: str = "") -> None:
    """Say that the process has come to *point*; nothing happens unless the point is armed.

    *about* names what it is at work on, where that is one message.
    """
    if action := _armed.get(point):
        action(about)


def arm(
    point: str, action: Callable[[], None], *, on_visit: int = 1, about: str | None = None
) -> None:
    """Run *action* the *on_visit*-th time that *point* is reached (*about* that), and not again."""
    left = on_visit

    def visit(subject: str) -> None:
        nonlocal left
        if about is not None and about != subject:
            return
        left -= 1
        if left == 0:
            action()

    _armed[point] = visit


def kill_here() -> None:
    """End this process as a crash does: no handler, no clean-up, no last word."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm_from(environ: Mapping[str, str]) -> None:
    """Arm what ``DELIVERY_KILL_AT`` says.

    ``consumer.committed``; the third visit, ``relay.confirmed:3``; or the visit that one message
    makes, ``consumer.handled@MESSAGE_ID``.
    """
    said, _, about = environ.get("DELIVERY_KILL_AT", "").partition("@")
    point, _, visit = said.partition(":")
    if point:
        arm(point, kill_here, on_visit=int(visit or 1), about=about or None)
