"""Measure everything, each beside a peer or a ceiling in the same run: one table, JSON, plots.

    python tests/bench/run.py [--quick] [--only relay,receive,...] [--out DIR]

The broker is a new one that nobody else uses. Contestants take turns, once a round; a figure is the
median of the rounds. On a machine that others keep busy, trust the ratios only.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import accepting, backlog, importing, latency, moving, page, report, sharing
from bench.machine import look
from bench.scene import Curve, Row, Scene
from rich.console import Console
from support.browser import PROGRAMS
from support.servers import postgres

from delivery.logs import log_to_stderr
from delivery.sandbox import disposable_broker
from delivery.terminal import say

PARTS: dict[str, Callable[[Scene], list[Row]]] = {
    "relay": moving.relay,
    "postgres": sharing.rows,
    "receive": moving.receive,
    "latency": latency.rows,
    "api": accepting.rows,
    "backlog": backlog.rows,
    "page": page.rows,
    "import": importing.rows,
}
CURVES: dict[str, Callable[[Scene], list[Curve]]] = {
    "curves": moving.curves,
    "backlog": backlog.curves,
}


@contextlib.contextmanager
def scene(*, quick: bool) -> Iterator[Scene]:
    """Give a broker and a PostgreSQL of our own, and a folder on the disk that programs use."""
    with (
        disposable_broker(os.environ, say) as broker,
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        postgres(Path(folder) / "postgres") as dsn,
    ):
        yield Scene(
            broker.amqp_url,
            Path(folder),
            dsn,
            size=0.1 if quick else 1.0,
            rounds=3 if quick else 5,
            say=say,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, 3 rounds")
    names = ",".join(dict.fromkeys([*PARTS, *CURVES]))
    parser.add_argument("--only", default=names, help=f"parts, of {names}")
    parser.add_argument("--out", type=Path, default=Path(".bench"), help="for JSON and the report")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and broker go with us
    wanted = asked.only.split(",")
    if unknown := set(wanted) - {*PARTS, *CURVES}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if "page" in wanted and not any(map(shutil.which, PROGRAMS)):
        parser.error("the part page needs Chromium or Chrome on the PATH; --only leaves it out")
    rows: list[Row] = []
    curves: list[Curve] = []
    before = look()
    say(str(before))
    # What a process of the exchange logs, ours log here too: the line is made, then thrown away.
    log_to_stderr("info")
    (handler,) = logging.getLogger().handlers
    with Path(os.devnull).open("w") as nowhere, scene(quick=asked.quick) as here:
        handler.setStream(nowhere)  # type: ignore[attr-defined]
        for name in wanted:
            say(f"== {name}")
            if name in PARTS:
                rows += PARTS[name](here)
            if name in CURVES:
                curves += CURVES[name](here)
    after = look()
    report.show(rows, Console(width=None if sys.stdout.isatty() else 200))
    report.write(asked.out, rows, curves, report.machine_lines(before, after))
    print(f"\nbefore: {before}\nafter:  {after}\n{asked.out}/bench.json, {asked.out}/bench.html")
    sys.exit(0 if all(row.met is not False for row in rows) else 1)


if __name__ == "__main__":
    main()
