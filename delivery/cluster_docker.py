"""Three containers that form one RabbitMQ cluster over a network of their own."""

from __future__ import annotations

import io
import secrets
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delivery.broker import Broker
from delivery.container import LABEL, PASSWORD, USER, Container
from delivery.docker_host import IMAGE, NoDocker, client, docker_errors, prepare
from delivery.errors import DeliveryError
from delivery.process import free_ports

__all__ = ["HOSTS", "cut_off", "docker_nodes", "reconnect", "remove_docker"]

HOSTS = ("one", "two", "three")
# Peers are found by the list; a tick of 10 s notices a silent peer sooner than the usual 60.
CONFIGURATION = "".join(
    [
        "cluster_formation.peer_discovery_backend = classic_config\n",
        *(
            f"cluster_formation.classic_config.nodes.{n} = rabbit@{h}\n"
            for n, h in enumerate(HOSTS, 1)
        ),
        "net_ticktime = 10\n",
    ]
)


def docker_nodes(folder: Path, say: Callable[[str], None]) -> list[Container]:
    """Start three containers that belong to *folder*; NoDocker if Docker can't.

    Clients come through Docker's usual network, at fixed ports of 127.0.0.1. The nodes know each
    other by names that exist on a second network only: who is taken off that one is cut off from
    the other nodes, and not from its clients.
    """
    prepare(say)
    try:
        network = client().networks.create(_network(folder), labels={LABEL: str(folder)})
        cookie = secrets.token_hex(16)
        return [_start(folder, network, host, cookie) for host in HOSTS]
    except docker_errors() as error:
        raise NoDocker(f"Docker could not start a cluster of {IMAGE}: {error}") from error


def _start(folder: Path, network: Any, host: str, cookie: str) -> Container:
    amqp, management = free_ports(2)
    container = client().containers.create(
        IMAGE,
        hostname=host,  # RabbitMQ keeps its data under it, and its peers know it by it
        environment={
            "RABBITMQ_DEFAULT_USER": USER,
            "RABBITMQ_DEFAULT_PASS": PASSWORD,
            "RABBITMQ_ERLANG_COOKIE": cookie,
        },
        ports={"5672/tcp": ("127.0.0.1", amqp), "15672/tcp": ("127.0.0.1", management)},
        labels={LABEL: str(folder)},
    )
    network.connect(container, aliases=[host])
    container.put_archive("/etc/rabbitmq/conf.d", _archive("20-cluster.conf", CONFIGURATION))
    container.start()
    return Container(container.id, amqp, management)


def _archive(name: str, text: str) -> bytes:
    content = text.encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(content), 0o644
        archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def remove_docker(folder: Path) -> None:
    """Remove what belongs to *folder*, whoever lost track of it; NoDocker without a daemon."""
    Container.remove_all(str(folder))


def cut_off(node: Broker, folder: Path) -> None:
    """Take the node off the network of the nodes."""
    container = _id(node)
    client().networks.get(_network(folder)).disconnect(container)


def reconnect(node: Broker, folder: Path, number: int) -> None:
    """Put it back there, under its name."""
    container = _id(node)
    client().networks.get(_network(folder)).connect(container, aliases=[HOSTS[number]])


def _id(node: Broker) -> str:
    if not isinstance(node.machine, Container):
        raise DeliveryError(
            "only Docker can cut a node off: three processes share their machine's loopback"
        )
    return node.machine.container_id


def _network(folder: Path) -> str:
    return folder.name
