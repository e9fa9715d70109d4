"""Play a lesson: the failure first, then the cure, and check every fact that is printed."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import multiprocessing
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

import pika
from pika.exceptions import AMQPError

from delivery.broker import Broker
from delivery.errors import DeliveryError
from delivery.sandbox import find_broker

__all__ = ["Scene", "play"]

# Delays are compressed so that a lesson takes seconds; --slow plays them at the speed they state.
PACES = {"slow": 1.0, "normal": 0.2, "fast": 0.1}
_QUEUES = ("", ".dead", *(f".retry.{n}" for n in range(1, 6)))


@dataclass
class Scene:
    """What one scene has: a broker, names and files of its own, and a place to state facts."""

    broker: Broker
    namespace: str
    folder: Path
    pace: float
    wrong: int = 0
    _names: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where the broker is: amqp://user:password@host:port/vhost."""
        return self.broker.amqp_url

    def name(self, suffix: str) -> str:
        """Return a name for a queue or exchange of this scene; it is deleted afterwards."""
        self._names.append(f"{self.namespace}.{suffix}")
        return self._names[-1]

    def ms(self, milliseconds: float) -> int:
        """Return the delay at the pace of this run, in whole milliseconds."""
        return max(1, round(milliseconds * self.pace))

    def fact(self, what: str, seen: object, expected: object) -> None:
        """Print what was seen; if it is not what the lesson says, say so, and fail in the end."""
        if seen == expected:
            print(f"  {what}: {seen}")  # noqa: T201
        else:
            self.wrong += 1
            print(f"  {what}: {seen}   <- UNEXPECTED, this lesson says {expected}")  # noqa: T201
        sys.stdout.flush()

    def child(self, work: Callable[..., None], *arguments: object) -> int:
        """Run *work* in a process of its own; return its exit code, -9 if it was killed."""
        process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
        ours = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C ends it through us
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, ours)
        try:
            process.join(30)
            if process.is_alive():
                raise DeliveryError(f"{work.__name__} did not end within 30 s")
        finally:
            process.kill()
            process.join()
        return process.exitcode or 0

    def clean(self) -> None:
        """Delete from the broker what this scene may have left there."""
        queues = [f"{self.namespace}.{who}{q}" for who in ("catalog", "audit") for q in _QUEUES]
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            for name in (*queues, *self._names):
                channel.queue_delete(name)
            for name in (f"{self.namespace}.events", *self._names):
                channel.exchange_delete(name)


Act = Callable[[Scene], None]
Find = Callable[[Mapping[str, str], Path, Callable[[str], None]], Broker]


def play(broken: Act, fixed: Act, cost: Act | None = None, *, find: Find = find_broker) -> None:
    """Play the two acts (or, with --cost, measure) and exit: 0 if every fact was as expected.

    *find* gives the broker, for a lesson that needs another one than the others.
    """
    options = _parser(inspect.getmodule(broken).__doc__ or "", cost).parse_args()
    acts = [cost] if cost and options.cost else [broken, fixed]
    state = os.environ.get("DELIVERY_DATA") or Path(__file__).parents[1] / ".delivery"
    try:
        broker = find(os.environ, Path(state), lambda text: print(text, file=sys.stderr))  # noqa: T201
        wrong = sum(_play(act, broker, PACES[options.pace], step=options.step) for act in acts)
    except DeliveryError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except BrokenPipeError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads any more
        sys.exit(f"error: {error}")
    sys.exit(1 if wrong else 0)


def _play(act: Act, broker: Broker, pace: float, *, step: bool) -> int:
    print(f"{act.__name__}: {(act.__doc__ or '').splitlines()[0]}", flush=True)  # noqa: T201
    if step:
        _show(act)
    with tempfile.TemporaryDirectory(prefix="lesson-") as folder:
        scene = Scene(broker, f"lesson-{uuid.uuid4().hex[:8]}", Path(folder), pace)
        try:
            act(scene)
        except BaseException:
            with contextlib.suppress(AMQPError):  # the first error is the one to tell
                scene.clean()
            raise
        scene.clean()
    return scene.wrong


def _show(act: Act) -> None:
    """Show the code that is about to run, its marked helpers first, and wait for a key."""
    for part in _marked_parts(act):
        lines, first = inspect.getsourcelines(part)
        for number, line in enumerate(lines, start=first):
            mark = ">>" if "# the mistake" in line or "# the cure" in line else "  "
            print(f"{mark} {number:3} {line}", end="", file=sys.stderr)  # noqa: T201
        print(file=sys.stderr)  # noqa: T201
    print("-- Enter to run it --", file=sys.stderr, flush=True)  # noqa: T201
    sys.stdin.readline()


def _marked_parts(act: Act) -> list[Callable[..., object]]:
    """Return the script's functions that *act* uses and where its mark stands, then *act*."""
    mark = {"broken": "# the mistake", "fixed": "# the cure"}.get(act.__name__, "no mark")
    used = [act]
    for part in used:  # it grows: what a helper uses is used, too
        named = _names_in(inspect.unwrap(part).__code__)
        for name, other in vars(inspect.getmodule(act)).items():
            ours = inspect.isfunction(other) and other.__module__ == act.__module__
            if ours and name in named and other not in used:
                used.append(other)
    return [*(part for part in used[1:] if mark in inspect.getsource(part)), act]


def _names_in(code: CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def _parser(description: str, cost: Act | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--step", action="store_true", help="show each scene's code, wait for Enter"
    )
    for name in ("slow", "fast"):
        about = {"slow": "delays as stated", "fast": "delays a tenth as long"}[name]
        parser.add_argument(f"--{name}", dest="pace", action="store_const", const=name, help=about)
    parser.set_defaults(pace="normal", cost=False)
    if cost:
        parser.add_argument("--cost", action="store_true", help="measure what it costs instead")
    return parser
