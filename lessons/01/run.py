"""Lesson 01: ask one, tell many. Run it: python lessons/01/run.py"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pika
from pydantic import ValidationError

from delivery.codec import ContractError, decode, encode
from delivery.contract import Event, MaterialPublished, PublishMaterial, material_published
from delivery.lesson import Scene, play

RECIPIENTS = ("catalog", "audit")
COMMAND = {
    "title": "Спроси одного, скажи всем",
    "slug": "ask-one-tell-many",
    "author": "Delivery",
    "expected_revision": 1,  # "refuse, unless revision 1 is the current one"
}


def tell_both(scene: Scene, body: dict[str, Any]) -> dict[str, bytes]:
    """Hand the same bytes to two recipients through the broker; return what each was given."""
    with pika.BlockingConnection(pika.URLParameters(scene.url)) as connection:
        channel, hub = connection.channel(), scene.name("everybody")
        channel.exchange_declare(hub, "fanout", durable=True)  # a copy for every bound queue
        queues = {who: scene.name(who) for who in RECIPIENTS}
        for queue in queues.values():
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, hub)
        channel.basic_publish(hub, "", json.dumps(body, ensure_ascii=False).encode())
        # [2]: the body
        return {who: channel.basic_get(q, auto_ack=True)[2] or b"" for who, q in queues.items()}


def broken(scene: Scene) -> None:
    """A command is sent to everybody, and a field is renamed by its sender."""
    knows = {"catalog": 1, "audit": 0}  # the revision that each has seen: audit is one behind
    answers = {}
    for who, body in tell_both(scene, {"do": "publish", **COMMAND}).items():  # the mistake
        agreed = json.loads(body)["expected_revision"] == knows[who]
        answers[who] = "published" if agreed else "refused"
    scene.fact("catalog's answer to the command", answers["catalog"], "published")
    scene.fact("audit's answer to the same command", answers["audit"], "refused")
    scene.fact("one answer to 'is it published?'", len(set(answers.values())) == 1, False)
    renamed = {"headline" if name == "title" else name: value for name, value in COMMAND.items()}
    for who, body in tell_both(scene, renamed).items():
        stored = json.loads(body).get("title")  # the mistake: absent becomes None, silently
        scene.fact(f"a field was renamed; the title that {who} stores", stored, None)


def decide(command: PublishMaterial, current: int) -> Event | None:
    """Be the owner of the material: accept the command (None: refuse it), and say what happened."""
    if command.expected_revision not in (None, current):
        return None
    data = MaterialPublished(
        material_id="lesson-01",
        revision=current + 1,
        title=command.title,
        slug=command.slug,
        author=command.author,
        published_at=datetime(2026, 1, 31, tzinfo=UTC),
    )
    return material_published("event-1", data)


def reading(body: bytes, event: Event) -> str:
    """Read *body* as a recipient does: *event*, another event, or a refusal with its reason."""
    try:
        return "the fact" if decode(body) == event else "another fact"  # the cure
    except ContractError as refusal:
        return f"refused, {refusal.reason}"


def fixed(scene: Scene) -> None:
    """Only the owner is asked; everybody else is told, in words that both sides hold to."""
    command = PublishMaterial.model_validate(COMMAND)
    event = decide(command, current=1)  # the cure: one owner, one answer
    assert event is not None
    scene.fact("the owner's answer, the revision it published", event.data.revision, 2)
    again = decide(command, current=event.data.revision)
    scene.fact("the same command again is refused", again is None, True)
    try:
        odd = str(PublishMaterial.model_validate({**COMMAND, "colour": "red"}))
    except ValidationError:
        odd = "refused"
    scene.fact("a command with an unknown field", odd, "refused")
    fact = json.loads(encode(event))
    renamed = {"headline" if name == "title" else name: v for name, v in fact["data"].items()}
    for how, body, expected in (
        ("the fact as it was sent", fact, "the fact"),
        ("with an unknown extra field", {**fact, "colour": "red"}, "the fact"),
        ("with title renamed to headline", {**fact, "data": renamed}, "refused, missing_field"),
        ("as version 2", {**fact, "type": "material.published.v2"}, "refused, unknown_version"),
    ):
        seen = {reading(given, event) for given in tell_both(scene, body).values()}
        scene.fact(f"{how}, both read", " or ".join(sorted(seen)), expected)


def cost(scene: Scene) -> None:
    """Time 20,000 events there and back: with the contract's checks, and as mere JSON."""
    event = decide(PublishMaterial.model_validate(COMMAND), current=1)
    assert event is not None
    fields = json.loads(encode(event))
    for how, work in (
        ("encode and decode", lambda: decode(encode(event))),
        ("mere JSON", lambda: json.loads(json.dumps(fields))),
    ):
        begun = time.monotonic()
        for _ in range(20_000):
            work()
        print(f"  {how}: {(time.monotonic() - begun) / 20_000 * 1e6:.0f} microseconds an event")


if __name__ == "__main__":
    play(broken, fixed, cost)
