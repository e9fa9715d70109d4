"""The campaign of every kind of fault, on variants of the package that break one promise each.

A judge that finds nothing wrong with them would prove nothing about the package itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST = 20  # of 23 faults: a killer that is lost at its first death kills nobody three times

# What is broken: module, the right lines, the wrong ones, and what the judge must say of it.
VARIANTS = {
    "ack first": (
        "consumer",
        "            job = worker.submit(apply, reader.take(batch))\n",
        "            taken = reader.take(batch)\n"
        "            type(channel).basic_ack(channel, taken[-1].tag, multiple=True)\n"
        "            channel.basic_ack = lambda *_, **__: None\n"  # it is done already
        "            job = worker.submit(apply, taken)\n",
        "lost .* by our own code",
    ),
    "mark first": (
        "relay",
        "        answers = channel.send_all(batch.messages)\n"
        '        reach("relay.confirmed")\n'
        "        batch.record(answers)\n",
        "        from delivery.confirms import Answer\n"
        "        batch.record([Answer(Outcome.CONFIRMED)] * len(batch.messages))\n"
        '        reach("relay.confirmed")\n'
        "        answers = channel.send_all(batch.messages)\n",
        "lost .* by our own code",
    ),
    "receipt apart": (
        "handling",
        "            effect = handle(event_of(delivery), tx)\n",
        "            event = event_of(delivery)\n"
        "            try:\n"
        "                effect = handle(event, tx)\n"
        "            except BaseException:\n"
        '                tx.execute("ROLLBACK TO part")\n'
        '                tx.execute("INSERT OR IGNORE INTO receipt VALUES (?, ?, ?, 0, 0, 0)",\n'
        '                    (delivery.queue.split(".")[1], event.id, "applied"))\n'
        '                tx.execute("COMMIT")\n'
        '                tx.execute("BEGIN IMMEDIATE")\n'
        '                tx.execute("SAVEPOINT part")\n'
        "                raise\n",
        "audit has no entry for",
    ),
    "no revision rule": (
        "revision",
        "        if known and known[0] >= data.revision:\n            return Effect.STALE\n",
        "",
        "the catalog does not show the highest revision of",
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_variant_is_caught(variant: str, tmp_path: Path) -> None:
    """By the campaign that CI runs on the package itself: the same seed, the same kinds."""
    module, right, wrong, verdict = VARIANTS[variant]
    shutil.copytree(ROOT / "delivery", tmp_path / "delivery")
    source = tmp_path / "delivery" / f"{module}.py"
    text = source.read_text(encoding="utf-8")
    assert text.count(right) == 1, "the variant must follow the code"
    source.write_text(text.replace(right, wrong), encoding="utf-8")

    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "delivery", "chaos", "--seed", "1"]
    run = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=600, check=False
    )

    print(run.stdout, run.stderr)
    assert run.returncode == 1
    assert "THIS DOES NOT ADD UP" in run.stdout
    assert re.search(f"^DIFFERENCE: .*{verdict}", run.stdout, re.M)
    # Broken, and at work all the same: one that stands still would be caught by anybody.
    (bit,) = re.findall(r" faults injected, (\d+) bit", run.stdout)
    assert int(bit) >= MOST
