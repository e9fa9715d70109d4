"""The package cut after a lesson is enough for that lesson, and for the tests of its modules."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from delivery.stages import cut_after, modules, stages_file
from lessons import FOLDERS, ROOT, blocks, notes

LESSON = {row.name: row.lesson for row in modules(stages_file().read_text(encoding="utf-8"))}
LESSONS = sorted(set(LESSON.values()))
LAST = LESSONS[-1]
# The suite runs their tests anyway, on a package that has only more: those of 12 are most of it,
# those of 15 to 17 start databases and brokers for minutes, and the last cut is the package.
WHOLE = (12, 15, 16, 17, LAST)


def needs(file: Path) -> int:
    """The lesson whose cut is enough for a test file, the support modules it uses included."""
    text = file.read_text(encoding="utf-8")
    found = LAST if "lessons" in text else 0  # it looks at the lessons themselves
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        package, _, module = node.module.partition(".")
        if package == "delivery":
            names = [module] if module else [alias.name for alias in node.names]
            found = max([found, *(LESSON.get(name, 0) for name in names)])
        elif package == "support":
            names = [module] if module else [alias.name for alias in node.names]
            found = max(
                [found, *(needs(ROOT / "tests" / "support" / f"{name}.py") for name in names)]
            )
    return found


def files_in(folder: str) -> list[Path]:
    return sorted((ROOT / "tests" / folder).glob("test_*.py"))


FIXTURES = needs(ROOT / "tests" / "conftest.py")
UNIT = {test: needs(test) for test in files_in("unit")}
BROKER = {test: max(FIXTURES, needs(test)) for test in files_in("broker") + files_in("crash")}
# It starts and breaks brokers of every kind, for minutes, by modules of lesson 00 alone.
del BROKER[ROOT / "tests" / "broker" / "test_sandbox.py"]


def cut_environ(lesson: int, folder: Path, environ: dict[str, str]) -> dict[str, str]:
    """The environment in which ``delivery`` is the package after *lesson*, and nothing more."""
    cut_after(lesson, folder / "cut")
    paths = os.pathsep.join([str(folder / "cut"), str(ROOT / "tests")])
    return {**environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_lesson_runs_on_the_package_as_it_is_then(
    folder: Path, tmp_path: Path, lesson_environ
) -> None:
    """The same lines as with the whole package."""
    environ = cut_environ(int(folder.name), tmp_path, lesson_environ)
    script = [sys.executable, str(folder / "run.py")]
    run = subprocess.run(script, env=environ, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout == blocks(notes(folder), "output")[0]


def test_every_lesson_has_broker_tests_that_need_no_later_one() -> None:
    """From the first that connects to a broker; a test that needs too much leaves a gap here."""
    assert set(BROKER.values()) == {lesson for lesson in LESSONS if lesson >= FIXTURES}


@pytest.mark.parametrize("lesson", [each for each in LESSONS if each not in WHOLE])
def test_the_tests_of_a_lesson_pass_on_the_package_as_it_is_then(
    lesson: int, tmp_path: Path, test_environ
) -> None:
    """Those that need no module of a later lesson."""
    environ = cut_environ(lesson, tmp_path, test_environ)
    tests = [str(test) for test, need in (UNIT | BROKER).items() if need == lesson]
    options = ["-q", "-p", "no:cacheprovider", *(["--noconftest"] if lesson < FIXTURES else [])]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    run = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
