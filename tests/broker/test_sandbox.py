"""Lesson 00 with real brokers, of every kind that this machine has: ours to break."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pika
import pika.exceptions
import pytest
from support.waiting import wait_for

from delivery.broker import Broker, Kind, NotOurs, load
from delivery.checks import Verdict
from delivery.container import LABEL
from delivery.docker_host import client
from delivery.doctor import diagnose
from delivery.errors import DeliveryError
from delivery.ready import NotReady, probe
from delivery.sandbox import (
    broker_down,
    broker_status,
    disposable_broker,
    find_broker,
    kinds_here,
)

DISPOSABLE = """
import os, sys, time
from delivery.sandbox import disposable_broker
with disposable_broker(os.environ) as broker:
    print(broker.address, flush=True)
    time.sleep(600)
"""
FIND = """
import os, pathlib, sys
from delivery.sandbox import find_broker
print(find_broker(os.environ, pathlib.Path(sys.argv[1]), lambda s: print(s, flush=True)).address)
"""


def later_process(folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """As `delivery broker up` does it: a process of its own that finds a broker and ends."""
    rest = {name: value for name, value in os.environ.items() if name != "DELIVERY_AMQP_URL"}
    argv = [sys.executable, "-c", FIND, str(folder)]
    return subprocess.Popen(argv, env=rest | environ, stdout=subprocess.PIPE, text=True)


def left_over(*folders: Path) -> list[str]:
    """What a sandbox in such a folder has: processes (it is their HOME), containers, files."""
    found = [str(p) for f in folders if f.exists() for p in f.iterdir() if p.name != "broker.lock"]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes()
            if any(f"HOME={folder}/".encode() in variables for folder in folders):
                found.append((process / "cmdline").read_text()[:80])
        except OSError:
            continue  # ended in the meantime, or not ours to look into
    if Kind.DOCKER in kinds_here():
        for folder in folders:
            owned = {"label": f"{LABEL}={folder}"}
            found += map(str, client().containers.list(all=True, filters=owned))
    return found


@pytest.fixture(scope="module", params=kinds_here() or ["none"])
def environ(request: pytest.FixtureRequest) -> dict[str, str]:
    assert request.param != "none", "neither Docker with the image nor a rabbitmq-server is here"
    return {"DELIVERY_BROKER": str(request.param)}


@pytest.fixture(scope="module")
def folder(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One sandbox for the tests of a kind; each of them finds it as any process would."""
    path = tmp_path_factory.mktemp("a long path with spaces " + "x" * 100)
    yield path
    broker_down(environ, path)


def test_two_that_look_at_once_find_one_broker_which_outlives_both(
    environ: dict[str, str], tmp_path: Path
) -> None:
    try:
        twins = [later_process(tmp_path, environ) for _ in range(2)]
        said = [twin.communicate(timeout=120)[0].splitlines() for twin in twins]
        assert [twin.returncode for twin in twins] == [0, 0], said
        assert said[0][-1] == said[1][-1], "two brokers were started"
        assert sum("starting" in line for lines in said for line in lines) == 1
        found = find_broker(environ, tmp_path)
        assert found.address == said[0][-1]
        assert found.ours
        assert found.kind == environ["DELIVERY_BROKER"]
        assert broker_status(environ, tmp_path) == found
    finally:
        broker_down(environ, tmp_path)
    assert left_over(tmp_path) == []
    assert broker_status(environ, tmp_path) is None


def graceful(broker: Broker) -> None:
    broker.restart()


