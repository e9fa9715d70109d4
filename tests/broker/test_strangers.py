"""Messages of strangers: whatever a sender writes into headers, the recipient lives."""

from __future__ import annotations

import struct

import pytest
from pika import BasicProperties
from support.events import event
from support.world import World

from delivery import audit


def raw_table(entry: bytes) -> bytes:
    return struct.pack(">I", len(entry)) + entry


def nested(depth: int) -> bytes:
    """A table in a table in a table ..., as the bytes that a sender writes."""
    table = raw_table(b"")
    for _ in range(depth):
        table = raw_table(b"\x01xF" + table)
    return table


HEADERS = {
    "a double that pika reads as a huge whole number": raw_table(
        b"\x01xd" + struct.pack(">d", 1e20)
    ),
    "a float": raw_table(b"\x01xf" + struct.pack(">f", 3e30)),
    "a void": raw_table(b"\x01xV"),
    "a name that is not UTF-8": raw_table(b"\x02\xff\xfeS" + raw_table(b"y" * 127_000)),
    "a time beyond the year 9999": raw_table(b"\x01xT" + struct.pack(">Q", 2**60)),
    "twenty tables deep": nested(20),
    "a thousand tables deep": nested(1000),
}


@pytest.mark.parametrize("table", HEADERS.values(), ids=HEADERS)
def test_a_message_with_odd_headers_ends_dead_and_the_next_is_handled(
    world: World, table: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be read, copied and parked; what can't be carried along is named or noted."""
    world.declare(routes=[world.audit])
    # pika can't write these headers: the bytes go out as they are.
    monkeypatch.setattr("pika.data.encode_table", write_raw(table))
    odd = BasicProperties(message_id="odd", headers={"x": 1}, delivery_mode=2)
    world.channel.basic_publish("", world.audit.queue, b"{", odd)
    monkeypatch.undo()
    good = event()
    world.publish(good)

    seen = world.consume(world.audit, audit.append)

    assert seen.events == [good]
    ((headers, body),) = world.dead(world.audit)
    assert (headers["x-delivery-reason"], body) == ("incompatible", b"{")


def write_raw(table: bytes):
    def encode_table(pieces: list[bytes], _fields: object) -> int:
        pieces.append(table)
        return len(table)

    return encode_table
