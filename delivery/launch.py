"""Start a broker of our own, of the first kind that this machine can give, or leave nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from delivery.broker import Broker, Kind, Machine, save
from delivery.container import Container
from delivery.docker_host import NoDocker, prepare
from delivery.errors import DeliveryError
from delivery.install import install_server
from delivery.node import Node
from delivery.node_setup import NoServer, scripts
from delivery.ready import wait_ready

__all__ = ["NoBroker", "clear", "start_first", "when_ready"]

WAYS = """no broker to work with. Three ways to get one:
  1. set DELIVERY_AMQP_URL to one that you may use: amqp://user:password@host:5672/%2F
  2. start Docker
  3. install rabbitmq-server (Debian, Ubuntu: sudo apt-get install rabbitmq-server)"""


class NoBroker(DeliveryError):
    """There is no broker, and none can be started here; the message lists the ways to get one."""


def start_first(forced: Kind | None, state_folder: Path, say: Callable[[str], None]) -> Broker:
    """Start one, in Docker or as a private node; NoBroker if neither is possible."""
    reasons = []
    for kind in (Kind.DOCKER, Kind.NODE) if forced is None else (forced,):
        try:
            return _start(kind, state_folder, say)
        except (NoDocker, NoServer) as reason:
            say(f"no broker by {kind}: {reason}")
            reasons.append(f"{kind}: {reason}")
    if forced is not None:
        raise NoBroker(f"DELIVERY_BROKER asks for {reasons[0]}")
    raise NoBroker("\n".join([WAYS, *(f"not {reason}" for reason in reasons)]))


def _start(kind: Kind, state_folder: Path, say: Callable[[str], None]) -> Broker:
    machine: Machine | None = None
    try:
        if kind is Kind.DOCKER:
            prepare(say)
            say("starting a broker in Docker")
            machine = Container.create(str(state_folder.absolute()))
            save(machine, state_folder / "broker.json")
        else:
            try:
                scripts()
            except NoServer:
                install_server(say)
            say("starting a private node of this machine's rabbitmq-server")
            machine = Node.create(state_folder / "node")
            save(machine, state_folder / "broker.json")
            machine.start()
        return when_ready(machine, say)
    except BaseException:  # Ctrl-C too: a start that did not succeed leaves nothing behind
        clear(state_folder, machine)
        raise


def clear(state_folder: Path, machine: Machine | None) -> None:
    """Remove the broker of a state folder, and whatever an interrupted start left of one."""
    if machine is not None:
        machine.remove()
    Node.clear(state_folder / "node")
    with contextlib.suppress(NoDocker):
        Container.remove_all(str(state_folder.absolute()))
    (state_folder / "broker.json").unlink(missing_ok=True)


def when_ready(machine: Machine, say: Callable[[str], None]) -> Broker:
    """Return the broker on a machine that was started, once it is ready."""
    version = wait_ready(
        machine.amqp_url, say, management_url=machine.management_url, running=machine.running
    )
    return Broker.on(machine, version)
