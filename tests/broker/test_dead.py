"""What was exhausted, or can never be handled, is kept dead, with the reason."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from pika import BasicProperties
from pika.exceptions import AMQPError
from support.events import event, message
from support.recipients import effects, store_at
from support.retrying import attempts
from support.world import World

from delivery import audit
from delivery.codec import encode
from delivery.confirms import NotConfirmed
from delivery.contract import Event
from delivery.errors import PermanentError
from delivery.handling import Effect
from delivery.publisher import envelope, properties_of
from delivery.retry import ATTEMPT_HEADER


def broken(event_: Event, tx: sqlite3.Connection) -> Effect:
    raise RuntimeError("always")


def test_what_is_exhausted_is_dead_with_its_last_error(world: World) -> None:
    """Case 6: two delays are three attempts; then dead, exhausted."""
    world.declare(50, 100, routes=[world.audit])
    of = event()
    world.publish(of)

    seen = world.consume(world.audit, broken, delays_ms=[50, 100])

    assert attempts(seen) == [1, 2, 3]
    ((headers, body),) = world.dead(world.audit)
    assert body == encode(of)
    assert headers["x-delivery-reason"] == "exhausted"
    assert headers[ATTEMPT_HEADER] == 3
    assert headers["x-delivery-error"] == "always"
    assert "RuntimeError: always" in headers["x-delivery-traceback"]
    assert headers["x-delivery-parked-at"] > 1_700_000_000


def test_a_permanent_error_is_dead_at_once(world: World) -> None:
    """Case 6, the shortcut: nothing is tried again that cannot succeed."""
    world.declare(50, routes=[world.audit])
    world.publish(event())

    def refuse(event_: Event, tx: sqlite3.Connection) -> Effect:
        raise PermanentError("not this one")

    seen = world.consume(world.audit, refuse, delays_ms=[50])

    assert attempts(seen) == [1]
    ((headers, _),) = world.dead(world.audit)
    assert (headers["x-delivery-reason"], headers[ATTEMPT_HEADER]) == ("rejected", 1)


def without(of: Event, field: str) -> bytes:
    fields = json.loads(encode(of))
    del fields[field]
    return json.dumps(fields).encode()


def test_what_can_never_be_handled_is_dead_at_the_first_attempt(world: World) -> None:
    """Case 8: seven bad messages, each kept with a reason; the good one behind them is handled."""
    world.declare(50, routes=[world.audit])
    of, wordy, good = event(), event(title="wordy"), event(title="good")
    bad: Sequence[tuple[bytes, BasicProperties | Event, str]] = [
        (b"{", of, "not_json"),
        (b"", of, "empty"),
        (b'{"title": "\xff"}', of, "not_utf8"),
        (encode(of), BasicProperties(), "no_message_id"),
        (encode(of).replace(b"material.published.v1", b"material.burnt.v1", 1), of, "unknown_type"),
        (encode(of).replace(b"published.v1", b"published.v9", 1), of, "unknown_version"),
        (without(of, "data"), of, "missing_field"),
        (encode(wordy), wordy, "é" * 1_000),
    ]
    for body, properties, _ in bad:
        world.put(world.audit, body, properties)
    world.put(world.audit, encode(good), good)

    def apply(event_: Event, tx: sqlite3.Connection) -> Effect:
        if event_.id == wordy.id:
            raise PermanentError("é" * 150_000)  # 300 KB: larger than a frame
        return audit.append(event_, tx)

    seen = world.consume(  # one call, so one connection
        world.audit, apply, delays_ms=[50], until=lambda s: good in s.events
    )

    assert attempts(seen) == [1] * len(bad)
    dead = world.dead(world.audit)
    assert [body for _, body in dead] == [body for body, _, _ in bad]
    for (headers, _), (_, _, word) in zip(dead, bad, strict=True):
        assert word in headers["x-delivery-error"]
        assert len(headers["x-delivery-error"]) < 1_100
        assert len(headers["x-delivery-traceback"]) < 4_100
    reasons = [headers["x-delivery-reason"] for headers, _ in dead]
    assert reasons == ["incompatible"] * 7 + ["rejected"]
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store, good.id) == effects(store) == 1


def test_without_its_dead_queue_a_message_stays_where_it_is(world: World) -> None:
    """Case 9: the consumer stops with an error that names the queue; the original is back."""
    world.declare(routes=[world.audit], dead=False)
    world.put(world.audit, b"{", event())

    with pytest.raises(NotConfirmed) as refused:
        world.consume(world.audit, audit.append)

    assert f"'{world.audit.queue}.dead'" in str(refused.value)
    assert "the original stays" in str(refused.value)
    assert [body for _, body in world.take(world.audit.queue)] == [b"{"]


def test_text_outside_ascii_arrives_byte_equal_through_every_copy(world: World) -> None:
    """Case 20: publish, retry and park keep title, headers and properties as they were."""
    world.declare(50, routes=[world.audit])
    of = event(title="Ünïcödé 漢字 🐇")
    note = {"note": "Zürich 🐇", "größe": "ﬁ", "raw": b"\xff\xfe"}
    properties = envelope(of.id, of.type, timestamp=1, correlation_id="anfrage-ü-🐇", headers=note)
    world.put(world.audit, encode(of), properties)

    def fail(event_: Event, tx: sqlite3.Connection) -> Effect:
        assert event_.data.title == "Ünïcödé 漢字 🐇"
        raise RuntimeError("schlägt fehl 🐇")

    seen = world.consume(world.audit, fail, delays_ms=[50], until=lambda s: len(s.failures) == 2)

    retried, _ = seen.failures[1]
    assert retried.body == encode(of)
    assert {name: (retried.properties.headers or {})[name] for name in note} == note
    ((parked, body),) = world.take(f"{world.audit.queue}.dead")
    assert body == encode(of)
    assert {name: parked.headers[name] for name in note} == note
    assert parked.correlation_id == "anfrage-ü-🐇"
    assert parked.headers["x-delivery-error"] == "schlägt fehl 🐇"
    assert (parked.message_id, parked.type, parked.timestamp) == (of.id, of.type, 1)


PLACE = 2**61 + 1


class OnTheWire(BasicProperties):
    """Properties whose header value PLACE is other bytes on the wire: pika cannot write them."""

    wire_value = b""

    def encode(self) -> Any:
        return [
            b"".join(super().encode()).replace(b"l" + struct.pack(">q", PLACE), self.wire_value)
        ]


class WithFloat(OnTheWire):
    wire_value = b"d" + struct.pack(">d", 1.5)


class NotUtf8(BasicProperties):
    def encode(self) -> Any:
        return [b"".join(super().encode()).replace(b"ABCD", b"\xff\xfe\xfd\xfc")]


class WithYear36812(OnTheWire):
    wire_value = b"T" + struct.pack(">Q", 2**40)  # seconds


class WithFarFuture(OnTheWire):
    wire_value = b"T" + struct.pack(">Q", 2**60)  # 36 billion years


def test_a_strangers_message_is_copied_to_one_place_and_kept(world: World) -> None:
    """CC, expiration, user_id, a float header and x-death: retried and parked without surprises."""
    world.declare(50)
    of = event()
    user = world.settings.parameters().credentials.username
    properties = WithFloat(
        message_id=of.id,
        expiration="60000",
        user_id=user,
        delivery_mode=1,
        headers={
            "CC": [world.catalog.queue],
            "x-death": [{"count": 9, "queue": "elsewhere", "reason": "expired"}],
            "x-first-death-queue": "elsewhere",
            "score": PLACE,
        },
    )
    world.put(world.audit, encode(of), properties)
    assert len(world.take(world.catalog.queue)) == 1  # the stranger's own CC; from here on: none

    seen = world.consume(world.audit, broken, delays_ms=[50], until=lambda s: len(s.failures) == 2)

    first, second = (delivery.properties for delivery, _ in seen.failures)
    assert float((first.headers or {})["score"]) in (1.0, 1.5)  # pika 1.3.2 reads 1.5 as 1
    assert attempts(seen) == [1, 2]
    deaths = (second.headers or {})["x-death"]
    assert [death["queue"] for death in deaths] == [f"{world.audit.queue}.retry.1"]
    assert world.ready(world.catalog.queue) == 0
    ((parked, body),) = world.take(f"{world.audit.queue}.dead")
    assert body == encode(of)
    assert (parked.expiration, parked.user_id, parked.delivery_mode) == (None, None, 2)
    assert str(parked.headers["score"]) in ("1", "1.5")
    assert not {name for name in parked.headers if "death" in name or name == "CC"}


def test_a_dead_message_does_not_expire(world: World) -> None:
    """Its sender's expiration was for the way, not for the dead queue: it would vanish there."""
    world.declare(routes=[world.audit])
    sent = BasicProperties(message_id="id", expiration="60000", delivery_mode=1)
    world.put(world.audit, b"{", sent)

    world.consume(world.audit, audit.append, until=lambda seen: bool(seen.failures))

    ((parked, _),) = world.take(f"{world.audit.queue}.dead")
    assert (parked.expiration, parked.delivery_mode) == (None, 2)


