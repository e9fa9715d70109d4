"""Find a broker to work with, or start one that is ours to break."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from delivery.address import URL, given_url
from delivery.belongings import own_folder
from delivery.broker import Broker, Kind, Machine, NotOurs, load, silent
from delivery.docker_host import NoDocker, image_present
from delivery.errors import DeliveryError
from delivery.launch import NoBroker, clear, start_first, when_ready
from delivery.node_setup import NoServer, scripts
from delivery.ready import REFUSED, NotReady, wait_ready

__all__ = [
    "NoBroker",
    "broker_down",
    "broker_status",
    "disposable_broker",
    "find_broker",
    "given_broker",
    "kinds_here",
]

MANAGEMENT_URL, FORCE = "DELIVERY_MANAGEMENT_URL", "DELIVERY_BROKER"
PATIENCE = 10.0  # seconds for a given broker to come up


def find_broker(
    environ: Mapping[str, str], state_folder: Path, say: Callable[[str], None] = silent
) -> Broker:
    """Return a ready broker: the given one, the one we started before, or a new one.

    A broker on the default port that nobody named is never used: it is somebody's.
    """
    forced = _forced(environ)
    if environ.get(URL):
        return _given(environ, say)
    with _locked(state_folder, say):
        machine = load(state_folder / "broker.json")
        if machine is not None and machine.running():
            return _again(machine, forced, say)
        if (state_folder / "broker.json").exists():
            say(f"the sandbox broker of {state_folder} is dead: replacing it")
            say(
                "its messages are gone (delivery reconcile), and what was running must be restarted"
            )
        clear(state_folder, machine)
        return start_first(forced, state_folder, say)


def given_broker(environ: Mapping[str, str]) -> Broker | None:
    """Return the broker that DELIVERY_AMQP_URL names, unasked; None if it names none."""
    if not environ.get(URL):
        return None
    return Broker(Kind.GIVEN, given_url(environ), environ.get(MANAGEMENT_URL), "unknown")


def broker_status(environ: Mapping[str, str], state_folder: Path) -> Broker | None:
    """Return the broker that `find_broker` would take without starting one, None if none.

    Its version is "unknown" when it is not ready: dead, starting, or in alarm.
    """
    given = given_broker(environ)
    if given is None:
        machine = load(state_folder / "broker.json")
        if machine is None:
            return None
        given = Broker.on(machine)
        if not machine.running():
            return given
    with contextlib.suppress(NotReady):
        version = wait_ready(given.amqp_url, silent, deadline=0)
        return Broker(given.kind, given.amqp_url, given.management_url, version, given.machine)
    return given


def broker_down(
    environ: Mapping[str, str], state_folder: Path, say: Callable[[str], None] = silent
) -> None:
    """Remove the sandbox broker with its data, and whatever an interrupted start left of one."""
    if environ.get(URL):
        raise NotOurs(f"the broker of {URL} is not ours to stop: unset it to mean the sandbox's")
    with _locked(state_folder, say):
        clear(state_folder, load(state_folder / "broker.json"))


@contextlib.contextmanager
def disposable_broker(
    environ: Mapping[str, str], say: Callable[[str], None] = silent
) -> Iterator[Broker]:
    """Give a broker of its own, never the given or the shared one, and remove it on the way out.

    Also if we are killed.
    """
    own = {name: value for name, value in environ.items() if name not in (URL, MANAGEMENT_URL)}
    with own_folder("", say) as folder:
        try:
            yield find_broker(own, folder, say)
        finally:
            broker_down(own, folder, say)


def kinds_here() -> list[Kind]:
    """Return the kinds that can be started at once: nothing to pull, nothing to install."""
    kinds = []
    with contextlib.suppress(NoDocker):
        kinds += [Kind.DOCKER] if image_present() else []
    with contextlib.suppress(NoServer):
        kinds += [Kind.NODE] if scripts() else []
    return kinds


def _forced(environ: Mapping[str, str]) -> Kind | None:
    name = environ.get(FORCE)
    if not name:
        return None
    if environ.get(URL):
        raise DeliveryError(f"{URL} and {FORCE} contradict each other: unset one of them")
    if name not in (Kind.DOCKER, Kind.NODE):
        raise DeliveryError(f"{FORCE} is {name!r}: it can be docker or node")
    return Kind(name)


def _given(environ: Mapping[str, str], say: Callable[[str], None]) -> Broker:
    url, management = given_url(environ), environ.get(MANAGEMENT_URL)
    try:
        version = wait_ready(
            url, say, management_url=management, deadline=PATIENCE, hopeless=REFUSED
        )
    except NotReady as error:
        raise NotReady(f"the broker of {URL} does not answer as it should: {error}") from error
    return Broker(Kind.GIVEN, url, management, version)


def _again(machine: Machine, forced: Kind | None, say: Callable[[str], None]) -> Broker:
    kind = Broker.on(machine).kind
    if forced not in (None, kind):
        raise DeliveryError(f"the sandbox broker is {kind}, not {forced}: take it down first")
    return when_ready(machine, say)


@contextlib.contextmanager
def _locked(state_folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's lock, which the system takes back if we die."""
    state_folder.mkdir(parents=True, exist_ok=True)
    with (state_folder / "broker.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is at work on this sandbox broker; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
