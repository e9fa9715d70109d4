"""STAGES.md is the map of the package; the code must agree with it in every direction."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from delivery.stages import cut_after, modules

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "delivery"
ROWS = modules((ROOT / "STAGES.md").read_text(encoding="utf-8"))
LESSON = {row.name: row.lesson for row in ROWS}
LESSONS = sorted(set(LESSON.values()))
by_name = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def imported(path: Path) -> set[str]:
    """The package's modules that the file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "delivery":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("delivery."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("delivery.")}
    return found - {"__version__"}


def public(path: Path) -> tuple[str, ...]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return tuple(ast.literal_eval(node.value))
    return ()


def test_the_map_and_the_package_hold_the_same_modules() -> None:
    """A module is in the map once if it is in the package, and not otherwise."""
    in_package = sorted(p.stem for p in PACKAGE.glob("*.py") if p.stem != "__init__")
    assert sorted(row.name for row in ROWS) == in_package


@by_name
def test_a_module_imports_only_what_came_before(row) -> None:
    """A module of lesson k imports modules of lessons up to k."""
    late = {m for m in imported(PACKAGE / f"{row.name}.py") if LESSON[m] > row.lesson}
    assert late == set()


@by_name
def test_public_names_are_the_listed_ones(row) -> None:
    """The map and __all__ name the same things, and all of them exist."""
    source = PACKAGE / f"{row.name}.py"
    assert public(source) == row.public
    text = source.read_text(encoding="utf-8")
    for name in row.public:
        assert re.search(rf"\b{name}\b\s*(=|:|\()|(def|class) {name}\b|import .*\b{name}\b", text)


@by_name
def test_every_module_has_tests(row) -> None:
    """Each listed test file exists, and each module has at least one."""
    assert row.tests
    for test in row.tests:
        assert (ROOT / test).is_file(), test


@by_name
def test_a_module_says_its_one_idea_first(row) -> None:
    """A docstring's first line is one sentence."""
    docstring = ast.get_docstring(ast.parse((PACKAGE / f"{row.name}.py").read_text("utf-8")))
    first = (docstring or "").splitlines()[0]
    assert re.fullmatch(r"[A-Z].*[.?!]", first), first


def test_one_broad_except_in_the_whole_package() -> None:
    """Only the place that hands every failure to a policy catches every Exception."""
    broad = [
        path.name
        for path in PACKAGE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or getattr(node.type, "id", "") == "Exception")
    ]
    assert broad == ["handling.py"]


@pytest.fixture(scope="module")
def cut_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One path for every cut, so that mypy's cache serves them all."""
    return tmp_path_factory.mktemp("cuts")


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_package_cut_after_a_lesson_imports_and_type_checks(
    lesson: int, cut_folder: Path
) -> None:
    """What a reader has after lesson k stands alone."""
    here = cut_folder / "cut"
    if here.exists():
        here.rename(cut_folder / f"before-{lesson}")
    names = cut_after(lesson, here)
    config = (ROOT / "pyproject.toml").read_text("utf-8")
    # Not the editable install beside it: -I ignores the environment, the path puts the cut first.
    imports = "; ".join(f"import delivery.{name}" for name in names if name != "__main__")
    code = f"import sys; sys.path.insert(0, {str(here)!r}); {imports}; print(delivery.__file__)"
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(here / "delivery" / "__init__.py")
    (here / "pyproject.toml").write_text(config, "utf-8")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cut_folder / "cache"), "delivery"]
    types = subprocess.run(command, cwd=here, capture_output=True, text=True)
    assert types.returncode == 0, types.stdout
