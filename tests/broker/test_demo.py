"""The demo, from outside: what it shows, how it ends, and that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.exchange import environment
from support.waiting import wait_for

import delivery
from delivery.broker import Broker, Machine, load
from delivery.connection import BrokerSettings, connect
from delivery.container import Container
from delivery.docker_host import NoDocker
from delivery.observe import depth
from delivery.routes import RECIPIENTS
from delivery.sandbox import broker_down

MATERIALS = Path(__file__).resolve().parents[2] / "data" / "materials.jsonl"
SCENES = (
    "started, each a process of its own: api, relay, catalog, audit",
    "published ",
    "repeated request: ",
    "incompatible event ",
    "transient failure: ",
    "exhausted: ",
    "replayed: applied; audit got nothing new",
    "catalog killed between commit and ack: ",
    "broker restarted: ",
)


@dataclass
class Demo:
    """A demo that runs: its process, what it has printed, and where its temporary files go."""

    process: subprocess.Popen[str]
    folder: Path
    output: Path
    seen: set[str] = field(default_factory=set)

    def said(self, words: str) -> bool:
        self.seen |= set(self.actors())
        assert self.process.poll() is None or words in self.printed(), self.printed()
        return words in self.printed()

    def printed(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def end(self, seconds: float = 60) -> int:
        return self.process.wait(seconds)

    def temporary(self) -> Path:
        return self.folder / "tmp"

    def actors(self) -> list[str]:
        """The processes on this machine that work in the demo's temporary folder."""
        found = subprocess.run(
            ["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True, check=True
        )
        return [
            line
            for line in found.stdout.splitlines()
            if f"{self.temporary()}/delivery" in line and " -m delivery " in line
        ]

    def broker_notes(self) -> list[Path]:
        """Where the demo wrote down a broker of its own."""
        return list(self.temporary().glob("delivery-*/broker.json"))

    def namespace(self) -> str:
        """The demo's prefix on the broker, as its processes were told."""
        words = next(iter(self.seen)).split()
        return words[words.index("--namespace") + 1]

    def assert_nothing_is_left(self) -> None:
        """No process, no temporary file; and there were some."""
        assert self.seen, "no process was ever seen: nothing is proved"
        assert self.actors() == []
        assert list(self.temporary().iterdir()) == []


@contextlib.contextmanager
def playing(folder: Path, file: Path = MATERIALS, **environ: str) -> Iterator[Demo]:
    (folder / "tmp").mkdir()
    output = folder / "output.txt"
    arguments = ["--data", str(folder / "state"), "demo", "--file", str(file)]
    with output.open("w") as target:
        process = subprocess.Popen(
            [sys.executable, "-m", "delivery", *arguments],
            env=environment(TMPDIR=str(folder / "tmp"), **environ),
            stdout=target,
            stderr=target,
            text=True,
        )
    demo = Demo(process, folder, output)
    try:
        yield demo
    finally:  # what a demo that failed left behind
        if process.poll() is None:
            process.kill()
            process.wait()
        for line in demo.actors():
            os.kill(int(line.split()[0]), signal.SIGKILL)
        for note in demo.broker_notes():
            broker_down({}, note.parent)


def own_broker() -> dict[str, str]:
    """Let the demo start a broker, of the kind that this run was told to take."""
    return {key: os.environ[key] for key in ("DELIVERY_BROKER",) if key in os.environ}


def machine_of(demo: Demo) -> Machine:
    """Wait for the broker that the demo starts."""
    wait_for(lambda: any(map(load, demo.broker_notes())), "the demo's broker is written down", 60)
    (found,) = map(load, demo.broker_notes())
    assert found is not None
    return found


def assert_removed(machine: Machine, demo: Demo) -> None:
    """The broker is not stopped but gone, with its data, and no note of it is left."""
    if isinstance(machine, Container):
        with pytest.raises(NoDocker, match="gone"):
            machine.start()
    else:
        assert not machine.running()
        assert not machine.folder.exists()
    assert demo.broker_notes() == []


def test_the_demo_shows_every_failure_and_adds_up(tmp_path: Path) -> None:
    """Exit 0, a line for each failure, difference 0 for both recipients, nothing left behind."""
    with playing(tmp_path, **own_broker()) as demo:
        machine = machine_of(demo)
        wait_for(lambda: demo.said("published "), "the first scene", 60)
        assert len(demo.actors()) == 4
        assert demo.end() == 0, demo.printed()
        demo.assert_nothing_is_left()
        assert_removed(machine, demo)

    lines = demo.printed().splitlines()
    at = 0
    for scene in SCENES:  # in this order
        at = next(n for n, line in enumerate(lines) if n >= at and line.startswith(scene))
    total = str(len(MATERIALS.read_text(encoding="utf-8").splitlines()))
    table = {words[0]: words[1:] for line in lines if (words := line.split()) and len(words) == 3}
    assert table["accepted"] == table["applied"] == [total, total]
    assert table["difference"] == ["0", "0"]
    assert "everything adds up" in lines


def test_ctrl_c_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    """SIGINT while everything runs: an exit code that is not 0, no traceback, nothing left."""
    with playing(tmp_path, **own_broker()) as demo:
        machine = machine_of(demo)
        wait_for(lambda: demo.said("incompatible event"), "the demo is in the middle", 60)
        demo.process.send_signal(signal.SIGINT)
        assert demo.end() != 0
        demo.assert_nothing_is_left()
        assert_removed(machine, demo)

    assert "Traceback" not in demo.printed()
    assert "everything adds up" not in demo.printed()


def test_on_a_given_broker_only_its_own_names_are_removed(broker: Broker, tmp_path: Path) -> None:
    """SIGTERM half way on somebody's broker: the demo's queues are gone, the broker still there."""
    with playing(tmp_path, DELIVERY_AMQP_URL=broker.amqp_url) as demo:
        wait_for(lambda: demo.said("repeated request"), "the demo is in the middle", 60)
        with connect(BrokerSettings(url=broker.amqp_url)) as connection:
            assert depth(connection, f"{demo.namespace()}.audit") is not None
        demo.process.send_signal(signal.SIGTERM)
        assert demo.end() != 0
        demo.assert_nothing_is_left()

    assert "error: interrupted while waiting" in demo.printed()  # between pika's calls, not inside
    with connect(BrokerSettings(url=broker.amqp_url)) as connection:
        for recipient in RECIPIENTS:
            for suffix in ("", ".retry.1", ".retry.2", ".dead"):
                assert depth(connection, f"{demo.namespace()}.{recipient}{suffix}") is None


def test_a_line_that_the_api_refuses_ends_the_demo(broker: Broker, tmp_path: Path) -> None:
    """Exit 1, and one clear sentence with the API's reason; nothing is left."""
    file = tmp_path / "materials.jsonl"
    lines = MATERIALS.read_text(encoding="utf-8").splitlines()
    refused = json.loads(lines[3]) | {"slug": "Not A Slug"}
    file.write_text("\n".join([*lines[:3], json.dumps(refused), *lines[4:]]), encoding="utf-8")
    with playing(tmp_path, file, DELIVERY_AMQP_URL=broker.amqp_url) as demo:
        wait_for(lambda: demo.said("started, "), "the processes run", 60)
        assert demo.end() == 1
        demo.assert_nothing_is_left()

    (error,) = [line for line in demo.printed().splitlines() if line.startswith("error: ")]
    assert "422" in error
    assert "slug" in error
    assert "Traceback" not in demo.printed()


@pytest.mark.parametrize("lines", [0, 5])
def test_a_file_that_is_too_short_is_refused_first(tmp_path: Path, lines: int) -> None:
    """Every scene needs a publication of its own: said before a broker is looked for."""
    file = tmp_path / "few.jsonl"
    few = MATERIALS.read_text(encoding="utf-8").splitlines()[:lines]
    file.write_text("".join(f"{line}\n" for line in few), encoding="utf-8")
    with playing(tmp_path, file, DELIVERY_AMQP_URL="amqp://nobody@127.0.0.1:9/") as demo:
        assert demo.end() == 1
    assert demo.printed().startswith("error: ")
    assert str(file) in demo.printed()
    assert demo.printed().count("\n") == 1


def test_the_demo_sees_an_effect_that_happens_twice(broker: Broker, tmp_path: Path) -> None:
    """The judge is judged: with an audit that writes each entry twice, the demo ends with 1."""
    copy = tmp_path / "sabotaged"
    shutil.copytree(Path(delivery.__file__).parent, copy / "delivery")
    audit = copy / "delivery" / "audit.py"
    code = audit.read_text(encoding="utf-8")
    start, end = code.index("    tx.execute("), code.index("    return Effect.APPLIED")
    audit.write_text(code[:end] + code[start:end] + code[end:], encoding="utf-8")
    environ = {"PYTHONPATH": str(copy), "DELIVERY_AMQP_URL": broker.amqp_url}
    with playing(tmp_path, **environ) as demo:
        assert demo.end() == 1, demo.printed()

    assert "WRONG: the audit log does not hold each event exactly once" in demo.printed()
    assert "everything adds up" not in demo.printed()
