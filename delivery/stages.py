"""Which lesson brings which module, as STAGES.md says; and the package cut after a lesson."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from delivery.errors import DeliveryError

__all__ = ["Module", "cut_after", "modules", "stages_file"]

PACKAGE = Path(__file__).parent
PAGE = "live_page"  # the module that serves what is not Python
_ROW = re.compile(r"^\| (\d\d) \| `(\w+)` \| (.*?) \| (.*?) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Module:
    """One row of the map: the lesson that brings a module, its public names, its tests."""

    lesson: int
    name: str
    public: tuple[str, ...]
    tests: tuple[str, ...]


def stages_file() -> Path:
    """Return STAGES.md: beside the package in a checkout, inside it when installed."""
    for folder in (PACKAGE.parent, PACKAGE):
        if (folder / "STAGES.md").exists():
            return folder / "STAGES.md"
    raise DeliveryError("STAGES.md is missing: run this from a checkout or a complete package")


def modules(text: str) -> list[Module]:
    """Return the rows of the map *text*, in its order."""
    return [
        Module(int(lesson), name, _names(public), _names(tests))
        for lesson, name, public, tests in _ROW.findall(text)
    ]


def cut_after(lesson: int, target: Path) -> list[str]:
    """Write the package as it stands after *lesson* into the folder *target*; return its modules.

    Raises DeliveryError for a lesson that brings nothing, or a target that is not empty.
    """
    rows = modules(stages_file().read_text(encoding="utf-8"))
    last = max(row.lesson for row in rows)
    if not 0 <= lesson <= last:
        raise DeliveryError(f"there is no lesson {lesson}; expected 0 to {last}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DeliveryError(f"{target} exists and is not an empty folder; name another")
    package = target / "delivery"
    package.mkdir(parents=True)
    names = [row.name for row in rows if row.lesson <= lesson]
    for name in ("__init__", *names):
        shutil.copy(PACKAGE / f"{name}.py", package)
    shutil.copy(PACKAGE / "py.typed", package)
    if PAGE in names:
        shutil.copytree(PACKAGE / "static", package / "static")
    return names


def _names(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`(.+?)`", cell))
