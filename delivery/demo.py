"""Play the whole exchange, with failures on the way, and let the ledger judge."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from delivery import scenes
from delivery.belongings import own_folder
from delivery.books import settled_accounts
from delivery.broker import Broker
from delivery.cast import cast_of
from delivery.client import read_commands
from delivery.config import Config
from delivery.errors import DeliveryError
from delivery.ledger import Account
from delivery.props import Stage
from delivery.sandbox import broker_status, disposable_broker, find_broker
from delivery.stagehand import remove_from_broker
from delivery.stopping import Stop, stop_on_signals
from delivery.tables import ledger_table
from delivery.terminal import say

__all__ = ["demo_broker", "play", "signals_restored"]

RETRIES_MS = (300, 600)  # compressed: a service would rather wait 1 s, 10 s, 60 s


def play(environ: Mapping[str, str], state_folder: Path, file: Path) -> bool:
    """Play every scene, show the ledger, and return whether everything adds up.

    Raises DeliveryError if a scene does not go as it must.
    """
    commands = read_commands(file)
    if len(commands) < 6:
        raise DeliveryError(f"{file} has {len(commands)} publications; the demo needs at least 6")
    begun = time.monotonic()
    with signals_restored():
        # Until the broker runs, a signal ends the start at once; then the scenes heed a flag.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        with demo_broker(environ, state_folder) as broker:
            say(f"broker: {broker.kind.value}, RabbitMQ {broker.version}")
            with _stage(environ, broker, stop_on_signals()) as stage:
                balanced = _play(stage, broker, commands)
    say(f"{time.monotonic() - begun:.0f} s")
    return balanced


def _play(stage: Stage, broker: Broker, commands: list[dict[str, Any]]) -> bool:
    third = len(commands) // 3
    scenes.curtain_up(stage)
    scenes.publish(stage, commands[: third - 1])
    scenes.repeated_request(stage, commands[third - 1])
    scenes.incompatible_event(stage)
    scenes.transient_failure(stage, commands[third])
    scenes.exhausted_then_replayed(stage, commands[third + 1])
    scenes.publish(stage, commands[third + 2 : 2 * third])
    scenes.killed_between_commit_and_ack(stage, commands[2 * third])
    scenes.broker_restarted(stage, broker)
    scenes.publish(stage, commands[2 * third + 1 :])
    accounts = settled_accounts(stage.config, seconds=20)
    balanced = _judge(stage, accounts, len(commands))
    stage.tell("everything adds up" if balanced else "THIS DOES NOT ADD UP")
    return balanced


def _judge(stage: Stage, accounts: list[Account], published: int) -> bool:
    console = Console(highlight=False, soft_wrap=True)
    console.print()
    console.print(ledger_table(accounts))
    wrong = scenes.differences(stage)
    for line in wrong:
        stage.tell(f"WRONG: {line}")
    sums = all(
        each.balanced and each.accepted == published and each.accepted == each.applied + each.stale
        for each in accounts
    )
    return sums and not wrong


@contextlib.contextmanager
def signals_restored() -> Iterator[None]:
    """Give the process its own signal handlers back when the block ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def demo_broker(environ: Mapping[str, str], state_folder: Path) -> Iterator[Broker]:
    """Use the broker that runs already; one that is started for the demo is removed with it."""
    if broker_status(environ, state_folder) is None:
        with disposable_broker(environ, say) as own:
            yield own
    else:
        yield find_broker(environ, state_folder, say)


@contextlib.contextmanager
def _stage(environ: Mapping[str, str], broker: Broker, stop: Stop) -> Iterator[Stage]:
    """Set up files and names of our own, and take them away afterwards."""
    with own_folder("demo-", say) as data:
        namespace = f"demo-{uuid.uuid4().hex[:8]}"
        config = Config.on(broker, data, namespace=namespace, retries_ms=RETRIES_MS)
        cast = cast_of(config, environ, stop)
        try:
            with cast.curtain():
                yield Stage(config, cast)
        finally:
            remove_from_broker(config)
