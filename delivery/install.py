"""Install Debian's rabbitmq-server for our private node, without starting its service."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from delivery.node_setup import NoServer

__all__ = ["install_server", "services_held"]

POLICY = Path("/usr/sbin/policy-rc.d")
FORBIDDEN = 101  # what invoke-rc.d takes as "do not"


def install_server(say: Callable[[str], None]) -> None:
    """Install the package with apt-get; NoServer, with the reason, where that is not possible."""
    if shutil.which("apt-get") is None or not Path("/etc/debian_version").exists():
        raise NoServer("no rabbitmq-server is installed, and this is not Debian or Ubuntu")
    if os.geteuid() != 0:
        raise NoServer("no rabbitmq-server is installed: sudo apt-get install rabbitmq-server")
    say("installing the distribution's rabbitmq-server with apt-get; its service stays off")
    with services_held(POLICY):
        failure = _apt("install", "--no-install-recommends", "rabbitmq-server")
        if failure is not None:  # the package lists of a fresh machine are empty
            say("apt-get update, then once more")
            _apt("update")
            failure = _apt("install", "--no-install-recommends", "rabbitmq-server")
    if failure is not None:
        raise NoServer(f"apt-get could not install rabbitmq-server: {failure}")
    if shutil.which("systemctl") is not None:  # else it would start with the next boot
        subprocess.run(
            ["systemctl", "disable", "rabbitmq-server"], capture_output=True, check=False
        )


@contextlib.contextmanager
def services_held(policy: Path) -> Iterator[None]:
    """Keep packages from starting their services; the machine's own policy is left alone."""
    if policy.exists():
        with contextlib.suppress(PermissionError):  # not executable: it forbids nothing
            answer = subprocess.run(
                [policy, "rabbitmq-server", "start"], capture_output=True, check=False
            )
            if answer.returncode == FORBIDDEN:
                yield
                return
        raise NoServer(f"{policy} would let the installed broker start on the default port")
    policy.write_text(f"#!/bin/sh\nexit {FORBIDDEN}\n", encoding="ascii")
    try:
        policy.chmod(0o755)
        yield
    finally:
        policy.unlink(missing_ok=True)


def _apt(*arguments: str) -> str | None:
    """Run apt-get; return the end of what it complained about, None if it did not fail."""
    done = subprocess.run(
        ["apt-get", "-y", "-q", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else done.stderr.strip()[-500:]
