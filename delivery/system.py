"""The system under attack: processes with a line and a user each, on a broker of its own."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from delivery.arena import API, PROCESSES, RELAY, Arena
from delivery.belongings import own_folder
from delivery.broker import Broker
from delivery.cast import Cast
from delivery.cluster import Cluster
from delivery.config import Config, as_it_is
from delivery.lines import Lines
from delivery.process import free_ports
from delivery.quorum import as_quorum
from delivery.routes import RECIPIENTS
from delivery.sandbox import disposable_broker
from delivery.stopping import Stop
from delivery.traffic import Journal

__all__ = ["System", "ours", "set_up"]

NAMESPACE = "chaos"
HEARTBEAT = 3  # seconds: short, so that a silent line is noticed within some 15 s
RETRIES_MS = (500, 1_000, 2_000)


@dataclass(frozen=True)
class System:
    """What is attacked: this package, or another program that does the same work.

    It reads DELIVERY_AMQP_URL, DELIVERY_NAMESPACE and DELIVERY_DATA, serves the API at the port
    that ``{port}`` stands for in its commands and its *environ*, and logs ``NAME.ready``.
    """

    name: str
    program: Sequence[str]
    commands: Mapping[str, Sequence[str]]
    publisher: str = RELAY
    environ: Mapping[str, str] = field(default_factory=dict)
    ours: bool = False


def ours(batch: int = 1) -> System:
    """Return this package's processes; a recipient commits at most *batch* deliveries together."""
    retries = ",".join(map(str, RETRIES_MS))
    options = ("--namespace", NAMESPACE, "--retries", retries)
    return System(
        "delivery",
        (sys.executable, "-m", "delivery", *options),
        {
            API: ("api", "--port", "{port}"),
            RELAY: ("relay",),
            **{each: ("receive", each, "--batch", str(batch)) for each in RECIPIENTS},
        },
        ours=True,
    )


@contextlib.contextmanager
def set_up(
    system: System,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    stop: Stop,
    cluster: Cluster | None = None,
) -> Iterator[Arena]:
    """Start the system's processes, on a broker of their own, and remove everything afterwards.

    On *cluster*, if one is given, with quorum queues.
    """
    with own_folder("chaos-", say) as data, contextlib.ExitStack() as stack:
        if cluster is None:
            broker = stack.enter_context(disposable_broker(environ, say))
            say(f"broker: {broker.kind.value}, RabbitMQ {broker.version}")
        else:
            broker = cluster.broker
            say(f"broker: {len(cluster.nodes)} nodes, RabbitMQ {broker.version}")
        arena = stack.enter_context(_arena(system, environ, broker, data, stop, cluster))
        arena.start_all()
        yield arena


@contextlib.contextmanager
def _arena(
    system: System,
    environ: Mapping[str, str],
    broker: Broker,
    data: Path,
    stop: Stop,
    cluster: Cluster | None,
) -> Iterator[Arena]:
    shape = as_quorum if cluster else as_it_is
    config = Config.on(broker, data, namespace=NAMESPACE, retries_ms=RETRIES_MS, shape=shape)
    (port,) = free_ports(1)
    own = {
        **environ,
        **{name: value.format(port=port) for name, value in system.environ.items()},
        "DELIVERY_DATA": str(data),
        "DELIVERY_NAMESPACE": NAMESPACE,
        "DELIVERY_AMQP_URL": broker.amqp_url,
        "DELIVERY_QUEUES": "quorum" if cluster else "classic",
    }
    own.pop("DELIVERY_KILL_AT", None)
    with contextlib.ExitStack() as stack:
        users = {process: f"chaos-{process}" for process in PROCESSES}
        password = secrets.token_hex(8)
        taps = {
            process: stack.enter_context(
                Lines(broker.amqp_url, user=user, password=password, heartbeat=HEARTBEAT)
            )
            for process, user in users.items()
            if process in system.commands and (process != API or system.publisher == API)
        }
        cast = Cast((), own, data / "logs", stop, system.program)
        arena = Arena(
            config=config,
            broker=broker,
            cast=stack.enter_context(cast.curtain()),
            commands={
                process: [word.format(port=port) for word in command]
                for process, command in system.commands.items()
            },
            taps=taps,
            users=users,
            journal=Journal(f"http://127.0.0.1:{port}", stop),
            heartbeat=HEARTBEAT,
            publisher=system.publisher,
            ours=system.ours,
            cluster=cluster,
        )
        for process in taps:
            login = {"password": password, "tags": ""}
            arena.management.put(f"/api/users/{quote(users[process])}", login)
            arena.allow(process)
        yield arena
