"""Any number of dead messages takes the same memory, whatever is done with them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.exchange import TESTS, Exchange, exchange_on

from delivery.broker import Broker
from delivery.dead import ERROR, REASON
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope

FEW, MANY = 50, 300
MOST = 1_000_000  # bytes that MANY may take more than FEW; a slow run may import something more
COMMANDS = (
    "dead list {} --limit 5",
    "dead list {} --all",
    "dead list {} --json",
    "dead plan {} --all",
    "dead plan {} --json",
    "dead groups {}",
    "dead show catalog dead-0001",
    "dead show catalog dead-0002 --json",
    "dead replay {} --all --reason r --wait 0 --json",
    "dead drop {} --all --reason r --json",
)


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        yield opened


def bury(exchange: Exchange, count: int) -> None:
    """Put so many dead messages into the catalog's dead queue."""
    messages = []
    for n in range(count):
        about = envelope(f"dead-{n:04}", "t", timestamp=1, correlation_id="c")
        about.headers = {REASON: "exhausted", ERROR: f"{n:04}" * 2500}
        messages.append(Message("", exchange.dead_queue("catalog"), about, b"{}"))
    with ConfirmedChannel(exchange.config.broker) as channel:
        channel.send_all(messages)


def peaks(exchange: Exchange, *commands: str) -> list[int]:
    """Return how many bytes each command's objects took at most."""
    ended = subprocess.run(
        [sys.executable, "-m", "support.child_peak", *exchange.options, *commands],
        env=exchange.environ,
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: list[int] = json.loads(ended.stdout)
    return found


def all_peaks(exchange: Exchange, count: int) -> list[int]:
    """Return it with *count* dead messages; they are replayed, and others are dropped."""
    bury(exchange, count)
    found = peaks(exchange, *COMMANDS[:-1])
    assert exchange.purge("catalog") == count
    bury(exchange, count)
    found += peaks(exchange, COMMANDS[-1])
    assert exchange.place("catalog").dead == 0
    return found


def test_memory_does_not_grow_with_the_number_of_the_dead(exchange: Exchange) -> None:
    """For each command: a page of them, not all; and all of them are there."""
    both = zip(all_peaks(exchange, FEW), all_peaks(exchange, MANY), strict=True)
    grown = {name: many - few for name, (few, many) in zip(COMMANDS, both, strict=True)}
    assert {name: bytes_ for name, bytes_ in grown.items() if bytes_ > MOST} == {}
