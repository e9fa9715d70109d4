"""What can be said about this machine without any broker: one value for each thing."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from delivery.address import URL
from delivery.addresses import addresses

__all__ = ["Check", "Verdict", "folder", "login", "pika", "port", "python"]


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"  # something will not work, or not as the texts say
    FAIL = "fail"  # nothing will work


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what was seen, and, if it is not fine, one thing to do."""

    name: str
    verdict: Verdict
    seen: str
    fix: str = ""


def python(version: tuple[int, ...]) -> Check:
    """Compare the interpreter with what the package needs."""
    seen = ".".join(map(str, version))
    if version >= (3, 11):
        return Check("Python", Verdict.OK, seen)
    return Check("Python", Verdict.FAIL, seen, "install Python 3.13 and make a new environment")


def pika(version: str) -> Check:
    """Compare pika with what the lessons were made with."""
    if version == "1.3.2":
        return Check("pika", Verdict.OK, version)
    seen = f"{version}; the lessons' output was made with 1.3.2"
    return Check("pika", Verdict.WARN, seen, "pip install pika==1.3.2")


def port(number: int, variable: str) -> Check:
    """See whether a default port is taken; `variable` moves the one of docker compose."""
    name = f"port {number}"
    with socket.socket() as knock:
        knock.settimeout(1)
        if knock.connect_ex(("127.0.0.1", number)) != 0:
            return Check(name, Verdict.OK, "free")
    seen = "taken: somebody's broker, which is never used unasked"
    return Check(name, Verdict.WARN, seen, f"set {variable} to another port for docker compose")


def login(url: str, seen: str) -> Check:
    """Warn of the login that everybody knows, where others than this machine can use it."""
    for parts in map(urlsplit, addresses(url)):
        known = (parts.username or "guest", parts.password or "guest") == ("guest", "guest")
        if not known or _is_loopback(parts.hostname or "localhost"):
            continue
        fix = "a user for each service: delivery access plan; then delete guest"
        return Check(URL, Verdict.WARN, f"{seen}, as guest with the known password", fix)
    return Check(URL, Verdict.OK, seen)


def folder(state_folder: Path) -> Check:
    """See that files can be made and locked where the sandbox's state will be."""
    name, whole = "state folder", state_folder.absolute()
    existing = next(path for path in (whole, *whole.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # some network file systems cannot
    except OSError as error:
        fix = "work in a folder of your own, on a local disk"
        return Check(name, Verdict.FAIL, repr(error), fix)
    return Check(name, Verdict.OK, f"{state_folder} can be written and locked")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
