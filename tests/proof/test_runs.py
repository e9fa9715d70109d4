"""What the notes print, a run prints."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lessons import FOLDERS, ROOT, blocks, notes


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_lesson_prints_what_its_notes_show(folder: Path, lesson_environ, capsys) -> None:
    """The broken scene is still broken, the fixed one holds, and every line is in the notes."""
    begun = time.monotonic()
    run = subprocess.run(
        [sys.executable, str(folder / "run.py")],
        cwd=ROOT,
        env=lesson_environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    with capsys.disabled():
        print(f"\nlesson {folder.name}: {time.monotonic() - begun:.1f} s", end=" ")
    assert run.returncode == 0, run.stdout + run.stderr
    (shown,) = blocks(notes(folder), "output")
    assert run.stdout == shown
