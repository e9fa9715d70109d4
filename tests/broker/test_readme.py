"""README prints only what a run prints."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from pika.adapters.blocking_connection import BlockingConnection
from support.events import event

from delivery import (
    catalog,
    codec,
    consumer,
    dead,
    inbox,
    pipeline,
    publisher,
    revision,
    routes,
    topology,
)
from delivery.connection import BrokerSettings, connect
from delivery.store import open_store

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", README, re.S | re.M)
    return text


def test_the_tour_prints_what_the_readme_shows(
    settings: BrokerSettings, namespace: str, connection: BlockingConnection, tmp_path: Path
) -> None:
    """The ten lines run as they stand, given a route, an event, a store and the imports."""
    names: dict[str, object] = {}
    for module in (codec, dead, consumer, inbox, pipeline, publisher, revision, routes, topology):
        names |= vars(module)
    names |= {"connect": connect, "upsert": catalog.upsert, "settings": settings}
    names["route"] = routes.Route("catalog", namespace)
    names["event"] = event()
    schemas = (inbox.SCHEMA, revision.SCHEMA, catalog.SCHEMA)
    names["store"] = open_store(tmp_path / "catalog.sqlite3", *schemas)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block("python tour"), "README.md", "exec"), names)
    assert out.getvalue() == block("output tour")


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
