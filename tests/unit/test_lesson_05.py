"""Lesson 05 and the others: --step shows the lines that the lesson is about."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from delivery import lesson

LESSONS = sorted(Path(__file__).parents[2].glob("lessons/[0-9][0-9]/run.py"))


@pytest.mark.parametrize("script", LESSONS, ids=lambda script: script.parent.name)
def test_stepping_shows_the_mistake_and_the_cure(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The marked lines are shown where they stand: in the scene, or in a function that it uses."""
    name = f"lesson_{script.parent.name}"
    spec = importlib.util.spec_from_file_location(name, script)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\n"))

    for act, mark in ((module.broken, "# the mistake"), (module.fixed, "# the cure")):
        lesson._show(act)
        shown = capsys.readouterr().err.splitlines()
        assert [line for line in shown if line.startswith(">>") and mark in line]
        assert any(f"def {act.__name__}(" in line for line in shown)


CTRL_C = """
import os, time
from pathlib import Path
from delivery.lesson import Scene

def work():
    print(os.getpid(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    try:
        Scene(None, "ns", Path("."), 1.0).child(work)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_lessons_child_without_a_traceback(tmp_path: Path) -> None:
    """The terminal's signal reaches both; the lesson alone answers, and takes the child along."""
    script = tmp_path / "run.py"
    script.write_text(CTRL_C)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        child = int(running.stdout.readline())
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=20)
    assert (out, err) == ("interrupted\n", "")
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
