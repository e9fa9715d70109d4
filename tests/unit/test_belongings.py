"""What a killed process left is found and removed; what belongs to a living one is not."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.waiting import wait_for

from delivery.belongings import OWNER, clear_left, left, own_folder
from delivery.process import Process, spawn

OWN = """
from delivery.belongings import own_folder
with own_folder("demo-") as folder:
    print(folder, flush=True)
    input()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path.resolve()


def begin(here: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start another process that has such a folder."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    assert folder.parent == here
    return owner, folder


def test_it_is_gone_when_the_block_ends_however(here: Path) -> None:
    with pytest.raises(ZeroDivisionError), own_folder("demo-") as folder:
        (folder / "something").touch()
        assert left() == []  # it is held
        raise ZeroDivisionError
    assert list(here.iterdir()) == []


def test_it_is_gone_with_what_ran_in_it_when_its_owner_is_killed(here: Path) -> None:
    owner, folder = begin(here)
    node = folder / "node"
    node.mkdir()
    program = ["/bin/sleep", "600"]
    spawn(program, {"HOME": str(node)}, node / "log", node / "server.pid")
    running = Process.recorded(node / "server.pid")
    assert running is not None
    assert running.alive()
    owner.kill()
    owner.communicate()
    wait_for(lambda: not folder.exists(), "the folder is removed")
    assert not running.alive()


def test_the_next_one_removes_what_nobody_could(here: Path) -> None:
    """As after a power cut. What is held, and what has no such lock, is somebody's."""
    dead, strange = here / "delivery-demo-dead", here / "delivery-strange"
    for each in (dead, strange):
        each.mkdir()
    (dead / OWNER).touch()
    owner, folder = begin(here)  # it removes it, too
    assert not dead.exists()
    dead.mkdir()
    (dead / OWNER).touch()
    assert left() == [dead]
    said: list[str] = []
    clear_left(said.append)
    assert said == [f"removed {dead}, which a killed process had left"]
    assert set(here.iterdir()) == {strange, folder}
    owner.communicate("\n")
    assert set(here.iterdir()) == {strange}
