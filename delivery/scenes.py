"""The scenes of the demo: each makes one failure happen, and checks what became of it."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from pika import BasicProperties

from delivery.broker import Broker
from delivery.client import post
from delivery.connection import connect
from delivery.desk import Desk
from delivery.plan import Result
from delivery.props import (
    Stage,
    accepted,
    await_dead,
    await_receipt,
    count,
    expect,
    receipt,
    receiver,
    retrying,
    trouble,
)
from delivery.routes import RECIPIENTS
from delivery.stores import PUBLISHER

__all__ = [
    "broker_restarted",
    "curtain_up",
    "differences",
    "exhausted_then_replayed",
    "incompatible_event",
    "killed_between_commit_and_ack",
    "publish",
    "repeated_request",
    "transient_failure",
]


def curtain_up(stage: Stage) -> None:
    """Start API, relay, catalog and audit, each a process of its own."""
    api = stage.cast.start("api", ["api", "--port", "0"])
    others = [stage.cast.start("relay", ["relay"]), *(receiver(stage, r) for r in RECIPIENTS)]
    stage.url = api.await_event("api.ready").rpartition("url=")[2].strip()
    for actor in others:
        actor.await_event(f"{actor.name}.ready")
    names = ", ".join(actor.name for actor in (api, *others))
    stage.tell(f"started, each a process of its own: {names}")


def publish(stage: Stage, commands: Sequence[dict[str, Any]]) -> None:
    """Publish over HTTP, and wait until both recipients have all of it."""
    ids = [accepted(stage, command) for command in commands]
    for recipient in RECIPIENTS:
        for event_id in ids:
            await_receipt(stage, recipient, event_id)
    stage.tell(f"published {len(ids)}: each has a receipt from catalog and from audit")


def repeated_request(stage: Stage, command: dict[str, Any]) -> None:
    """Send one request twice, as a client does that lost the answer."""
    before = count(stage, PUBLISHER, "outbox")
    key = uuid.uuid4().hex
    first, second = (post(stage.url, command, key) for _ in range(2))
    expect(first[:2] == second[:2] and second[2], f"answered {first}, then {second}")
    expect(count(stage, PUBLISHER, "outbox") == before + 1, "the repetition added a row")
    stage.tell("repeated request: the stored answer came again, nothing was added")


def incompatible_event(stage: Stage) -> None:
    """Put an event of a version that nobody here understands on the exchange."""
    message_id = str(uuid.uuid4())
    kind = "material.published.v2"
    body = json.dumps({"specversion": "1.0", "id": message_id, "type": kind}).encode()
    with connect(stage.config.named("demo")) as connection:
        properties = BasicProperties(message_id=message_id, type=kind, delivery_mode=2)
        connection.channel().basic_publish(stage.config.exchange, kind, body, properties)
    for recipient in RECIPIENTS:
        await_dead(stage, recipient)
        with Desk(stage.config, recipient) as desk:
            (found,) = desk.browse()
            expect(found.reason == "incompatible" and found.attempts == 1, f"{found}")
            desk.drop([found.key], reason="shown in the demo", operator="demo")
    stage.tell(f"incompatible event ({kind}): dead at the first attempt, for each recipient")


def transient_failure(stage: Stage, command: dict[str, Any]) -> None:
    """Let the catalog's database refuse one material until a retry waits, then heal it."""
    with trouble(stage, command["material_id"]):
        event_id = accepted(stage, command)
        stage.await_that(lambda: retrying(stage), "a retry waits")
    receipt = await_receipt(stage, "catalog", event_id)
    expect(receipt.effect.value in ("applied", "stale"), str(receipt))
    expect(await_receipt(stage, "audit", event_id).duplicates == 0, "audit saw it again")
    stage.tell("transient failure: a retry healed it; audit saw the event once")


def exhausted_then_replayed(stage: Stage, command: dict[str, Any]) -> None:
    """Let every attempt fail, plan the replay, heal the catalog, and replay."""
    with trouble(stage, command["material_id"]):
        event_id = accepted(stage, command)
        await_dead(stage, "catalog")
    audit_before = await_receipt(stage, "audit", event_id)
    with Desk(stage.config, "catalog") as desk:
        (planned,) = desk.plan()
        attempts, prospect = planned.message.attempts, planned.prospect.value
        stage.tell(f"exhausted: parked after {attempts} attempts; the plan says: {prospect}")
        ((_, result),) = desk.replay([event_id], reason="the index is back", operator="demo")
        expect(result is Result.APPLIED, f"the replay ended: {result.value}")
        again = desk.absence(event_id).rpartition("; ")[2]
    expect(receipt(stage, "audit", event_id) == audit_before, "audit got something new")
    stage.tell(f"replayed: {result.value}; audit got nothing new; a second replay: {again}")


def killed_between_commit_and_ack(stage: Stage, command: dict[str, Any]) -> None:
    """Kill the catalog (SIGKILL) when the effect is committed and the broker does not know."""
    stage.cast.stop("catalog")
    doomed = receiver(stage, "catalog", DELIVERY_KILL_AT="consumer.committed")
    doomed.await_event("catalog.ready")
    event_id = accepted(stage, command)
    stage.await_that(lambda: doomed.process.poll() is not None, "the catalog is killed")
    expect(doomed.process.returncode == -signal.SIGKILL, f"exit {doomed.process.returncode}")
    receiver(stage, "catalog").await_event("catalog.ready")
    stage.await_that(
        lambda: await_receipt(stage, "catalog", event_id).duplicates == 1, "it is delivered again"
    )
    stage.tell("catalog killed between commit and ack: delivered again, recognised, one effect")


def broker_restarted(stage: Stage, broker: Broker) -> None:
    """Restart the broker under the running processes."""
    if not broker.ours:
        stage.tell("broker restart: left out, this broker is not ours to restart")
        return
    actors = [stage.cast[name] for name in ("relay", *RECIPIENTS)]
    ready = {actor.name: actor.said(f"{actor.name}.ready") for actor in actors}
    broker.restart()
    for actor in actors:
        actor.await_event(f"{actor.name}.ready", times=ready[actor.name] + 1)
        expect(actor.said("connection.lost") > 0, f"{actor.name} did not notice")
    stage.tell("broker restarted: relay, catalog and audit said so, and came back by themselves")


def differences(stage: Stage) -> list[str]:
    """Compare the recipients' data with what was accepted; return what differs."""
    wrong = []
    with closing(stage.config.stores.open(PUBLISHER)) as publisher:
        latest = dict(publisher.execute("SELECT material_id, revision FROM material"))
        events = {event for (event,) in publisher.execute("SELECT event_id FROM outbox")}
    with closing(stage.config.stores.open("catalog")) as catalog:
        if dict(catalog.execute("SELECT material_id, revision FROM catalog")) != latest:
            wrong.append("the catalog does not show each material's highest revision")
    with closing(stage.config.stores.open("audit")) as audit:
        entries = [event for (event,) in audit.execute("SELECT event_id FROM audit")]
    if sorted(entries) != sorted(events):
        wrong.append("the audit log does not hold each event exactly once")
    return wrong
