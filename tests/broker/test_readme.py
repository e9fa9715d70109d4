"""README prints only what a run prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from delivery.connection import BrokerSettings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", README, re.S | re.M)
    return text


def test_the_tour_is_the_heart_of_the_file_and_prints_what_the_readme_shows(
    settings: BrokerSettings,
) -> None:
    """README shows a part of a script that anybody can run."""
    source = (ROOT / "lessons/tour.py").read_text(encoding="utf-8")
    assert f"# README shows what is between these two marks.\n{block('python tour')}# End" in source
    tour = subprocess.run(
        [sys.executable, "lessons/tour.py"],
        cwd=ROOT,
        env={**os.environ, "DELIVERY_AMQP_URL": settings.url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (tour.returncode, tour.stdout) == (0, block("output tour")), tour.stderr


def test_the_demo_prints_what_the_readme_shows() -> None:
    """Every line of the demo's output is a fact, the same at each run."""
    # A broker that the test run was given is not ours to restart: the demo takes one of its own.
    own = {k: v for k, v in os.environ.items() if k != "DELIVERY_AMQP_URL"}
    demo = subprocess.run(
        [sys.executable, "-m", "delivery", "demo"],
        cwd=ROOT,
        env=own,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert demo.returncode == 0, demo.stderr
    shown = [line.rstrip() for line in demo.stdout.splitlines()]
    assert shown == block("output make demo").splitlines()
