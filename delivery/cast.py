"""Start and stop the exchange's processes, and wait for what they say in their logs."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from delivery.config import Config
from delivery.errors import DeliveryError
from delivery.leash import Leash
from delivery.stopping import Stop

__all__ = ["Actor", "Cast", "Interrupted", "await_that", "cast_of"]


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
    """One process of the program, with its log in a file."""

    def __init__(
        self, name: str, command: Sequence[str], environ: Mapping[str, str], log: Path, stop: Stop
    ) -> None:
        self.name = name
        self._stop = stop
        self._log = log
        self.begun = self.mark()
        self.process = subprocess.Popen(
            command,
            env=dict(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the director, who then stops the actors
        )
        # Through a pipe: an actor whose disk is full can still say so.
        with log.open("ab") as file:
            self._copier = subprocess.Popen(
                ["cat"], stdin=self.process.stdout, stdout=file, start_new_session=True
            )
        assert self.process.stdout is not None
        self.process.stdout.close()

    def mark(self) -> int:
        """Return the place in the log that is now its end, to look from there later."""
        return self._log.stat().st_size if self._log.exists() else 0

    def log(self, since: int = 0) -> str:
        """Return what was logged since a mark; all of it, earlier processes' included, without."""
        if not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(since)
            return file.read().decode(errors="replace")

    def said(self, event: str, *, since: int | None = None) -> int:
        """Return how often *event* was logged, since a mark or by this process."""
        return self.log(self.begun if since is None else since).count(f" {event}")

    def await_event(
        self, event: str, *, times: int = 1, since: int | None = None, seconds: float = 30.0
    ) -> str:
        """Wait until *event* was logged, by this process or since a mark, and return the line."""

        def happened() -> bool:
            if self.said(event, since=since) >= times:
                return True
            if (code := self.process.poll()) is not None:
                self._copier.wait(10)
                if self.said(event, since=since) >= times:
                    return True
                last = "".join(self.log(self.begun).splitlines(keepends=True)[-5:])
                raise DeliveryError(f"{self.name} ended with {code}: {last.strip()}")
            return False

        await_that(happened, f"{self.name} says {event}", stop=self._stop, seconds=seconds)
        own = self.log(self.begun if since is None else since)
        return next(iter(re.findall(rf".* {re.escape(event)}.*", own)), "")

    def stop(self) -> int:
        """Ask it to finish (SIGTERM), wait, and return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return self.wait(10)

    def kill(self) -> int:
        """Crash it (SIGKILL), and return its exit code."""
        self.process.kill()
        return self.wait(10)

    def wait(self, seconds: float) -> int:
        """Wait until it has ended, killing it after *seconds*; return its exit code."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        code = self.process.wait()
        self._copier.wait(10)  # its last words are in the log
        return code


PROGRAM = (sys.executable, "-m", "delivery")


class Cast:
    """The actors on stage; they share *program*, its *arguments*, and *environ*.

    Waiting for one heeds *stop*.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        logs: Path,
        stop: Stop | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.stop_asked = Stop() if stop is None else stop
        self._arguments = arguments
        self.environ = environ
        self._logs = logs
        self.program = program
        self._on_stage: dict[str, Actor] = {}
        self._leash: Leash | None = None  # a director that is killed takes its actors with it
        logs.mkdir(parents=True, exist_ok=True)

    def start(
        self, name: str, command: Sequence[str], *, wrap: Sequence[str] = (), **more: str
    ) -> Actor:
        """Start (again) the actor *name* with *more* environment.

        *wrap* is a command of our own that runs the program's command.
        """
        program = [*wrap, *self.program[1:]] if wrap else [*self.program]
        environ = {**self.environ, **more}
        log = self._logs / f"{name}.log"
        full = [*program, *self._arguments, *command]
        actor = self._on_stage[name] = Actor(name, full, environ, log, self.stop_asked)
        self._leash = self._leash or Leash()
        self._leash.add(actor.process.pid)
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
            if self._leash is not None:
                self._leash.close()


def cast_of(config: Config, environ: Mapping[str, str], stop: Stop) -> Cast:
    """Return a cast for *config*'s exchange: on its broker, with logs beside its files."""
    retries = ",".join(map(str, config.retries_ms))
    data = config.stores.data
    options = ["--data", str(data), "--namespace", config.namespace, "--retries", retries]
    own = {**environ, "DELIVERY_AMQP_URL": config.broker.url}
    return Cast(options, own, data / "logs", stop)
