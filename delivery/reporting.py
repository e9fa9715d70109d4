"""Tell what came of a chaos run: as lines for people, as JSON, and as a page."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from delivery.chaos import Run
from delivery.report_page import page
from delivery.terminal import plain

__all__ = ["as_data", "summary", "write_report"]

SHOWN = 10  # ids of one difference in the lines for people; the report has all


def summary(run: Run) -> Iterator[str]:
    """Yield the verdict in lines."""
    injected = sum(count for count, _ in run.bites.values())
    bit = sum(count for _, count in run.bites.values())
    yield f"{run.tally.accepted} accepted in {run.seconds:.0f} s on {run.broker}"
    yield f"{injected} faults injected, {bit} bit: " + ", ".join(
        f"{kind} {bit} of {count}" if bit != count else f"{kind} {bit}"
        for kind, (count, bit) in run.bites.items()
    )
    for account in run.accounts:
        places = ("applied", "stale", "dead", "difference")
        counts = ", ".join(f"{place} {getattr(account, place)}" for place in places)
        yield f"{account.recipient}: {counts}; {account.foreign_dead} foreign messages dead"
    for fault, count in sorted(Counter(h.fault for h in run.healed if h.fault).items()):
        yield f"lost by the broker and healed by reconcile: {count}, explained by {fault}"
    for line in run.differences:
        yield f"DIFFERENCE: {_short(line)}"
    yield "THIS DOES NOT ADD UP" if run.differences else "everything adds up"


def _short(difference: str) -> str:
    """Cut the ids that a difference ends with, if there are many."""
    found = re.fullmatch(r"(.*: \d+: )(.*)", difference)
    ids = found[2].split(", ") if found else []
    if not found or len(ids) <= SHOWN:
        return difference
    return f"{found[1]}{', '.join(ids[:SHOWN])} and {len(ids) - SHOWN} more (--report names all)"


def as_data(run: Run, seed: int) -> dict[str, Any]:
    """Return the whole run for machines; times are Unix seconds."""
    return {
        "seed": seed,
        "system": run.system,
        "broker": run.broker,
        "load": plain(run.load),
        "begun": run.begun,
        "seconds": round(run.seconds, 1),
        "adds_up": not run.differences,
        "differences": list(run.differences),
        "tally": plain(run.tally),
        "accounts": [plain(account) for account in run.accounts],
        "healed": [plain(each) for each in run.healed],
        "kinds": {kind: {"injected": n, "bit": b} for kind, (n, b) in run.bites.items()},
        "faults": [
            {
                "number": record.planned.number,
                "kind": record.planned.kind,
                "target": list(record.target),
                "begun": round(record.begun, 2),
                "ended": round(record.ended, 2),
                "bit": record.bit,
                "evidence": record.evidence,
                "error": record.error,
            }
            for record in sorted(run.records, key=lambda record: record.begun)
        ],
        "timeline": [plain(sample) for sample in run.samples],
    }


def write_report(run: Run, seed: int, folder: Path) -> Sequence[Path]:
    """Write report.json and report.html into *folder*; return their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    data = as_data(run, seed)
    machine, readable = folder / "report.json", folder / "report.html"
    machine.write_text(json.dumps(data, default=plain, indent=1), encoding="utf-8")
    # What a broker said is shown, whatever it is.
    readable.write_text(page(data), encoding="utf-8", errors="backslashreplace")
    return machine, readable
