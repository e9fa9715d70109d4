"""A private, disposable RabbitMQ in a Docker container, started through testcontainers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delivery.docker_host import (
    IMAGE,
    ContainerGone,
    NoDocker,
    client,
    docker_errors,
    load,
)
from delivery.errors import DeliveryError
from delivery.process import free_ports

__all__ = ["Container"]

USER = PASSWORD = "delivery"  # noqa: S105  # a broker on loopback that lives for one exercise
LABEL = "delivery.sandbox"  # its value says whose: the state folder


@dataclass(frozen=True)
class Container:
    """One container with fixed ports on 127.0.0.1, so that it is found again after a restart."""

    container_id: str
    amqp_port: int
    management_port: int

    @staticmethod
    def create(owner: str) -> Container:
        """Start a new one labelled with its owner; it stays when our process ends."""
        core = load("testcontainers.core.container")
        # Testcontainers' reaper would remove the container as soon as our process ends.
        load("testcontainers.core.config").testcontainers_config.ryuk_disabled = True
        amqp, management = free_ports(2)
        wanted = core.DockerContainer(IMAGE)
        wanted.with_env("RABBITMQ_DEFAULT_USER", USER).with_env("RABBITMQ_DEFAULT_PASS", PASSWORD)
        # Directly, because `with_bind_ports` knows no address and would open it to the network.
        wanted.ports["5672/tcp"] = ("127.0.0.1", amqp)
        wanted.ports["15672/tcp"] = ("127.0.0.1", management)
        # A fixed host name: RabbitMQ keeps its data under it.
        wanted.with_kwargs(labels={LABEL: owner}, hostname="broker")
        try:
            return Container(wanted.start().get_container_id(), amqp, management)
        except docker_errors() as error:
            raise NoDocker(f"Docker could not start {IMAGE}: {error}") from error

    @staticmethod
    def remove_all(owner: str) -> int:
        """Remove what that owner has, whoever lost track of it; say how many containers.

        Their data and networks, too.
        """
        daemon, its = client(), {"label": f"{LABEL}={owner}"}
        found = daemon.containers.list(all=True, filters=its)
        for container in found:
            container.remove(force=True, v=True)
        for network in daemon.networks.list(filters=its):
            network.remove()
        return len(found)

    @property
    def amqp_url(self) -> str:
        """Where it serves AMQP."""
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.amqp_port}/%2F"

    @property
    def management_url(self) -> str | None:
        """Where it serves the management API."""
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{self.management_port}"

    def running(self) -> bool:
        """Say whether the container runs; NoDocker if the daemon can't be asked."""
        try:
            return bool(self._get().status == "running")
        except ContainerGone:
            return False

    def start(self) -> None:
        """Start it again, with the same ports and data."""
        self._get().start()

    def stop(self, timeout: float = 60.0) -> None:
        """Stop it gracefully: clients are told, queues are written, then the VM ends."""
        container = self._get()
        if container.status != "running":
            return
        # Not `docker stop`: its SIGTERM ends the VM without the broker's own shutdown.
        done = container.exec_run(["rabbitmqctl", "stop"])
        try:
            container.wait(timeout=timeout)
        except OSError as error:  # requests' timeout is one
            raise DeliveryError(f"the container did not stop: {done.output!r}") from error

    def restart_app(self) -> None:
        """Stop the broker in its Erlang VM and start it again there; the VM goes on."""
        self.ctl("stop_app")
        self.ctl("start_app")

    def ctl(self, *command: str, tool: str = "rabbitmqctl") -> None:
        """Run rabbitmqctl, or another *tool*. Raises DeliveryError with what it said."""
        done = self._get().exec_run([tool, *command])
        if done.exit_code != 0:
            said = done.output.decode(errors="replace").strip()
            raise DeliveryError(f"the container's broker can't {' '.join(command)}: {said}")

    def kill(self) -> None:
        """Crash it: SIGKILL for the Erlang VM, which has no say in it."""
        container = self._get()
        if container.status == "running":
            container.kill()
            container.wait(timeout=30)

    def remove(self) -> None:
        """Remove the container and its data; NoDocker if the daemon can't be asked."""
        try:
            container = self._get()
        except ContainerGone:
            return
        container.remove(force=True, v=True)

    def _get(self) -> Any:  # the SDK is untyped and loaded late
        try:
            return client().containers.get(self.container_id)
        except load("docker").errors.NotFound as error:
            raise ContainerGone(f"the container {self.container_id[:12]} is gone") from error
