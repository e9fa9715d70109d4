"""The same schedule of faults against this package and against the two baselines, side by side.

    python tests/bench/beside.py --seed 1 --faults 40

Every system gets a broker of its own and the same faults in the same order. Faults that need this
package's stores are left out for all; what a baseline has no process or answer for did not bite.
*lost*: accepted, and never in the audit log. *doubled*: audit entries too many. *stuck*: in an
outbox for ever. *overwritten*: materials of which the catalog does not show the highest revision.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.servers import postgres, redis

from delivery.arena import API, PROCESSES, RELAY, Arena
from delivery.chaos import Load, attack, put_under_load
from delivery.faults import Ground
from delivery.schedule import KINDS, Planned, chosen_kinds, schedule
from delivery.stopping import Stop, stop_on_signals
from delivery.system import System, set_up
from delivery.terminal import say
from delivery.verdict import Facts, Tally, tally

BASELINES = Path(__file__).parent / "baselines"
QUIET, PATIENCE = 5.0, 120.0  # seconds without any change; seconds until we no longer wait for it
FAIR = [kind for kind in chosen_kinds((), (), Ground.BROKER) if not KINDS[kind].ours]


def plain() -> System:
    """Fire and forget: the API publishes after its commit, recipients acknowledge at once."""
    return _baseline("plain", (API, "catalog", "audit"), API, {})


def article(dsn: str, seen: str) -> System:
    """The usual outbox with statuses, a worker, and a "seen" key."""
    environ = {"BASELINE_POSTGRES": dsn, "BASELINE_REDIS": seen}
    return _baseline("article", PROCESSES, RELAY, environ)


def _baseline(
    name: str, processes: Sequence[str], publisher: str, environ: dict[str, str]
) -> System:
    return System(
        name,
        (sys.executable, str(BASELINES / f"{name}.py")),
        {process: (process,) for process in processes},
        publisher=publisher,
        environ={**environ, "BASELINE_PORT": "{port}"},
    )


def attack_baseline(system: System, planned: Sequence[Planned], load: Load, stop: Stop) -> Tally:
    """Run the schedule against a baseline; return what went wrong, once nothing moves any more."""
    known = [p for p in planned if system.publisher == RELAY or p.kind != "kill-relay"]
    with set_up(system, os.environ, say, stop) as arena:
        put_under_load(arena, known, load, say)
        stored = _at_rest(arena)
    unsent = [*stored["pending"], *stored["stuck"]]
    facts = Facts(
        outbox=stored["accepted"],
        audit=stored["audit"],
        catalog={m: (revision, title) for m, (revision, title, _) in stored["catalog"].items()},
        pending=unsent,
    )
    return tally(arena.journal.entries.values(), facts)


def _at_rest(arena: Arena) -> dict[str, Any]:
    """Ask what is stored until it has not changed for QUIET seconds."""
    stored, since, end = _facts(arena), time.monotonic(), time.monotonic() + PATIENCE
    while time.monotonic() < min(since + QUIET, end):
        time.sleep(0.5)
        if (now := _facts(arena)) != stored:
            stored, since = now, time.monotonic()
    return stored


def _facts(arena: Arena) -> dict[str, Any]:
    said = subprocess.run(
        [*arena.cast.program, "facts"],
        env=dict(arena.cast.environ),
        capture_output=True,
        check=True,
    )
    return dict(json.loads(said.stdout))


@contextlib.contextmanager
def servers() -> Iterator[tuple[str, str]]:
    """PostgreSQL and Redis, on ports and in folders of their own."""
    with (
        tempfile.TemporaryDirectory(prefix="beside-") as folder,
        postgres(Path(folder) / "postgres") as dsn,
        redis(Path(folder) / "redis") as seen,
    ):
        yield dsn, seen


def compare(seed: int, faults: int, rate: float) -> dict[str, Tally]:
    """Attack all three, one after the other."""
    planned, load = schedule(seed, faults, FAIR), Load(rate=rate, seed=seed)
    stop = stop_on_signals()
    found = {}
    say("== delivery")
    found["delivery"] = attack(os.environ, planned, load, say=say, stop=stop).tally
    say("== plain pika")
    found["plain pika"] = attack_baseline(plain(), planned, load, stop)
    say("== article outbox")
    with servers() as (dsn, seen):
        found["article outbox"] = attack_baseline(article(dsn, seen), planned, load, stop)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="same seed, same schedule")
    parser.add_argument("--faults", type=int, default=len(FAIR), help="how many (one of each kind)")
    parser.add_argument("--rate", type=float, default=40.0, help="publications a second")
    parser.add_argument("--json", action="store_true", help="for machines")
    asked = parser.parse_args()
    found = compare(asked.seed, asked.faults, asked.rate)
    if asked.json:
        print(json.dumps({name: asdict(each) for name, each in found.items()}, indent=1))
        return
    table = Table(title=f"{asked.faults} faults, seed {asked.seed}", box=None)
    for column in ("system", "accepted", "lost", "doubled", "stuck", "overwritten"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for name, each in found.items():
        table.add_row(name, *map(str, asdict(each).values()))
    Console().print(table)


if __name__ == "__main__":
    main()