def application(broker: Broker) -> None:
    """Only the broker in its VM; every connection ends with it, as in a whole restart."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    connection.channel().queue_declare("gone", durable=True)
    connection.channel().basic_publish("", "gone", b"transient")
    broker.restart_app()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(10)
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as again:
        assert again.channel().basic_get("gone")[2] is None


def crash(broker: Broker) -> None:
    # Before 4.x, Mnesia has a queue that was declared a moment ago on the disk a moment later.
    with contextlib.suppress(DeliveryError):
        broker.ctl("eval", "mnesia:sync_log().")
    broker.kill()
    assert_refuses(broker)
    broker.start()


def assert_refuses(broker: Broker) -> None:
    with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
        probe(broker.amqp_url)
    assert "ConnectionRefused" in repr(caught.value)


def test_a_stop_says_goodbye_to_clients_and_a_crash_does_not(
    environ: dict[str, str], folder: Path
) -> None:
    broker = find_broker(environ, folder)
    for end, expected in (
        (broker.stop, pika.exceptions.ConnectionClosedByBroker),
        (broker.kill, pika.exceptions.StreamLostError),
    ):
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        end()
        with pytest.raises(expected):
            connection.process_data_events(10)
        broker.start()


@pytest.mark.parametrize("breaks", [graceful, application, crash])
def test_a_confirmed_persistent_message_is_still_there_after(
    breaks: Callable[[Broker], None], environ: dict[str, str], folder: Path
) -> None:
    broker = find_broker(environ, folder)
    queue = f"kept-{uuid.uuid4()}"
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", queue, b"keep me", persistent, mandatory=True)
    breaks(broker)
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        assert connection.channel().basic_get(queue, auto_ack=True)[2] == b"keep me"


def test_a_broker_that_is_given_is_used_and_not_ours(
    environ: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    running = find_broker(environ, folder)
    given = {"DELIVERY_AMQP_URL": running.amqp_url}
    broker = find_broker(given, tmp_path)
    assert (broker.kind, broker.version) == (Kind.GIVEN, running.version)
    assert not broker.ours
    with pytest.raises(NotOurs):
        broker.restart()
    with pytest.raises(NotOurs):
        broker_down(given, tmp_path)
    assert probe(running.amqp_url) == running.version, "it was touched all the same"
    assert list(tmp_path.iterdir()) == []


def test_a_given_broker_that_refuses_the_user_is_not_waited_for(
    environ: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    url = find_broker(environ, folder).amqp_url.replace("delivery:delivery", "delivery:wrong")
    with pytest.raises(NotReady, match="waiting will not help: ProbableAuthenticationError"):
        find_broker({"DELIVERY_AMQP_URL": url}, tmp_path)


def test_the_doctor_sees_the_rights_and_the_clock_of_a_broker(
    environ: dict[str, str], folder: Path
) -> None:
    broker = find_broker(environ, folder)
    found = {check.name: check for check in diagnose({}, folder)}
    assert found["clock"].seen == "within 3 s of the broker's"
    found = {c.name: c for c in diagnose({"DELIVERY_AMQP_URL": broker.amqp_url}, folder)}
    assert found["DELIVERY_AMQP_URL"].verdict is Verdict.OK
    assert broker.version in found["DELIVERY_AMQP_URL"].seen


def test_a_sandbox_of_another_kind_is_not_taken_for_the_forced_one(
    environ: dict[str, str], folder: Path
) -> None:
    find_broker(environ, folder)
    other = {"DELIVERY_BROKER": "node" if environ["DELIVERY_BROKER"] == "docker" else "docker"}
    with pytest.raises(DeliveryError, match="take it down first"):
        find_broker(other, folder)
    assert find_broker(environ, folder).ours


def test_a_dead_broker_is_replaced_and_that_is_said(environ: dict[str, str], folder: Path) -> None:
    dead = find_broker(environ, folder)
    dead.kill()
    shown = broker_status(environ, folder)
    assert shown is not None
    assert (shown.address, shown.version) == (dead.address, "unknown")
    said: list[str] = []
    broker = find_broker(environ, folder, said.append)
    assert said[0] == f"the sandbox broker of {folder} is dead: replacing it"
    assert broker.address != dead.address
    assert load(folder / "broker.json") == broker.machine
    assert probe(broker.amqp_url) == broker.version


def test_a_state_folder_that_was_moved_still_leads_to_its_broker(
    environ: dict[str, str], tmp_path: Path
) -> None:
    broker = find_broker(environ, tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    broker_down(environ, tmp_path / "after")
    assert_refuses(broker)
    assert left_over(tmp_path / "before", tmp_path / "after") == []


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_start_that_is_interrupted_leaves_nothing_for_long(
    end: signal.Signals, environ: dict[str, str], tmp_path: Path
) -> None:
    starting = later_process(tmp_path, environ)
    assert starting.stdout is not None
    while "starting" not in starting.stdout.readline():
        assert starting.poll() is None
    while not (tmp_path / "broker.json").exists():
        assert starting.poll() is None
    starting.send_signal(end)
    starting.communicate(timeout=60)
    if end is signal.SIGKILL:  # it had no chance to clean up; `down` does
        assert left_over(tmp_path) != []
        broker_down(environ, tmp_path)
    assert left_over(tmp_path) == []


def test_a_disposable_broker_is_gone_afterwards_whatever_happens(
    environ: dict[str, str], folder: Path
) -> None:
    shared = find_broker(environ, folder)
    with (
        pytest.raises(ZeroDivisionError),
        disposable_broker(environ) as broker,
    ):
        assert broker.address != shared.address
        raise ZeroDivisionError
    assert_refuses(broker)


def test_a_disposable_broker_is_gone_although_its_process_was_killed(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Node or container, and the folder: nobody who could clean up is left but the small one."""
    rest = {name: value for name, value in os.environ.items() if name != "DELIVERY_AMQP_URL"}
    own = rest | environ | {"TMPDIR": str(tmp_path)}
    argv = [sys.executable, "-c", DISPOSABLE]
    with subprocess.Popen(argv, env=own, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert "127.0.0.1" in killed.stdout.readline()
        (folder,) = tmp_path.resolve().glob("delivery-*")
        killed.kill()
    wait_for(lambda: left_over(folder) == [] and not folder.exists(), "nothing is left", 60)
