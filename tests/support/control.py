"""What an operator does to a broker of ours: rabbitmqctl, inside its container or its node."""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

from delivery.broker import Broker
from delivery.docker_host import client
from delivery.node import Node
from delivery.node_setup import environment, scripts


def ctl(broker: Broker, *arguments: str) -> str:
    """Run ``rabbitmqctl`` with *arguments* and return what it prints; a failure is an error."""
    machine = broker.machine
    assert machine is not None, "this broker is not ours to operate"
    if isinstance(machine, Node):
        command = [str(scripts() / "rabbitmqctl"), *arguments]
        env = environment(machine.folder, machine.ports)
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    container = client().containers.get(machine.container_id)
    done = container.exec_run(["rabbitmqctl", *arguments])
    assert done.exit_code == 0, done.output
    return str(done.output.decode())


@contextlib.contextmanager
def user_of(broker: Broker) -> Iterator[tuple[str, str]]:
    """A user of the test's own with every right; gives its name and the broker's URL for it."""
    name = f"u{uuid.uuid4().hex[:8]}"
    ctl(broker, "add_user", name, "secret")
    try:
        grant(broker, name)
        where = urlsplit(broker.amqp_url).netloc.rpartition("@")[2]
        yield name, f"amqp://{name}:secret@{where}/%2F"
    finally:
        ctl(broker, "delete_user", name)


def grant(broker: Broker, name: str) -> None:
    ctl(broker, "set_permissions", "-p", "/", name, ".*", ".*", ".*")


@contextlib.contextmanager
def alarm(broker: Broker) -> Iterator[None]:
    """A memory alarm: the broker takes no publishes."""
    ctl(broker, "set_vm_memory_high_watermark", "absolute", "1")
    try:
        yield
    finally:
        ctl(broker, "set_vm_memory_high_watermark", "0.6")
