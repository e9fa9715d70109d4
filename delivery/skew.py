"""Run a program with a clock that is wrong: ``python -m delivery.skew SECONDS PROGRAM ...``."""

from __future__ import annotations

import runpy
import sys
import time

__all__ = ["run", "skew"]


def skew(seconds: float) -> None:
    """Let this process's clock be *seconds* ahead (or, below 0, behind) from now on.

    It changes ``time.time`` and ``time.time_ns``, which is all that the package asks; the monotonic
    clock, by which time-outs are measured, is right in the real case, too.
    """
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + seconds
    time.time_ns = lambda: right_ns() + int(seconds * 1e9)


def run(arguments: list[str]) -> None:
    """Run ``-m MODULE ...`` or ``FILE ...`` with the clock that the first argument says."""
    skew(float(arguments[0]))
    if arguments[1] == "-m":
        sys.argv = arguments[2:]
        runpy.run_module(arguments[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments[1:]
        runpy.run_path(arguments[1], run_name="__main__")


if __name__ == "__main__":
    run(sys.argv[1:])
