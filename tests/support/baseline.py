"""A baseline of ``tests/bench/baselines`` at work: its processes, its API, and what it stored."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import delivery
from delivery.client import post
from support.waiting import wait_for

BASELINES = Path(__file__).parents[1] / "bench" / "baselines"


@dataclass
class Baseline:
    """Each process is ``python <file> <role>``; *environ* has its settings."""

    file: Path
    logs: Path
    environ: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, *roles: str, **environ: str) -> None:
        """Start the processes, and wait until each has said that it is ready."""
        before = {role: self.said(role, f"{role}.ready") for role in roles}
        for role in roles:
            with self._log(role).open("ab") as log:
                self.processes[role] = subprocess.Popen(
                    [sys.executable, str(self.file), role],
                    env={**self.environ, **environ},
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        for role in roles:
            self.await_said(role, f"{role}.ready", before[role] + 1)

    def await_said(self, role: str, event: str, times: int = 1) -> None:
        def happened() -> bool:
            assert self.processes[role].poll() is None, self.log(role)[-2000:]
            return self.said(role, event) >= times

        wait_for(happened, f"{role} says {event} ({times})", 30)

    def said(self, role: str, event: str) -> int:
        """Count how often the processes in this role have logged *event*."""
        return self.log(role).count(f" {event}")

    def log(self, role: str) -> str:
        log = self._log(role)
        return log.read_text(errors="replace") if log.exists() else ""

    def kill(self, role: str) -> None:
        """SIGKILL, as a crash."""
        process = self.processes.pop(role)
        process.kill()
        process.wait(10)

    def stop(self) -> dict[str, int]:
        """Ask every process to finish; return the exit codes."""
        for process in self.processes.values():
            process.terminate()
        codes = {}
        for role, process in self.processes.items():
            try:
                codes[role] = process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[role] = process.wait()
        self.processes.clear()
        return codes

    def publish(self, material_id: str, title: str = "Title") -> str:
        """Publish over HTTP; return the event's id."""
        url = self.log("api").rpartition(" api.ready url=")[2].split()[0]
        command = {"material_id": material_id, "title": title, "slug": "a-title", "author": "A"}
        status, answer, _ = post(url, command, f"{material_id}-{title}".replace(" ", "-"))
        assert (status, answer["material_id"]) == (202, material_id), answer
        event_id: str = answer["event_id"]
        return event_id

    def facts(self) -> dict[str, Any]:
        asked = subprocess.run(
            [sys.executable, str(self.file), "facts"],
            env=self.environ,
            capture_output=True,
            check=True,
            timeout=30,
        )
        found: dict[str, Any] = json.loads(asked.stdout)
        return found

    def await_facts(self, condition: Callable[[dict[str, Any]], object], what: str) -> Any:
        """Ask until *condition* holds of the facts, and return them."""
        found: dict[str, Any] = {}

        def holds() -> object:
            found.update(self.facts())
            return condition(found)

        try:
            wait_for(holds, what, 30)
        except AssertionError as error:
            raise AssertionError(f"{error}; {found}") from None
        return found

    def _log(self, role: str) -> Path:
        return self.logs / f"{role}.log"


@contextlib.contextmanager
def baseline(name: str, folder: Path, **settings: str) -> Iterator[Baseline]:
    """Give the baseline *name* with its settings; its processes end with it."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("DELIVERY_", "BASELINE_"))}
    package = str(Path(delivery.__file__).parents[1])
    environ = {**own, "PYTHONPATH": package, "DELIVERY_DATA": str(folder / "data"), **settings}
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    opened = Baseline(BASELINES / f"{name}.py", logs, environ)
    try:
        yield opened
    finally:
        opened.stop()