def test_a_dead_message_keeps_what_the_sender_wrote(world: World) -> None:
    """Only what park adds is new: a replay can take it off again."""
    world.declare(routes=[world.audit])
    of = event()
    sent = message(of, world.namespace)
    world.publish(of)

    world.consume(world.audit, broken)

    ((parked, body),) = world.take(f"{world.audit.queue}.dead")
    assert body == sent.body
    for name in ("message_id", "type", "timestamp", "app_id", "content_type", "content_encoding"):
        assert getattr(parked, name) == getattr(properties_of(of), name)
    assert all(name.startswith("x-delivery-") for name in parked.headers)


def test_a_message_whose_headers_fill_a_frame_can_still_be_parked(world: World) -> None:
    """What park adds must fit: the broker took 131,000 bytes of headers, and takes no more."""
    world.declare(routes=[world.audit])
    of, good = event(), event(title="good")
    full = BasicProperties(message_id=of.id, headers={"note": "x" * 129_500})
    world.put(world.audit, encode(of), full)
    world.put(world.audit, encode(good), good)

    def apply(event_: Event, tx: sqlite3.Connection) -> Effect:
        if event_.id == of.id:
            raise RuntimeError("y" * 3_000)
        return audit.append(event_, tx)

    world.consume(world.audit, apply)

    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store, good.id) == 1
    assert [body for _, body in world.dead(world.audit)] == [encode(of)]


