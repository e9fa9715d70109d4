"""Say what this machine has, and one fix for each thing it lacks."""

from __future__ import annotations

import email.utils
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError, ChannelClosedByBroker

from delivery import checks
from delivery.address import URL, given_url
from delivery.belongings import left
from delivery.broker import Machine, load
from delivery.checks import Check, Verdict
from delivery.docker_host import IMAGE, NoDocker, client, image_present
from delivery.errors import DeliveryError
from delivery.management import Management
from delivery.node_setup import NoServer, scripts
from delivery.ready import probe

__all__ = ["Check", "Verdict", "diagnose"]


def diagnose(environ: Mapping[str, str], state_folder: Path) -> list[Check]:
    """Look at everything; nothing is started, pulled, installed or left behind."""
    docker, server, given = _docker(), _server(), _given(environ)
    return [
        checks.python(sys.version_info[:3]),
        checks.pika(pika.__version__),
        docker,
        _image(docker),
        server,
        given,
        _any_way(environ, docker, server, given),
        checks.port(5672, "DELIVERY_AMQP_PORT"),
        checks.port(15672, "DELIVERY_MANAGEMENT_PORT"),
        _clock(environ, state_folder),
        checks.folder(state_folder),
        _left(),
    ]


def _docker() -> Check:
    try:
        version = client().version()["Version"]
    except NoDocker as reason:
        return Check("Docker", Verdict.WARN, str(reason), reason.fix)
    return Check("Docker", Verdict.OK, f"a daemon answers, version {version}")


def _image(docker: Check) -> Check:
    name, fix = "broker image", f"docker pull {IMAGE}"
    if docker.verdict is not Verdict.OK:
        return Check(name, Verdict.WARN, "no daemon to ask", docker.fix)
    if image_present():
        return Check(name, Verdict.OK, IMAGE)
    return Check(name, Verdict.WARN, f"{IMAGE} is not here; it will be pulled when needed", fix)


def _server() -> Check:
    try:
        return Check("rabbitmq-server", Verdict.OK, str(scripts()))
    except NoServer as reason:
        fix = "sudo apt-get install rabbitmq-server"
        return Check("rabbitmq-server", Verdict.WARN, str(reason), fix)


def _given(environ: Mapping[str, str]) -> Check:
    if not environ.get(URL):
        return Check(URL, Verdict.OK, "not set: the sandbox broker is used")
    try:
        url = given_url(environ)
        version = probe(url)
    except ChannelClosedByBroker as refusal:
        if refusal.reply_code != 403:
            return Check(URL, Verdict.FAIL, repr(refusal), "see the broker's log")
        return Check(URL, Verdict.OK, f"a broker answers; this user may not all: {refusal}")
    except (AMQPError, AMQPConnectorException, OSError, DeliveryError) as error:
        return Check(URL, Verdict.FAIL, repr(error), "correct it, or unset it for the sandbox")
    return checks.login(url, f"RabbitMQ {version}; this user may declare, publish, consume")


def _any_way(environ: Mapping[str, str], docker: Check, server: Check, given: Check) -> Check:
    if environ.get("DELIVERY_AMQP_URL"):
        return replace(given, name="a broker")  # it comes first, working or not
    ways = [way.name for way in (docker, server) if way.verdict is Verdict.OK]
    if ways:
        return Check("a broker", Verdict.OK, f"can be started by: {', '.join(ways)}")
    fix = "start Docker, install rabbitmq-server, or set DELIVERY_AMQP_URL"
    return Check("a broker", Verdict.FAIL, "nothing here can start one", fix)


def _left() -> Check:
    if not (found := left()):
        return Check("left behind", Verdict.OK, "nothing of a demo or chaos run that was killed")
    shown = ", ".join(map(str, found))
    return Check("left behind", Verdict.WARN, shown, "the next delivery demo removes it")


def _runs(machine: Machine) -> bool:
    try:
        return machine.running()
    except NoDocker:  # it was started by Docker, which is away now
        return False


def _clock(environ: Mapping[str, str], state_folder: Path) -> Check:
    """Compare our clock with the broker's; both stamp what the lessons show side by side."""
    name, url = "clock", environ.get("DELIVERY_MANAGEMENT_URL")
    machine = load(state_folder / "broker.json")
    if not url and not environ.get("DELIVERY_AMQP_URL") and machine and _runs(machine):
        url = machine.management_url
    if not url:
        return Check(name, Verdict.OK, "not compared: no management API at hand")
    try:
        amqp_url = given_url(environ) or (machine.amqp_url if machine else "")
        _, headers = Management(url, amqp_url).get("/api/overview")
        there = email.utils.parsedate_to_datetime(headers["Date"]).timestamp()
    except (DeliveryError, OSError, TypeError, ValueError) as error:
        return Check(name, Verdict.WARN, f"not compared: {error!r}", "check the management URL")
    apart = abs(time.time() - there)
    if apart > 3:  # the header has whole seconds
        return Check(name, Verdict.WARN, f"{apart:.0f} s from the broker's", "synchronise both")
    return Check(name, Verdict.OK, "within 3 s of the broker's")
