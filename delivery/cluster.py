"""Three RabbitMQ nodes that are one cluster, and ours to break."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from delivery.belongings import own_folder
from delivery.broker import Broker, Kind, silent
from delivery.cluster_docker import cut_off, docker_nodes, reconnect, remove_docker
from delivery.cluster_local import local_nodes, remove_local
from delivery.docker_host import NoDocker
from delivery.errors import DeliveryError
from delivery.launch import NoBroker, when_ready
from delivery.management import Management
from delivery.node_setup import NoServer

__all__ = ["Cluster", "three_nodes"]

PATIENCE = 90.0  # seconds


@dataclass(frozen=True)
class Cluster:
    """The nodes; each may be killed, stopped and started again at its own address."""

    nodes: tuple[Broker, ...]
    folder: Path

    @property
    def amqp_url(self) -> str:
        """All addresses, as DELIVERY_AMQP_URL takes them."""
        return ",".join(node.amqp_url for node in self.nodes)

    @property
    def broker(self) -> Broker:
        """The cluster as one broker, which no client may break."""
        first = self.nodes[0]
        return Broker(Kind.GIVEN, self.amqp_url, first.management_url, first.version)

    def await_formed(self, seconds: float = PATIENCE) -> None:
        """Return when every node could be lost: all are up, and each queue's majority is elsewhere.

        Raises DeliveryError after *seconds*.
        """
        end = time.monotonic() + seconds
        while trouble := next(filter(None, map(_trouble, self.nodes)), ""):
            if time.monotonic() > end:
                raise DeliveryError(f"the cluster is not whole in {seconds:g} s: {trouble}")
            time.sleep(0.2)

    def partition(self, node: Broker) -> None:
        """Cut *node* off from the other two, and not from its clients. Docker only."""
        cut_off(node, self.folder)

    def heal(self, node: Broker) -> None:
        """Undo `partition`."""
        reconnect(node, self.folder, self.nodes.index(node))


def _trouble(node: Broker) -> str:
    if node.management_url is None:
        raise DeliveryError("the cluster is judged by the management plugin, which is missing here")
    api = Management(node.management_url, node.amqp_url)
    try:
        running = [each["name"] for each in api.get("/api/nodes")[0] if each.get("running")]
        if len(running) < 3:
            return f"of three nodes {len(running)} run"
        api.get("/api/health/checks/node-is-quorum-critical")
    except OSError as error:  # 503 is one: without this node some queue would have no majority
        return f"{node.address}: {error}"
    return ""


@contextlib.contextmanager
def three_nodes(
    environ: Mapping[str, str], say: Callable[[str], None] = silent
) -> Iterator[Cluster]:
    """Give a cluster of its own, and remove it on the way out, after Ctrl-C, too.

    In Docker where that works, else as three processes of this machine's rabbitmq-server;
    DELIVERY_BROKER chooses. Raises NoBroker if neither is possible.
    """
    with own_folder("cluster-", say) as folder:
        try:
            yield _start(environ.get("DELIVERY_BROKER", ""), folder, say)
        finally:
            say("removing the cluster")
            remove_local(folder)
            with contextlib.suppress(NoDocker):
                remove_docker(folder)


def _start(forced: str, folder: Path, say: Callable[[str], None]) -> Cluster:
    reasons = []
    for kind, create in ((Kind.DOCKER, docker_nodes), (Kind.NODE, local_nodes)):
        if forced not in ("", kind):
            continue
        try:
            say(f"starting three nodes ({kind})")
            machines = create(folder, say)
        except (NoDocker, NoServer) as reason:
            say(f"no cluster by {kind}: {reason}")
            reasons.append(f"not {kind}: {reason}")
            continue
        cluster = Cluster(tuple(when_ready(machine, say) for machine in machines), folder)
        cluster.await_formed()
        say("the three nodes are one cluster")
        return cluster
    raise NoBroker("\n".join(["no cluster can be started here", *reasons]))
