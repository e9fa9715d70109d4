"""A program can be run with a clock that is wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from delivery import skew


@pytest.mark.parametrize("seconds", [600, -600])
def test_a_file_runs_with_a_wrong_clock(tmp_path: Path, seconds: int) -> None:
    script = tmp_path / "clock.py"
    script.write_text("import sys, time; print(time.time(), time.time_ns() // 10**9, sys.argv[1:])")
    command = [sys.executable, "-m", skew.__name__, str(seconds), str(script), "--option"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    said, in_ns, *arguments = run.stdout.split()
    assert float(said) - time.time() == pytest.approx(seconds, abs=30)
    assert int(in_ns) == int(float(said))
    assert arguments == ["['--option']"]


def test_a_module_runs_with_its_arguments() -> None:
    command = [sys.executable, "-m", skew.__name__, "5", "-m", "delivery", "--version"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("delivery ")
