"""Each command of the runbook is there, and is run by a test that its row names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from delivery.cli import app

ROOT = Path(__file__).resolve().parents[2]
NOTES = (ROOT / "lessons" / "18" / "notes.md").read_text(encoding="utf-8")
TABLE = NOTES.split("### The runbook")[1].split("\n| Situation |")[1].split("\n\n")[0]
ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines()[2:]]
GROUPS = {
    name: set(getattr(group, "commands", {}))
    for name, group in getattr(typer.main.get_command(app), "commands", {}).items()
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_of_the_runbook_is_executed(row: list[str]) -> None:
    """Group and command exist, and the row's tests give both words to a process."""
    _, commands, _, _, tests = row
    text = "".join((ROOT / each).read_text("utf-8") for each in re.findall(r"`(\S+?)`", tests))
    named = re.findall(r"`delivery (\w+) (\w+)", commands)
    assert named
    for group, command in named:
        assert command in GROUPS[group]
        assert f'"{group}"' in text
        assert f'"{command}"' in text
    for tool, command in re.findall(r"`(rabbitmq(?:ctl|-\w+)) (\w+)", commands):
        node = {"stop": ".stop()"}.get(command, f'ctl("{command}"')
        assert node in text, f"{tool} {command}"
