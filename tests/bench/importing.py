"""How long a reader waits for the first word: importing the package, and the help."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from bench.scene import Row, Scene


def rows(scene: Scene) -> list[Row]:
    """Time both as whole processes, the interpreter's own start included."""
    asked = {
        "import delivery": ("<= 0.15 s", [sys.executable, "-c", "import delivery"]),
        "delivery --help": ("<= 0.4 s", [sys.executable, "-m", "delivery", "--help"]),
    }
    return [
        Row(work, median(_seconds(argv) for _ in range(scene.rounds + 2)), "s", target=target)
        for work, (target, argv) in asked.items()
    ]


def _seconds(argv: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun
