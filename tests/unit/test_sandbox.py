"""Lesson 00 without a broker: what is chosen, what is refused, and what is never touched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from delivery import checks, install, node_setup, process, sandbox
from delivery.broker import Broker, Kind, NotOurs, load, save
from delivery.checks import Verdict
from delivery.container import Container
from delivery.doctor import diagnose
from delivery.errors import DeliveryError
from delivery.node import Node
from delivery.node_setup import NoServer, Ports
from delivery.process import Process
from delivery.ready import NotReady
from delivery.sandbox import NoBroker, broker_down, broker_status, find_broker

DEAD_URL = "amqp://somebody:secret@127.0.0.1:1/%2F"


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with no rabbitmq-server and no apt-get to install one."""
    monkeypatch.setattr(node_setup, "_PLACES", ())
    monkeypatch.setenv("PATH", "")


# --- the order of choice ---------------------------------------------------------------------


def test_a_given_broker_that_does_not_answer_is_an_error_and_no_reason_to_start_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "PATIENCE", 0.0)
    with pytest.raises(NotReady, match="broker of DELIVERY_AMQP_URL does not answer") as caught:
        find_broker({"DELIVERY_AMQP_URL": DEAD_URL}, tmp_path)
    assert "ConnectionRefused" in str(caught.value), "a refused port's error has an empty str"
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["nonsense", "http://127.0.0.1/", "amqp://127.0.0.1:99999/"])
def test_a_given_url_that_is_none_is_told_at_once(url: str, tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="AMQP URL"):
        find_broker({"DELIVERY_AMQP_URL": url}, tmp_path)


def test_a_given_broker_and_a_forced_kind_contradict_each_other(tmp_path: Path) -> None:
    environ = {"DELIVERY_AMQP_URL": DEAD_URL, "DELIVERY_BROKER": "node"}
    with pytest.raises(DeliveryError, match="contradict each other: unset one"):
        find_broker(environ, tmp_path)


def test_a_kind_that_does_not_exist_cannot_be_forced(tmp_path: Path) -> None:
    with pytest.raises(DeliveryError, match="'podman': it can be docker or node"):
        find_broker({"DELIVERY_BROKER": "podman"}, tmp_path)


def test_without_any_way_to_a_broker_the_error_lists_the_three_ways(
    no_docker: None, no_server: None, tmp_path: Path
) -> None:
    with pytest.raises(NoBroker) as caught:
        find_broker({}, tmp_path)
    message = str(caught.value)
    for way in ("set DELIVERY_AMQP_URL", "start Docker", "install rabbitmq-server"):
        assert way in message
    for reason in ("not docker: no Docker daemon answers", "not node: no rabbitmq-server"):
        assert reason in message


def test_a_forced_kind_that_is_impossible_is_an_error_and_no_other_kind_is_tried(
    no_docker: None, tmp_path: Path
) -> None:
    with pytest.raises(NoBroker, match="asks for docker: no Docker daemon answers"):
        find_broker({"DELIVERY_BROKER": "docker"}, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"broker.lock"}


def test_without_testcontainers_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "testcontainers.core.docker_client", None)
    with pytest.raises(NoBroker, match=r"pip install 'delivery\[sandbox\]'"):
        find_broker({"DELIVERY_BROKER": "docker"}, tmp_path)


# --- not ours --------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["start", "stop", "kill", "restart"])
def test_a_given_broker_is_not_ours_to_break(action: str) -> None:
    given = Broker(Kind.GIVEN, DEAD_URL, None, "unknown")
    with pytest.raises(NotOurs, match=f"not ours to {action}: DELIVERY_AMQP_URL gave it"):
        getattr(given, action)()


def test_a_given_broker_is_not_ours_to_take_down(tmp_path: Path) -> None:
    with pytest.raises(NotOurs, match="DELIVERY_AMQP_URL is not ours to stop"):
        broker_down({"DELIVERY_AMQP_URL": DEAD_URL}, tmp_path)


def test_a_broker_is_shown_without_its_password() -> None:
    given = Broker(Kind.GIVEN, DEAD_URL, "http://somebody:secret@127.0.0.1:2", "unknown")
    assert "secret" not in repr(given)
    assert given.address == "127.0.0.1:1"


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def test_a_process_that_was_given_a_pid_of_ours_later_is_never_killed(
    stranger: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "node").mkdir()
    note = f'{{"pid": {stranger.pid}, "born": "1@another-boot"}}'
    (tmp_path / "node" / "server.pid").write_text(note)
    (tmp_path / "node" / "epmd.pid").write_text("not even JSON")
    node = Node(tmp_path / "node", Ports(1, 2, 3, 4))
    assert not node.running()
    node.kill()
    node.remove()
    assert stranger.poll() is None, "a stranger was killed"
    assert not (tmp_path / "node").exists()


