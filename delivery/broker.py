"""A broker to work with, and, if it is ours, to restart and to kill."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from delivery.addresses import addresses
from delivery.container import Container
from delivery.errors import DeliveryError
from delivery.node import Node
from delivery.node_setup import Ports
from delivery.ready import wait_ready

__all__ = ["Broker", "Kind", "Machine", "NotOurs", "load", "save", "silent"]

Machine = Node | Container


class Kind(StrEnum):
    """Where a broker comes from."""

    GIVEN = "given"  # by DELIVERY_AMQP_URL: somebody else's
    DOCKER = "docker"
    NODE = "node"


class NotOurs(DeliveryError):
    """The broker was given to us: whoever runs it may restart or stop it, we may not."""


def silent(_: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Broker:
    """Where a broker is. `machine` is what runs it, None if it is not ours to break."""

    kind: Kind
    amqp_url: str = field(repr=False)  # holds a password
    management_url: str | None = field(repr=False)
    version: str
    machine: Machine | None = None

    @staticmethod
    def on(machine: Machine, version: str = "unknown") -> Broker:
        """Return the broker that a machine of ours runs."""
        kind = Kind.NODE if isinstance(machine, Node) else Kind.DOCKER
        return Broker(kind, machine.amqp_url, machine.management_url, version, machine)

    @property
    def ours(self) -> bool:
        """Say whether it may be restarted, killed and removed."""
        return self.machine is not None

    @property
    def address(self) -> str:
        """Host and port (of each node), for people: without the password."""
        nodes = (urlsplit(each).netloc for each in addresses(self.amqp_url))
        return ", ".join(node.rpartition("@")[2] for node in nodes)

    def start(self, say: Callable[[str], None] = silent) -> None:
        """Start it again after `stop` or `kill`, same port and data; return when it is ready."""
        machine = self._own("start")
        machine.start()
        wait_ready(self.amqp_url, say, management_url=self.management_url, running=machine.running)

    def stop(self) -> None:
        """Stop it gracefully: it says goodbye to its clients and writes its queues."""
        self._own("stop").stop()

    def kill(self) -> None:
        """Crash it (SIGKILL): it says goodbye to nobody and writes nothing."""
        self._own("kill").kill()

    def restart(self, say: Callable[[str], None] = silent) -> None:
        """Stop it gracefully, start it again, and return when it is ready."""
        self._own("restart")
        self.stop()
        self.start(say)

    def restart_app(self, say: Callable[[str], None] = silent) -> None:
        """Restart only the broker's application: for clients and queues the same, and sooner."""
        machine = self._own("restart")
        machine.restart_app()
        wait_ready(self.amqp_url, say, management_url=self.management_url, running=machine.running)

    def ctl(self, *command: str, tool: str = "rabbitmqctl") -> None:
        """Run rabbitmqctl on it, or another *tool* of the server's. Raises DeliveryError."""
        self._own("administer").ctl(*command, tool=tool)

    def _own(self, action: str) -> Machine:
        if self.machine is None:
            raise NotOurs(f"this broker is not ours to {action}: DELIVERY_AMQP_URL gave it to us")
        return self.machine


def save(machine: Machine, state_file: Path) -> None:
    """Write down what runs the sandbox broker, so that a later process finds it."""
    state = {"kind": Broker.on(machine).kind, "machine": asdict(machine)}
    new = state_file.with_suffix(".new")
    new.write_text(json.dumps(state, default=str, indent=2), encoding="utf-8")
    new.replace(state_file)  # whole or not at all


def load(state_file: Path) -> Machine | None:
    """Return what `save` wrote, None if there is nothing that can be read."""
    try:
        state = json.loads(state_file.read_text(encoding="utf-8"))
        kind, fields = state["kind"], state["machine"]
        if kind == Kind.NODE:
            return Node(Path(fields["folder"]), Ports(**fields["ports"]))
        return Container(**fields)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
