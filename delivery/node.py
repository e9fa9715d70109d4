"""A private, disposable RabbitMQ node of this machine's own rabbitmq-server."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from delivery.errors import DeliveryError
from delivery.node_setup import (
    PASSWORD,
    USER,
    Ports,
    environment,
    program,
    scripts,
    write_configuration,
)
from delivery.process import Process, spawn

__all__ = ["Node"]


@dataclass(frozen=True)
class Node:
    """One node: everything it has is in `folder`, everything it serves is on 127.0.0.1."""

    folder: Path
    ports: Ports

    @staticmethod
    def create(folder: Path) -> Node:
        """Give a new node its folder, ports and configuration; nothing runs yet."""
        node = Node(folder.absolute(), Ports.choose())
        node.folder.mkdir(parents=True)
        write_configuration(node.folder, node.ports)
        return node

    @property
    def amqp_url(self) -> str:
        """Where it serves AMQP."""
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.ports.amqp}/%2F"

    @property
    def management_url(self) -> str | None:
        """Where it serves the management API, None if the package came without that plugin."""
        if not (self.folder / "enabled_plugins").exists():
            return None
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{self.ports.management}"

    @property
    def log(self) -> Path:
        """What the server printed."""
        return self.folder / "server.log"

    def running(self) -> bool:
        """Say whether the Erlang VM that we started is there."""
        server = Process.recorded(self.folder / "server.pid")
        return server is not None and server.alive()

    def start(self) -> None:
        """Start it, the first time or again, with the same ports and data."""
        if self.running():
            return
        env = environment(self.folder, self.ports)
        epmd = Process.recorded(self.folder / "epmd.pid")
        if epmd is None or not epmd.alive():
            # A name service of our own: Erlang would start a shared one that nobody ever ends.
            argv = [program("epmd"), "-port", str(self.ports.epmd), "-address", "127.0.0.1"]
            spawn(argv, env, self.folder / "epmd.log", self.folder / "epmd.pid")
        argv = [str(scripts() / "rabbitmq-server")]
        spawn(argv, env, self.log, self.folder / "server.pid")

    def stop(self, timeout: float = 60.0) -> None:
        """Stop it gracefully: clients are told, queues are written, then the VM ends."""
        server = Process.recorded(self.folder / "server.pid")
        if server is None or not server.alive():
            return
        argv = [str(scripts() / "rabbitmqctl"), "stop"]
        env = environment(self.folder, self.ports)
        try:
            subprocess.run(argv, env=env, capture_output=True, timeout=timeout, check=True)
        except subprocess.SubprocessError as error:
            raise DeliveryError(f"the node cannot be stopped: {error}") from error
        if not server.wait(timeout):
            raise DeliveryError(f"the node did not stop in {timeout:g} s, see {self.log}")

    def restart_app(self) -> None:
        """Stop the broker in its Erlang VM and start it again there; the VM goes on."""
        self.ctl("stop_app")
        self.ctl("start_app")

    def ctl(self, *command: str, tool: str = "rabbitmqctl", timeout: float = 60.0) -> None:
        """Run rabbitmqctl, or another *tool* of the server's; once more if it hangs.

        So do only what may be done twice. Raises DeliveryError if it fails.
        """
        argv = [str(scripts() / tool), *command]
        env = environment(self.folder, self.ports)
        run = partial(
            subprocess.run, argv, env=env, capture_output=True, timeout=timeout, check=True
        )
        try:
            try:
                run()
            except subprocess.TimeoutExpired:  # seen once on a busy machine, for a minute
                run()
        except subprocess.SubprocessError as error:
            raise DeliveryError(f"the node can't {' '.join(command)}: {error}") from error

    def kill(self) -> None:
        """Crash it: SIGKILL for the Erlang VM, which has no say in it."""
        _end(self.folder / "server.pid")

    def remove(self) -> None:
        """End what we started, and nothing else, then delete the folder."""
        Node.clear(self.folder)

    @staticmethod
    def clear(folder: Path) -> None:
        """Remove whatever node a folder holds, even one that nobody remembers."""
        _end(folder / "server.pid")
        _end(folder / "epmd.pid")
        for unnoted in Process.with_home(folder.absolute()):
            unnoted.kill()  # whoever started it was killed before it could write its note
        shutil.rmtree(folder, ignore_errors=True)


def _end(record: Path) -> None:
    process = Process.recorded(record)
    if process is not None:
        process.kill()