def test_a_process_of_ours_is_known_and_ended(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    ours = process.spawn(argv, dict(os.environ), tmp_path / "log", tmp_path / "pid")
    assert Process.recorded(tmp_path / "pid") == ours
    assert ours.alive()
    assert os.getsid(ours.pid) == ours.pid, "a Ctrl-C in our terminal would reach it"
    ours.kill()
    assert not ours.alive()
    assert not Path(f"/proc/{ours.pid}").exists(), "a zombie was left"


# --- the pieces ------------------------------------------------------------------------------


def test_the_newest_server_is_the_one_with_the_highest_number(tmp_path: Path) -> None:
    for version in ("3.9.29", "3.10.8", "3.2.0"):
        script = tmp_path / f"usr/lib/rabbitmq/lib/rabbitmq_server-{version}/sbin/rabbitmq-server"
        script.parent.mkdir(parents=True)
        script.touch()
    assert "3.10.8" in str(node_setup.scripts(tmp_path))
    with pytest.raises(NoServer, match="no rabbitmq-server is installed"):
        node_setup.scripts(tmp_path / "empty")


def test_chosen_ports_are_free_and_no_outgoing_connection_can_be_lent_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as anyone:
        taken = anyone.getsockname()[1]
        ports = process.free_ports(50)
    assert len(set(ports)) == 50
    assert taken not in ports
    assert max(ports) < 32768, "Linux draws outgoing ports from there on"


def test_what_runs_the_sandbox_is_found_again(tmp_path: Path) -> None:
    for machine in (Node(tmp_path / "node", Ports(1, 2, 3, 4)), Container("abc", 1, 2)):
        save(machine, tmp_path / "broker.json")
        assert load(tmp_path / "broker.json") == machine
    for damage in ("", "[]", '{"kind": "docker", "machine": {}}'):
        (tmp_path / "broker.json").write_text(damage)
        assert load(tmp_path / "broker.json") is None


def test_the_lock_is_waited_for_and_dies_with_its_process(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, delivery.sandbox as s\n"
        "with s._locked(pathlib.Path(sys.argv[1]), print): print('held', flush=True); input()"
    )
    argv = [sys.executable, "-c", program, str(tmp_path)]
    said, waits = [], threading.Event()

    def say(line: str) -> None:
        said.append(line)
        waits.set()

    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        second = threading.Thread(target=broker_down, args=({}, tmp_path, say))
        second.start()
        assert waits.wait(20), "the second did not notice the first"
        second.join(0.5)
        assert second.is_alive(), "the second did not wait for the first"
        holder.send_signal(signal.SIGKILL)
        second.join(30)
    assert not second.is_alive(), "the lock outlived its process"
    assert said == ["another process is at work on this sandbox broker; waiting for it"]


def test_an_installed_package_cannot_start_its_service(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with install.services_held(policy):
        assert subprocess.run([policy, "rabbitmq-server", "start"], check=False).returncode == 101
    assert not policy.exists()


def test_the_machines_own_policy_is_asked_and_left_alone(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    with install.services_held(policy):
        pass
    assert policy.read_text() == "#!/bin/sh\nexit 101\n"
    policy.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(NoServer, match="default port"), install.services_held(policy):
        pytest.fail("the service would have started")
    policy.chmod(0o644)
    with pytest.raises(NoServer, match="default port"), install.services_held(policy):
        pytest.fail("invoke-rc.d ignores a policy that cannot run")


def test_nothing_is_started_to_say_how_things_are(tmp_path: Path) -> None:
    assert broker_status({}, tmp_path / "state") is None
    diagnose({}, tmp_path / "state")
    assert not (tmp_path / "state").exists()


# --- doctor ----------------------------------------------------------------------------------


def test_the_doctor_names_one_fix_for_each_thing_that_is_not_fine(
    no_docker: None, no_server: None, tmp_path: Path
) -> None:
    found = {check.name: check for check in diagnose({}, tmp_path)}
    for check in found.values():
        assert bool(check.fix) == (check.verdict is not Verdict.OK), check
        assert check.seen
    assert found["Docker"].verdict is Verdict.WARN
    assert found["broker image"].verdict is Verdict.WARN
    assert found["rabbitmq-server"].verdict is Verdict.WARN
    assert found["a broker"].verdict is Verdict.FAIL
    assert found["clock"].seen.startswith("not compared")


def test_the_doctor_takes_a_given_broker_that_fails_for_failed(tmp_path: Path) -> None:
    found = {c.name: c for c in diagnose({"DELIVERY_AMQP_URL": DEAD_URL}, tmp_path)}
    assert found["DELIVERY_AMQP_URL"].verdict is Verdict.FAIL
    assert "ConnectionRefused" in found["DELIVERY_AMQP_URL"].seen
    assert found["a broker"].verdict is Verdict.FAIL, "it comes first, so nothing else helps"


def test_the_doctor_looks_at_versions_ports_and_the_state_folder(tmp_path: Path) -> None:
    assert checks.python((3, 11, 0)).verdict is Verdict.OK
    assert checks.python((3, 10, 9)).verdict is Verdict.FAIL
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        number = somebody.getsockname()[1]
        assert checks.port(number, "VARIABLE").verdict is Verdict.WARN
    assert checks.port(number, "VARIABLE").verdict is Verdict.OK
    assert checks.folder(tmp_path / "not" / "yet").verdict is Verdict.OK
    (tmp_path / "file").touch()
    for bad in (checks.folder(tmp_path / "file"), checks.python((3, 10)), checks.pika("1.4.4")):
        assert bad.verdict is not Verdict.OK
        assert bad.fix
