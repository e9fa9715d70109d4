"""Processes to kill: a child that a test starts, stops, and starts again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import delivery
from delivery import points
from support.consuming import World

KILLED = -9  # the exit code of who was killed


def start(child: ModuleType, world: World, **more: Any) -> subprocess.Popen[bytes]:
    """Start *child* (``child_reader``, ``child_consumer``, ``child_relay``) in *world*.

    It is told *more*, has the package that the test has, and the store of the audit log if no other
    is named.
    """
    arguments = {
        "url": world.settings.url,
        "namespace": world.namespace,
        "store": str(world.store_path(world.audit)),
        **more,
    }
    paths = (Path(__file__).parents[1], Path(delivery.__file__).parents[1])
    path = os.pathsep.join(str(each) for each in paths)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", child.__name__, json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": path},
    )


def run(child: ModuleType, world: World, *, seconds: float = 60.0, **more: Any) -> int:
    """Run a child to its end, and return its exit code."""
    with start(child, world, **more) as child:
        try:
            return child.wait(seconds)
        finally:
            child.kill()


def arguments() -> dict[str, Any]:
    """Return what this child was told, its point to die at armed."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    if die_at := told.pop("die_at", None):
        point, visit = die_at
        points.arm(point, points.kill_here, on_visit=visit)
    return told
