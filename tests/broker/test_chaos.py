"""``delivery chaos``: real processes on a broker of their own, attacked and judged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingConnection
from support.answering import answering
from support.events import event as material_event
from support.waiting import wait_for

from delivery.audit import append
from delivery.books import settled_accounts
from delivery.chaos import last_accounts
from delivery.config import Config
from delivery.connection import BrokerSettings, connect
from delivery.dead import REASON, dead_queue
from delivery.facts import facts_of
from delivery.retry import ATTEMPT_HEADER
from delivery.schedule import KINDS
from delivery.store import transaction
from delivery.stores import Stores
from delivery.system import ours
from delivery.topology import declare

DELIVERY = [sys.executable, "-m", "delivery"]


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*DELIVERY, "chaos", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def test_a_short_campaign_adds_up_and_is_reported(tmp_path: Path) -> None:
    """Each fault left evidence; the report's counts are the ledger's; the page is written."""
    kinds = ["kill-relay", "cut-before-confirm", "cut-before-ack", "duplicate", "reorder", "poison"]
    only = [word for kind in kinds for word in ("--only", kind)]
    run = chaos("--seed", "3", "--batch", "20", "--report", str(tmp_path), "--json", *only)

    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["adds_up"] is True
    assert report["kinds"] == {kind: {"injected": 1, "bit": 1} for kind in sorted(kinds)}
    assert report["tally"]["accepted"] > 20
    assert report["timeline"][-1]["settled"]["audit"] == report["tally"]["accepted"]
    for account in report["accounts"]:
        assert account["difference"] == account["pending"] == account["ready"] == 0
        assert account["foreign_dead"] == 3
    written = json.loads((tmp_path / "report.json").read_text())
    assert written == report
    assert "everything adds up" in (tmp_path / "report.html").read_text()


def test_an_interrupt_ends_a_campaign_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """In the middle of a fault, which is not blamed for it."""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*DELIVERY, "chaos", "--only", "stall", "--seed", "5"],  # it hits audit
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )

    def settled() -> int:
        logs = (each.read_text() for each in tmp_path.glob("*/logs/*.log"))
        return sum(text.count("delivery.settled") for text in logs)

    wait_for(lambda: settled() > 20, "events go by, at least to the catalog", 60)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert said.splitlines()[-1].startswith("error: interrupted")
    assert "DID NOT" not in said
    assert [*tmp_path.iterdir()] == []


def test_a_fault_that_did_not_bite_is_counted_out_and_strictly_an_error() -> None:
    """Nothing can be sent again before anything was settled: at this rate, that takes a while."""
    arguments = ("--only", "duplicate", "--rate", "0.1")
    run = chaos(*arguments, "--strict")
    assert "DID NOT BITE: nothing was settled yet" in run.stderr
    assert "1 faults injected, 0 bit: duplicate 0 of 1" in run.stdout
    assert run.stdout.endswith("everything adds up\n")
    assert run.returncode == 1


def test_a_wrong_count_of_what_readers_have_does_not_decide(
    settings: BrokerSettings, connection: BlockingConnection, namespace: str, tmp_path: Path
) -> None:
    """After a partition the plugin told 1 unacked, where nothing was. Stopped readers have none."""
    with answering(200, b'{"messages_unacknowledged": 1}') as url:
        config = Config(
            broker=settings, stores=Stores(tmp_path), namespace=namespace, management_url=url
        )
        declare(connection, config.topology())
        assert [found.copies for found in settled_accounts(config, seconds=0)] == [1, 1]
        stopped: list[bool] = []
        found = last_accounts(config, lambda: stopped.append(True), seconds=0)
    assert stopped == [True]
    assert [(each.copies, each.unacked_seen) for each in found] == [(0, False)] * 2


def test_what_a_reader_keeps_in_its_hands_is_found_when_it_is_stopped(
    settings: BrokerSettings, connection: BlockingConnection, namespace: str, tmp_path: Path
) -> None:
    config = Config(broker=settings, stores=Stores(tmp_path), namespace=namespace)
    declare(connection, config.topology())
    queue = config.route("audit").queue
    with connect(settings) as reading, answering(200, b'{"messages_unacknowledged": 1}') as url:
        channel = reading.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"held")
        method, _, _ = channel.basic_get(queue)
        assert method is not None
        told = replace(config, management_url=url)
        found = last_accounts(told, reading.close, seconds=2)
    assert [(each.recipient, each.copies) for each in found] == [("catalog", 0), ("audit", 1)]


def test_who_was_given_up_before_every_attempt_is_not_exhausted(
    settings: BrokerSettings, connection: BlockingConnection, namespace: str, tmp_path: Path
) -> None:
    config = Config(
        broker=settings, stores=Stores(tmp_path), namespace=namespace, retries_ms=(1, 1, 1)
    )
    declare(connection, config.topology())
    channel = connection.channel()
    channel.confirm_delivery()
    for attempt in (3, 4):
        headers = {REASON: "exhausted", ATTEMPT_HEADER: attempt}
        properties = BasicProperties(message_id=f"e-{attempt}", headers=headers)
        channel.basic_publish("", dead_queue(config.route("audit")), b"", properties)
    dead = facts_of(config, (), ()).dead
    assert dead == {"catalog": {}, "audit": {"e-3": "exhausted by attempt 3", "e-4": "exhausted"}}


def test_what_audit_has_is_read_as_it_is_written(
    settings: BrokerSettings, connection: BlockingConnection, namespace: str, tmp_path: Path
) -> None:
    config = Config(broker=settings, stores=Stores(tmp_path), namespace=namespace)
    declare(connection, config.topology())
    event = material_event("m-1", revision=3, title="third")
    with closing(config.stores.open("audit")) as audit, transaction(audit) as tx:
        append(event, tx)
        append(event, tx)
    facts = facts_of(config, (), (), {"s"})
    assert facts.audit == [event.id] * 2
    assert facts.written == {(event.id, "m-1", 3, "third")}
    assert facts.strangers == {"s"}


def test_a_report_that_can_not_be_written_is_told_before_the_campaign() -> None:
    run = chaos("--only", "stall", "--report", "/dev/null/there")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("error: [Errno 20] Not a directory: '/dev/null/there'")


def test_the_list_explains_every_kind() -> None:
    said = chaos("--list").stdout
    for kind, fault in KINDS.items():
        assert f"{kind}\n    does: {fault.what}\n    then: {fault.end}\n" in said
        assert f"    on: {fault.ground}\n" in said.partition(f"{kind}\n")[2]


def test_the_plan_is_shown_without_doing_it() -> None:
    first, again = (chaos("--plan", "--seed", "5", "--faults", "30").stdout for _ in range(2))
    assert first == again
    assert len(first.splitlines()) == 30


def test_list_and_plan_can_be_read_by_machines() -> None:
    listed = json.loads(chaos("--list", "--json").stdout)
    assert [(each["kind"], each["does"]) for each in listed] == [
        (kind, fault.what) for kind, fault in KINDS.items()
    ]
    planned = json.loads(chaos("--plan", "--json", "--only", "stall", "--faults", "2").stdout)
    assert [(each["number"], each["kind"]) for each in planned] == [(1, "stall"), (2, "stall")]


def test_the_recipients_of_a_campaign_get_its_batch() -> None:
    assert ours(20).commands["audit"] == ("receive", "audit", "--batch", "20")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--nodes", "2"), "--nodes can be 1 (one broker) or 3 (a cluster)"),
        (("--nodes", "3", "--postgres", "x"), "--nodes 3 and --postgres are two campaigns"),
        (("--postgres", "x", "--batch", "9"), "--batch is for the other campaigns"),
        (("--only", "kill-node"), "kill-node is a fault of three nodes (--nodes 3)"),
        (("--nodes", "3", "--only", "alarm"), "alarm is a fault of one broker"),
    ],
)
def test_a_ground_that_does_not_fit_is_refused(arguments: tuple[str, ...], says: str) -> None:
    run = chaos(*arguments)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith(f"error: {says}")


@pytest.mark.parametrize("arguments", [("--only", "nonsense"), ("--without", "nonsense")])
def test_a_kind_that_does_not_exist_is_an_error_with_a_hint(arguments: tuple[str, str]) -> None:
    run = chaos(*arguments)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "error: there is no fault 'nonsense'; see: delivery chaos --list\n"
