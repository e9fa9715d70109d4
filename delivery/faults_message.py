"""Faults of messages: the same one again, an older one late, and bytes that are no event."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from pika import BasicProperties

from delivery.arena import RELAY, Arena, DidNotBite
from delivery.contract import EVENT_TYPE
from delivery.dead import dead_queue
from delivery.faults import Fault, Target
from delivery.handling import Delivery, Effect
from delivery.observe import depth
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope
from delivery.routes import RECIPIENTS
from delivery.triage import key_of

__all__ = ["FAULTS"]

COPIES = 5


def _duplicate(arena: Arena, target: Target, random: Random) -> str:
    if not arena.ours:
        with _overheard(arena, COPIES) as messages:
            pass
        return f"{len(messages)} messages sent again"
    chosen = _settled(arena, random)
    before = {recipient: _duplicates(arena, recipient, chosen) for recipient in RECIPIENTS}
    if not chosen:
        raise DidNotBite("nothing was settled yet that could come again")
    _send(arena, chosen)
    for recipient in RECIPIENTS:
        counted = partial(_have_counted, arena, recipient, chosen, before[recipient])
        arena.bites(counted, f"{recipient} counts {len(chosen)} duplicates")
    return f"{len(chosen)} messages sent again; each recipient's receipts counted them"


def _settled(arena: Arena, random: Random) -> list[str]:
    """Choose events that each recipient has a receipt for."""
    known = [*arena.journal.entries]
    chosen = random.sample(known, min(20 * COPIES, len(known)))
    for recipient in RECIPIENTS:
        query = "SELECT 1 FROM receipt WHERE message_id = ?"
        chosen = [event_id for event_id in chosen if arena.read(recipient, query, event_id)]
    return chosen[:COPIES]


def _have_counted(arena: Arena, recipient: str, ids: list[str], before: int) -> bool:
    return _duplicates(arena, recipient, ids) >= before + len(ids)


def _duplicates(arena: Arena, recipient: str, ids: list[str]) -> int:
    """Return how many copies of the events came to a recipient after the first one."""
    marks = ",".join("?" * len(ids))
    query = f"SELECT coalesce(sum(duplicates), 0) FROM receipt WHERE message_id IN ({marks})"  # noqa: S608
    ((count,),) = arena.read(recipient, query, *ids)
    return int(str(count))


def _reorder(arena: Arena, target: Target, random: Random) -> str:
    if not arena.ours:
        material = f"overtaken-{arena.number()}"
        with _overheard(arena, 1, of=material):
            arena.journal.publish(material, "older")
            arena.journal.publish(material, "newer")
        return "revision 1 came again after revision 2"
    material = f"overtaken-{arena.number()}"
    # Not the process: one that is stopped with the store's lock in its hand would stop the API.
    with arena.taps[RELAY].silence():
        older = arena.journal.publish(material, "older").event_id
        newer = arena.journal.publish(material, "newer").event_id
        _send(arena, [newer])
        query = "SELECT effect FROM receipt WHERE message_id = ?"
        arena.bites(lambda: arena.read("catalog", query, newer), "catalog has the newer one", 15)
    arena.bites(
        lambda: arena.read("catalog", query, older) == [(Effect.STALE.value,)],
        "catalog finds the older one stale",
    )
    return "revision 2 came before revision 1; the catalog's receipt for 1 says stale"


def _poison(arena: Arena, target: Target, random: Random) -> str:
    queues = [dead_queue(arena.config.route(recipient)) for recipient in RECIPIENTS]
    if not arena.ours:
        queues = []
    chosen = random.sample(sorted(POISONS), 3)
    with arena.connection() as connection:

        def dead() -> int:
            return sum(found.ready for q in queues if (found := depth(connection, q)))

        before = dead()
        channel = connection.channel()
        channel.confirm_delivery()
        for name in chosen:
            body, properties = POISONS[name](str(uuid.UUID(int=random.getrandbits(128), version=4)))
            arena.strangers.add(key_of(Delivery(queue="", body=body, properties=properties)))
            channel.basic_publish(arena.config.exchange, EVENT_TYPE, body, properties)
        wanted = before + len(chosen) * len(queues)
        # They come after whatever waits already.
        arena.bites(lambda: dead() >= wanted, f"{len(chosen)} are dead for each recipient", 60)
    return f"dead for each recipient: {', '.join(chosen)}"


@contextlib.contextmanager
def _overheard(arena: Arena, count: int, of: str = "") -> Iterator[list[Message]]:
    """Listen on the exchange while the block runs, and send the first *count* messages again."""
    messages: list[Message] = []
    with arena.connection() as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, arena.config.exchange, "#")
        yield messages

        def heard() -> bool:
            _, properties, body = channel.basic_get(queue, auto_ack=True)
            if properties is not None and body is not None and of.encode() in body:
                messages.append(Message(arena.config.exchange, EVENT_TYPE, properties, body))
            return len(messages) == count

        arena.bites(heard, f"{count} messages come by")
    with ConfirmedChannel(arena.config.named("chaos")) as sending:
        sending.send_all(messages)


def _send(arena: Arena, ids: list[str]) -> None:
    """Publish accepted events once more, as they are in the outbox."""
    arena.sent_again.update(ids)
    messages = []
    for event_id in ids:
        ((kind, body, request, at),) = arena.read(
            "publisher",
            "SELECT event_type, body, correlation_id, accepted_at FROM outbox WHERE event_id = ?",
            event_id,
        )
        assert isinstance(body, bytes)
        properties = envelope(
            event_id, str(kind), timestamp=int(float(str(at))), correlation_id=str(request)
        )
        messages.append(Message(arena.config.exchange, str(kind), properties, body))
    with ConfirmedChannel(arena.config.named("chaos")) as channel:
        channel.send_all(messages)


def _event(message_id: str, **changes: object) -> tuple[bytes, BasicProperties]:
    event = {"specversion": "1.0", "id": message_id, "type": EVENT_TYPE, **changes}
    return json.dumps(event).encode(), _properties(message_id)


def _properties(message_id: str | None) -> BasicProperties:
    return BasicProperties(message_id=message_id, type=EVENT_TYPE, delivery_mode=2)


POISONS: dict[str, Callable[[str], tuple[bytes, BasicProperties]]] = {
    "nothing at all": lambda id: (b"", _properties(id)),
    "no text": lambda id: (b"\xff\xfe\x00\x01", _properties(id)),
    "half of JSON": lambda id: (b'{"specversion": "1.0", "id": "', _properties(id)),
    "deep JSON": lambda id: (b"[" * 50_000, _properties(id)),
    "100 kB of spaces": lambda id: (b" " * 100_000, _properties(id)),
    "a later version": lambda id: _event(id, type="material.published.v9"),
    "missing fields": _event,
    "a number as id": lambda id: _event(id, id=7),
    "not a number": lambda id: _event(id, data={"revision": float("nan")}),
    "no message_id": lambda id: (_event(id)[0], _properties(None)),
    "another message_id": lambda id: (_event(id)[0], _properties(f"not-{id}")),
}

FAULTS = (
    Fault(
        "duplicate",
        "messages that were delivered already are sent again, as they were",
        "recognised and counted by their receipts; no second effect",
        _duplicate,
        (RECIPIENTS,),
    ),
    Fault(
        "reorder",
        "revision 2 of a material arrives before revision 1",
        "revision 1 is stale: the catalog shows revision 2; audit has both",
        _reorder,
        ((RELAY, "catalog"),),
    ),
    Fault(
        "poison",
        "messages that are no event of the contract",
        "dead with a reason at the first attempt, for each recipient; the others go on",
        _poison,
        (RECIPIENTS,),
    ),
)
