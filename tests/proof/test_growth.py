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
LAST = max(LESSON.values())
UNIT = sorted((ROOT / "tests" / "unit").glob("test_*.py"))


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
    run = subprocess.run(script, env=environ, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout == blocks(notes(folder), "output")[0]


@pytest.mark.parametrize("lesson", sorted({needs(test) for test in UNIT} - {LAST}))
def test_the_unit_tests_of_a_lesson_pass_on_the_package_as_it_is_then(
    lesson: int, tmp_path: Path, lesson_environ
) -> None:
    """Those that need no module of a later lesson; the last cut is what the suite tests anyway."""
    environ = cut_environ(lesson, tmp_path, lesson_environ)
    tests = [str(test) for test in UNIT if needs(test) == lesson]
    options = ["-q", "--noconftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    run = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout[-3000:]