@pytest.mark.parametrize("kind", [WithYear36812, WithFarFuture])
def test_a_header_that_pika_cannot_read_does_not_stop_the_recipient(
    world: World, kind: type[OnTheWire]
) -> None:
    """A time beyond the year 9999 is legal AMQP; every delivery of it ends the connection."""
    world.declare(routes=[world.audit])
    of, good = event(), event(title="good")
    world.put(world.audit, encode(of), kind(message_id=of.id, headers={"when": PLACE}))
    world.put(world.audit, encode(good), good)

    for _ in range(3):  # a service would reconnect
        with contextlib.suppress(AMQPError):
            world.consume(world.audit, audit.append)

    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store, good.id) == 1


def test_bytes_where_text_should_be_do_not_stop_the_recipient(world: World) -> None:
    """A message_id that is no UTF-8 is read as bytes: dead, with its bytes, like any stranger."""
    world.declare(routes=[world.audit])
    of, good = event(), event(title="good")
    world.put(world.audit, encode(of), NotUtf8(message_id="ABCD", headers={"ABCD": "ABCD"}))
    world.put(world.audit, encode(good), good)

    seen = world.consume(world.audit, audit.append, until=lambda s: good in s.events)

    assert [each.id for each in seen.events] == [good.id]
    ((headers, body),) = world.dead(world.audit)
    assert (headers["x-delivery-reason"], body) == ("incompatible", encode(of))
