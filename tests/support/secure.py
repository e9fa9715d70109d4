"""A broker that speaks TLS only, with certificates of a CA that lives as long as the test."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import trustme

from delivery import docker_host
from delivery.container import Container
from delivery.node import Node
from delivery.sandbox import disposable_broker


@dataclass(frozen=True)
class Secure:
    """Where it is, its CA's file, and who may stop it."""

    url: str  # amqps, without the CA
    ca: str
    machine: Container | Node

    @property
    def trusted(self) -> str:
        """Return the URL with the CA."""
        return f"{self.url}?cacertfile={self.ca}"


@contextlib.contextmanager
def secure_broker(folder: Path) -> Iterator[Secure]:
    """Start one whose certificate is for the host ``localhost``."""
    ca = trustme.CA()
    server = ca.issue_cert("localhost")
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    files = {
        "ca.pem": ca.cert_pem.bytes(),
        "server.pem": server.cert_chain_pems[0].bytes(),
        "server.key": server.private_key_pem.bytes(),
    }
    with disposable_broker(os.environ, print) as broker:
        machine = broker.machine
        assert machine is not None
        machine.stop()
        _give(machine, files)
        machine.start()
        url = broker.amqp_url.replace("amqp://", "amqps://").replace("127.0.0.1", "localhost")
        secure = Secure(url, str(folder / "ca.pem"), machine)
        yield secure


def _give(machine: Container | Node, files: Mapping[str, bytes]) -> None:
    """Put the certificates where the stopped broker will read them, and turn plain AMQP off."""
    if isinstance(machine, Node):
        for name, content in files.items():
            (machine.folder / name).write_bytes(content)
        settings = machine.folder / "rabbitmq.conf"
        lines = settings.read_text("ascii").splitlines()
        kept = [line for line in lines if not line.startswith("listeners.tcp")]
        own = _settings(str(machine.folder), f"127.0.0.1:{machine.ports.amqp}")
        settings.write_text("\n".join([*kept, own]), "ascii")
        return
    archive = io.BytesIO()
    own = _settings("/etc/rabbitmq/conf.d", "5672")
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in {**files, "20-tls.conf": own.encode()}.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    container = docker_host.client().containers.get(machine.container_id)
    assert container.put_archive("/etc/rabbitmq/conf.d", archive.getvalue())


def _settings(folder: str, listener: str) -> str:
    return "\n".join(
        [
            "listeners.tcp = none",
            f"listeners.ssl.1 = {listener}",
            f"ssl_options.cacertfile = {folder}/ca.pem",
            f"ssl_options.certfile = {folder}/server.pem",
            f"ssl_options.keyfile = {folder}/server.key",
            "ssl_options.verify = verify_none",
            "ssl_options.fail_if_no_peer_cert = false",
            "",
        ]
    )
