"""Three nodes of this machine's rabbitmq-server that form one cluster on its loopback."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from delivery.install import install_server
from delivery.node import Node
from delivery.node_setup import NoServer, Ports, environment, scripts, write_configuration

__all__ = ["local_nodes", "remove_local"]


def local_nodes(folder: Path, say: Callable[[str], None]) -> list[Node]:
    """Start three nodes in *folder*: own ports and data, one cookie, one name service.

    NoServer if there is no rabbitmq-server and none can be installed.
    """
    try:
        scripts()
    except NoServer:
        install_server(say)
    ports = [Ports.choose() for _ in range(3)]
    nodes = [
        Node(folder / f"node-{number}", replace(each, epmd=ports[0].epmd))
        for number, each in enumerate(ports, start=1)
    ]
    cookie = secrets.token_hex(16)
    for node in nodes:
        node.folder.mkdir()
        write_configuration(node.folder, node.ports)
        (node.folder / ".erlang.cookie").write_text(cookie, encoding="ascii")
        with (node.folder / "rabbitmq.conf").open("a", encoding="ascii") as file:
            file.write(_formation(nodes))
    for node in nodes:
        node.start()
        if node is nodes[0]:  # whose epmd serves all three: the others must not start their own
            for other in nodes[1:]:
                shutil.copy(node.folder / "epmd.pid", other.folder)
    return nodes


def _formation(nodes: list[Node]) -> str:
    names = [environment(node.folder, node.ports)["RABBITMQ_NODENAME"] for node in nodes]
    lines = ["cluster_formation.peer_discovery_backend = classic_config"]
    lines += [
        f"cluster_formation.classic_config.nodes.{n} = {each}" for n, each in enumerate(names, 1)
    ]
    return "\n".join([*lines, "net_ticktime = 10", ""])


def remove_local(folder: Path) -> None:
    """End what runs in *folder*, also what nobody remembers, and delete the nodes' folders."""
    for each in folder.glob("node-*"):
        Node.clear(each)
