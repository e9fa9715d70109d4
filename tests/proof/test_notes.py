"""What the notes say about the code is so."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import delivery.dead
import delivery.lanes
import delivery.limits
import delivery.quorum
import delivery.retry
import delivery.routes
import delivery.topology
from delivery.diagram import mermaid
from delivery.stages import modules
from lessons import FOLDERS, ROOT, blocks, mutants, notes

each_lesson = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
SECTIONS = [
    *("The failure", "See it", "The idea", "The picture", "In the final code"),
    *("What it costs", "Try to break it", "Check yourself", "Further"),
]


def test_every_lesson_of_the_map_is_there() -> None:
    """Each lesson that brings modules has its script and its notes."""
    rows = modules((ROOT / "STAGES.md").read_text(encoding="utf-8"))
    wanted = sorted({f"{row.lesson:02}" for row in rows})
    assert [folder.name for folder in FOLDERS] == wanted
    assert all(
        (folder / "run.py").exists() and (folder / "notes.md").exists() for folder in FOLDERS
    )


@each_lesson
def test_the_notes_have_every_part(folder: Path) -> None:
    """Promise, what is not promised yet, and the nine sections in their order."""
    text = notes(folder)
    assert re.match(rf"# {folder.name} \w.*\n\n\*\*Promise:\*\* ", text)
    assert re.search(r"^\*\*Not promised yet:\*\* ", text, re.M)
    assert re.findall(r"^## (.+)$", text, re.M) == SECTIONS


@each_lesson
def test_the_idea_is_short_and_names_the_invariant(folder: Path) -> None:
    """At most 150 words, one of its sentences in bold."""
    idea = notes(folder).split("## The idea\n")[1].split("\n## ")[0]
    assert len(idea.split()) <= 150
    assert re.search(r"^\*\*.+\*\*$", idea, re.M | re.S)


@each_lesson
def test_named_code_exists(folder: Path) -> None:
    """Each `path.py:name` is a definition in that file."""
    named = re.findall(r"`([\w/]+\.py):(\w+)`", notes(folder))
    assert named
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        names = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
        names |= {
            getattr(target, "id", "")
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
        }
        assert name in names, f"{path}:{name}"


@each_lesson
def test_the_picture_is_drawn_by_the_code(folder: Path) -> None:
    """The diagram is the Mermaid text of the topology that its comment names."""
    ((expression, picture),) = re.findall(
        r"<!-- mermaid: (.+?) -->\n```mermaid\n(.*?)```", notes(folder), re.S
    )
    names: dict[str, object] = {}
    drawn = (delivery.topology, delivery.routes, delivery.retry, delivery.dead)
    for module in (*drawn, delivery.lanes, delivery.limits, delivery.quorum):
        names |= vars(module)
    assert picture == mermaid(eval(expression, names))


@each_lesson
def test_there_are_three_ways_to_break_it(folder: Path) -> None:
    """Three or more diffs, each with the test that catches it."""
    assert len(mutants(folder)) >= 3
    assert len(mutants(folder)) == len(blocks(notes(folder), "diff"))


@each_lesson
def test_a_lesson_uses_only_what_was_introduced(folder: Path) -> None:
    """Lesson k's script imports modules of lessons up to k."""
    rows = modules((ROOT / "STAGES.md").read_text(encoding="utf-8"))
    lesson = {row.name: row.lesson for row in rows}
    late = set()
    for node in ast.walk(ast.parse((folder / "run.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "delivery":
            late |= {a.name for a in node.names if lesson[a.name] > int(folder.name)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("delivery."):
            name = (node.module or "").split(".")[1]
            late |= {name} if lesson[name] > int(folder.name) else set()
    assert late == set()
