"""How this machine's rabbitmq-server is called so that nothing of its own broker is touched."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from delivery.errors import DeliveryError
from delivery.process import free_ports

__all__ = [
    "PASSWORD",
    "USER",
    "NoServer",
    "Ports",
    "environment",
    "program",
    "scripts",
    "write_configuration",
]

USER = PASSWORD = "delivery"  # noqa: S105  # a broker on loopback that lives for one exercise

# Where packages keep the server's own scripts. The wrappers on PATH are not asked: Debian's
# insists on root or the user rabbitmq, and puts a shell between us and the Erlang VM.
_PLACES = (
    "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",
    "opt/rabbitmq/sbin",
    "opt/homebrew/opt/rabbitmq/sbin",
    "usr/local/opt/rabbitmq/sbin",
)


class NoServer(DeliveryError):
    """The machine has no rabbitmq-server that we could use; the message says why."""


@dataclass(frozen=True)
class Ports:
    """The four TCP ports of a node, all on 127.0.0.1."""

    amqp: int
    management: int
    dist: int
    epmd: int

    @staticmethod
    def choose() -> Ports:
        """Take four that are free now."""
        return Ports(*free_ports(4))


def scripts(root: Path = Path("/")) -> Path:
    """Return the folder of the newest rabbitmq-server script; NoServer if there is none."""

    def version(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", path.parent.name)]

    found = [path for pattern in _PLACES for path in root.glob(pattern)]
    whole = [path for path in found if (path / "rabbitmq-server").exists()]
    if not whole:
        raise NoServer("no rabbitmq-server is installed on this machine")
    return max(whole, key=version)


def program(name: str) -> str:
    """Return the path of a program of Erlang's; NoServer if there is none."""
    path = shutil.which(name)
    if path is None:
        raise NoServer(f"{name} is not on PATH: is Erlang installed?")
    return path


def write_configuration(folder: Path, ports: Ports) -> None:
    """Write what the server reads: its settings, its plugins, and the cookie of its tools."""
    lines = [
        f"listeners.tcp.1 = 127.0.0.1:{ports.amqp}",
        f"default_user = {USER}",
        f"default_pass = {PASSWORD}",
    ]
    if list(scripts().parent.glob("plugins/rabbitmq_management-*")):
        lines.append("management.tcp.ip = 127.0.0.1")
        lines.append(f"management.tcp.port = {ports.management}")
        plugins = "[rabbitmq_management].\n"
        (folder / "enabled_plugins").write_text(plugins, encoding="ascii")
    (folder / "rabbitmq.conf").write_text("\n".join([*lines, ""]), encoding="ascii")
    cookie = folder / ".erlang.cookie"
    cookie.touch(mode=0o600)  # Erlang refuses one that others could read
    cookie.write_text(secrets.token_hex(16), encoding="ascii")


def environment(folder: Path, ports: Ports) -> dict[str, str]:
    """Return the whole environment: nothing of the machine's own broker leaks into ours."""
    home = str(folder)
    loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": home,
        "RABBITMQ_NODENAME": f"delivery-{ports.amqp}@localhost",
        "RABBITMQ_CONF_ENV_FILE": f"{home}/none",
        "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
        "RABBITMQ_CONFIG_FILES": f"{home}/none",
        "RABBITMQ_ADVANCED_CONFIG_FILE": f"{home}/none",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
        "RABBITMQ_MNESIA_BASE": f"{home}/data",
        "RABBITMQ_LOG_BASE": f"{home}/log",
        "RABBITMQ_SCHEMA_DIR": f"{home}/schema",
        "RABBITMQ_DIST_PORT": str(ports.dist),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
        "RABBITMQ_CTL_ERL_ARGS": loopback,
        "ERL_EPMD_PORT": str(ports.epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        # The script then becomes the VM instead of waiting for it: the pid we note is the
        # one to kill.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
