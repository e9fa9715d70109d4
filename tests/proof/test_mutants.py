"""Every way to break a promise that the notes show is noticed by the test that they name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lessons import FOLDERS, ROOT, Mutant, mutants

MUTANTS = [mutant for folder in FOLDERS for mutant in mutants(folder)]


def run_tests(tests: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300
    )


def test_the_named_tests_pass_on_the_code_as_it_is(test_environ) -> None:
    """A test that fails anyway would notice nothing."""
    run = run_tests(sorted({mutant.caught_by for mutant in MUTANTS}), test_environ)
    assert run.returncode == 0, run.stdout[-4000:]


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path, test_environ) -> None:
    """The diff applies to the current code, and the named test fails under it."""
    shutil.copytree(ROOT / "delivery", tmp_path / "delivery")
    apply = subprocess.run(
        ["git", "apply", "--verbose", "-"],
        cwd=tmp_path,
        # Not the repository around it, if there is one: only this folder.
        env={**os.environ, "GIT_DIR": str(tmp_path / "none"), "GIT_CEILING_DIRECTORIES": "/"},
        input=mutant.diff,
        capture_output=True,
        text=True,
    )
    assert apply.returncode == 0, apply.stderr
    # Safe path: the checkout, where the tests run, must not come before the mutated copy.
    environ = {**test_environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    where = [sys.executable, "-c", "import delivery; print(delivery.__file__)"]
    used = subprocess.run(where, cwd=ROOT, env=environ, capture_output=True, text=True).stdout
    assert used.startswith(str(tmp_path)), "the mutated copy is not the one that is tested"
    run = run_tests([mutant.caught_by], environ)
    assert run.returncode == 1, f"not noticed by {mutant.caught_by}:\n{run.stdout[-2000:]}"
    assert " failed" in run.stdout.splitlines()[-1], run.stdout[-2000:]
