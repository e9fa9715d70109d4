"""End the processes that a director started when it is gone, however it died."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

from delivery.process import Process

__all__ = ["Leash", "hold"]


class Leash:
    """A small process of its own that reads pids from a pipe; its end is our end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "delivery.leash"],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # what is sent to our group does not end it
        )

    def add(self, pid: int) -> None:
        """Let the process end with us. Raises OSError if the leash was cut."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pid}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End what is left."""
        self._process.communicate()


def hold(lines: Iterable[str]) -> None:
    """Note each pid as it is named; when there are no more, kill (SIGKILL) what still runs."""
    held = [Process.of(int(line)) for line in lines]
    for process in held:
        process.kill()


if __name__ == "__main__":
    hold(sys.stdin)
