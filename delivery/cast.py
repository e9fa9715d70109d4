"""Start and stop the exchange's processes, and wait for what they say in their logs."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from delivery.errors import DeliveryError
from delivery.stopping import Stop

__all__ = ["Actor", "Cast", "Interrupted", "await_that"]


class Interrupted(DeliveryError):
    """Somebody asked to stop (Ctrl-C, SIGTERM)."""


def await_that(
    condition: Callable[[], object], what: str, *, stop: Stop, seconds: float = 30.0
) -> None:
    """Return as soon as *condition* holds. Raises DeliveryError after *seconds*, or on *stop*.

    An interrupt is seen here and not where it arrives: in the middle of pika's work it would leave
    a connection that can't be closed.
    """
    end = time.monotonic() + seconds
    while not condition():
        if stop:
            raise Interrupted(f"interrupted while waiting: {what}")
        if time.monotonic() > end:
            raise DeliveryError(f"not within {seconds:g} s: {what}")
        time.sleep(0.03)


class Actor:
    """One process: ``python -m delivery ...``, with its log in a file."""

    def __init__(
        self, name: str, arguments: list[str], environ: Mapping[str, str], log: Path, stop: Stop
    ) -> None:
        self.name = name
        self._stop = stop
        self._log = log
        self._seen_before = len(self.log())
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "delivery", *arguments],
                env=dict(environ),
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the director, who then stops the actors
            )

    def log(self) -> str:
        """Return everything that the actor has logged, earlier processes included."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def said(self, event: str) -> int:
        """Return how often this process has logged *event*."""
        return self.log()[self._seen_before :].count(f" {event}")

    def await_event(self, event: str, *, times: int = 1, seconds: float = 30.0) -> str:
        """Wait until this process has logged *event*, and return the line."""

        def happened() -> bool:
            if self.said(event) >= times:
                return True
            if (code := self.process.poll()) is not None:
                last = "".join(self.log().splitlines(keepends=True)[-5:])
                raise DeliveryError(f"{self.name} ended with {code}: {last.strip()}")
            return False

        await_that(happened, f"{self.name} says {event}", stop=self._stop, seconds=seconds)
        own = self.log()[self._seen_before :]
        return next(iter(re.findall(rf".* {re.escape(event)}.*", own)), "")

    def stop(self) -> int:
        """Ask it to finish (SIGTERM), wait, and return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Cast:
    """The actors on stage; they share *arguments* and *environ*. Waiting for one heeds *stop*."""

    def __init__(
        self, arguments: list[str], environ: Mapping[str, str], logs: Path, stop: Stop | None = None
    ) -> None:
        self.stop_asked = Stop() if stop is None else stop
        self._arguments = arguments
        self._environ = environ
        self._logs = logs
        self._on_stage: dict[str, Actor] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: list[str], **more: str) -> Actor:
        """Start (again) the actor *name* with *more* environment."""
        environ = {**self._environ, **more}
        log = self._logs / f"{name}.log"
        actor = Actor(name, [*self._arguments, *command], environ, log, self.stop_asked)
        self._on_stage[name] = actor
        return actor

    def __getitem__(self, name: str) -> Actor:
        return self._on_stage[name]

    def stop(self, name: str) -> int:
        """Stop the actor *name*, and return its exit code."""
        return self._on_stage[name].stop()

    @contextlib.contextmanager
    def curtain(self) -> Iterator[Cast]:
        """Stop every actor at the end, whatever happened."""
        try:
            yield self
        finally:
            for actor in self._on_stage.values():
                actor.stop()
