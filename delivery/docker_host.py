"""Docker as it is on this machine: its libraries, its daemon, and our image."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from delivery.errors import DeliveryError

__all__ = [
    "IMAGE",
    "ContainerGone",
    "NoDocker",
    "NoLibrary",
    "client",
    "docker_errors",
    "image_present",
    "load",
    "prepare",
]

IMAGE = "rabbitmq:4.3.6-management"


class NoDocker(DeliveryError):
    """Docker cannot give us a broker here; the message says why, *fix* what to do about it."""

    fix = "start Docker"


class ContainerGone(NoDocker):
    """The daemon answers, and has no such container."""


class NoLibrary(NoDocker):
    """Docker may be there, but not the library through which it is used."""

    fix = "pip install 'delivery[sandbox]'"


def load(module: str) -> ModuleType:
    """Import late: the package runs without Docker's libraries."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NoLibrary(f"Docker is used through testcontainers: {NoLibrary.fix}") from error


def docker_errors() -> tuple[type[Exception], ...]:
    """Return what the SDK raises, once it is known that there is an SDK."""
    return (load("docker").errors.DockerException, OSError)  # requests' errors are OSErrors


def client() -> Any:  # the SDK is untyped and loaded late
    """Return the SDK's client of a daemon that answers; NoDocker if none does."""
    core = load("testcontainers.core.docker_client")
    try:
        daemon = core.DockerClient().client
        daemon.ping()
    except docker_errors() as error:
        raise NoDocker(f"no Docker daemon answers: {_cause(error)}") from error
    return daemon


def _cause(error: BaseException | None) -> str:
    """Return the last reason in a chain of wrappers: no such file, permission denied."""
    why = str(error)
    while error is not None:
        why = getattr(error, "strerror", None) or why
        error = error.__cause__ or error.__context__
    return why


def prepare(say: Callable[[str], None]) -> None:
    """See that the daemon answers and the image is there, pulled if need be; else NoDocker."""
    daemon = client()
    try:
        if not image_present():
            say(f"pulling {IMAGE}, about 100 MB, once")
            daemon.images.pull(IMAGE)
    except docker_errors() as error:
        raise NoDocker(f"the image {IMAGE} is not here and cannot be pulled: {error}") from error


def image_present() -> bool:
    """Say whether the daemon has the image already; NoDocker if there is no daemon."""
    daemon = client()
    try:
        daemon.images.get(IMAGE)
    except load("docker").errors.ImageNotFound:
        return False
    return True
