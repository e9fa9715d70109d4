"""Messages of strangers, drawn by hypothesis: bodies, properties, headers of every AMQP type."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pika.data
from hypothesis import strategies as st

from delivery.codec import encode
from support.events import event

__all__ = ["UGLY", "Strange", "Table", "as_read", "raw_tables", "strange_messages", "table"]


@dataclass(frozen=True)
class Table:
    """A table of headers as the bytes that go over the wire: pika can't write all that it reads."""

    raw: bytes

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class Strange:
    """One message as a stranger could send it."""

    body: bytes
    properties: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.body + repr(self.properties).encode()).hexdigest()

    def __repr__(self) -> str:
        body = repr(self.body[:300]) + (
            f" ({len(self.body)} bytes)" if len(self.body) > 300 else ""
        )
        return f"Strange({body}, {repr(self.properties)[:2000]})"


@contextmanager
def raw_tables() -> Iterator[None]:
    """Let pika write a Table as it is, and everything else as usual."""
    usual = pika.data.encode_table

    def encode_table(pieces: list[bytes], fields: Any) -> int:
        if not isinstance(fields, Table):
            return int(usual(pieces, fields))
        pieces.append(fields.raw)
        return len(fields.raw)

    pika.data.encode_table = encode_table
    try:
        yield
    finally:
        pika.data.encode_table = usual


# -- headers

# The types that RabbitMQ reads, and their lengths. After a U, or a float that is no number, it ends
# the sender's connection (541).
FIXED = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "l": 8, "L": 8, "D": 5, "T": 8}
ODD_NUMBERS = [
    *(b"d" + struct.pack(">d", x) for x in (1.5, -0.0, 1e308, -1e308, 5e-324)),
    *(b"f" + struct.pack(">f", x) for x in (1.5, -3e38, 1e-45)),
    *(b"l" + struct.pack(">q", x) for x in (-1, -(2**63), 2**63 - 1)),
    *(b"T" + struct.pack(">Q", x) for x in (0, 253402300800, 2**63, 2**64 - 1)),
    *(b"D" + struct.pack(">Bi", *x) for x in ((255, -(2**31)), (0, 2**31 - 1), (255, 1))),
    b"V",
]
OUR_NAMES = [
    *("x-delivery-attempt", "x-delivery-reason", "x-delivery-error", "x-delivery-traceback"),
    *("x-delivery-parked-at", "x-delivery-left-out", "x-delivery-replays", "x-delivery-unreadable"),
]
BROKER_NAMES = ["x-death", "x-first-death-queue", "x-last-death-reason", "x-match", "x-delay"]


def table(entries: list[tuple[bytes, bytes]]) -> bytes:
    """Return the bytes of a table; a value begins with its type."""
    raw = b"".join(bytes([len(name)]) + name + value for name, value in entries)
    return struct.pack(">I", len(raw)) + raw


def _long(kind: bytes, raw: bytes) -> bytes:
    return kind + struct.pack(">I", len(raw)) + raw


NAMES = st.one_of(
    st.sampled_from([name.encode() for name in OUR_NAMES + BROKER_NAMES]),
    st.binary(max_size=8),
    st.sampled_from([b"", b"n" * 255, b"\xff" * 255, "\u044f".encode() * 127, b"a-b", b"a_b"]),
)
TEXTS = st.one_of(
    st.binary(max_size=20),
    st.text(max_size=10).map(str.encode),
    st.sampled_from([b"y" * 20_000, b"\xff" * 5_000, b"\xed\xa0\x80", b"1"]),
)
LEAVES = st.one_of(
    st.sampled_from(ODD_NUMBERS),
    st.sampled_from([*FIXED.items()]).flatmap(
        lambda kind: st.binary(min_size=kind[1], max_size=kind[1]).map(
            lambda raw: kind[0].encode() + raw
        )
    ),
    TEXTS.map(lambda raw: _long(b"S", raw)),
    TEXTS.map(lambda raw: _long(b"x", raw)),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: _long(b"A", b"".join(each))),
        st.lists(st.tuples(NAMES, inner), max_size=3).map(lambda each: b"F" + table(each)),
    ),
    max_leaves=5,
)


def _nested(depth: int, kind: bytes) -> bytes:
    value = b"V"
    for _ in range(depth):
        value = b"F" + table([(b"x", value)]) if kind == b"F" else _long(b"A", value)
    return table([(b"deep", value)])


def _many(count: int, value: bytes) -> bytes:
    """A table that fills its frame with short entries."""
    return table([(b"%x" % n, value) for n in range(count)])


TABLES = st.one_of(
    st.lists(st.tuples(NAMES, VALUES), max_size=4).map(table),
    st.lists(st.tuples(NAMES, VALUES), max_size=4).map(table),
    st.builds(_nested, st.sampled_from([1, 15, 16, 17, 18, 100]), st.sampled_from([b"F", b"A"])),
    st.builds(
        _many,
        st.sampled_from([30, 300]),
        st.sampled_from([b"t\x01", b"b\xff", b"V", b"S\x00\x00\x00\x00", b"l" + b"\xff" * 8]),
    ),
)

# -- properties

SHORT = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b"\xff" * 255, b"utf-8", b"application/cloudevents+json", b"\x00"]),
)
OTHERS = st.fixed_dictionaries(
    {},
    optional={
        "content_type": SHORT,
        "content_encoding": SHORT,
        "correlation_id": SHORT,
        "reply_to": SHORT,
        "type": SHORT,
        "app_id": SHORT,
        "cluster_id": SHORT,
        "delivery_mode": st.sampled_from([1, 2]),  # RabbitMQ 3.10 refuses any other (406)
        "priority": st.integers(0, 255),
        "timestamp": st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 2**63, 2**64 - 1])),
        # The broker itself refuses an expiration that is no count of milliseconds.
        "expiration": st.sampled_from(["3600000", "4294967295"]),
    },
)
HEADERS = st.one_of(st.none(), TABLES.map(Table), TABLES.map(Table))

# -- bodies

JSON_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["", "\ud83d", "a\0b", "x" * 301, "1.0", 10**400, 2**53, -1, 0, 1.0, "9999-12-31T23:59:59Z"]
    ),
)
JSON = st.recursive(
    JSON_LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
PATHS = [
    *((name,) for name in ("specversion", "id", "type", "source", "subject", "time")),
    *((name,) for name in ("datacontenttype", "dataschema", "data", "extra", "\ud83d")),
    *(("data", name) for name in ("material_id", "revision", "title", "slug", "author")),
    *(("data", name) for name in ("published_at", "extra")),
]
EDITS = st.lists(
    st.tuples(st.sampled_from(PATHS), st.one_of(st.just(...), JSON, JSON)), min_size=1, max_size=2
)
# Few ids, materials and revisions: the same message again, an older one, and a conflict do happen.
EVENTS = st.builds(
    event,
    st.sampled_from(["m-1", "m-2", "m-3", "m-4", "m-5"]),
    st.integers(1, 5),
    title=st.sampled_from(["Title", "Title", "Title", "Other"]),
    event_id=st.one_of(st.sampled_from(["e-1", "e-2"]), st.uuids().map(str), st.uuids().map(str)),
)


def _fields(edits: list[tuple[tuple[str, ...], Any]], of: dict[str, Any]) -> dict[str, Any]:
    for path, value in edits:
        target = of
        for name in path[:-1]:
            target = target.get(name) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            continue
        if value is ...:
            target.pop(path[-1], None)
        else:
            target[path[-1]] = value
    return of


def _bytes_of(value: Any) -> bytes:
    """Return JSON as sloppy senders write it, with NaN and halves of surrogate pairs."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _twice(body: bytes, name: str, value: Any) -> bytes:
    return b"{" + _bytes_of(name) + b":" + _bytes_of(value) + b"," + body[1:]


def _deep(depth: int, opening: str, whole: bool, of: bytes) -> bytes:
    closing = {"[": "]", '{"a":': "}"}[opening]
    value = (opening * depth + "1" + closing * depth if whole else opening * depth).encode()
    return of[:-1] + b',"extra":' + value + b"}"


VALID_BYTES = encode(event(event_id="e-1"))
VALID = EVENTS.map(encode)
BODIES = st.one_of(
    VALID,
    st.binary(max_size=40),
    JSON.map(_bytes_of),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.builds(lambda e, of: _bytes_of(_fields(e, json.loads(of))), EDITS, VALID),
    st.builds(lambda e, of: json.dumps(_fields(e, json.loads(of))).encode(), EDITS, VALID),
    st.builds(_twice, VALID, st.sampled_from(["id", "type", "data", "extra"]), JSON_LEAVES),
    st.builds(
        _deep,
        st.sampled_from([10, 500, 3_000, 60_000]),
        st.sampled_from(["[", '{"a":']),
        st.booleans(),
        VALID,
    ),
    st.builds(
        lambda of, codec: of.decode().encode(codec),
        VALID,
        st.sampled_from(["utf-16", "utf-8-sig", "utf-32", "utf-7"]),
    ),
    st.builds(lambda raw, times: raw * times, st.binary(min_size=1, max_size=4), st.just(5_000)),
)


def _claimed(body: bytes) -> str | None:
    """Return the id that the body claims, if an AMQP short string can hold it."""
    try:
        found = json.loads(body)["id"]
        return found if isinstance(found, str) and len(found.encode()) < 256 else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


@st.composite
def strange_messages(draw: st.DrawFn, bodies: int = 4) -> list[Strange]:
    """Draw some bodies, and each with a few bytes changed, in one of two envelopes.

    Most carry the id that their body claims, so that they get that far. (Drawing is what costs.)
    """
    envelopes = [draw(OTHERS) | {"headers": draw(HEADERS)} for _ in range(2)]
    drawn = draw(st.lists(BODIES, min_size=bodies, max_size=bodies))
    chance = Random(draw(st.integers(0, 2**32)))
    found = []
    for n, body in enumerate(drawn + [mutated(each, chance) for each in drawn]):
        message_id: str | bytes | None = _claimed(body)
        if message_id is None or chance.random() < 0.1:
            message_id = chance.choice(
                [None, b"", b"e-1", b"e-2", b"\xff" * 255, chance.randbytes(9)]
            )
        own = {} if message_id is None else {"message_id": message_id}
        found.append(Strange(body, envelopes[n % 2] | own))
    return found


TOKENS = [
    *(
        b"NaN",
        b"-Infinity",
        b"null",
        b"true",
        b"1e999",
        b"-0",
        b"1.0",
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
    ),
    *(
        b",",
        b":",
        b"\\",
        b"\\ud800",
        b"\\u0000",
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
    ),
    *(b"//", b" ", b"\n", b"2", b"v2", b"+", b"9" * 400),
]


def mutated(body: bytes, chance: Random) -> bytes:
    """Return *body* with one to three small changes."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(body))
        end = min(len(body), at + chance.randint(1, 12))
        part = chance.choice([b"", chance.choice(TOKENS), chance.randbytes(1), body[at:end] * 2])
        body = body[:at] + part + body[chance.choice([at, at + 1, end]) :]
    return body


def as_read(value: Any) -> Any:
    """Return a property as pika hands it over: text if it can, else the bytes."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


# What drawing seldom finds: sizes at which time matters. A table of headers travels in one frame.
_FRAME = 128_000
UGLY = {
    "21,000 numbers of one byte that pika writes with nine": Strange(
        b"{", {"headers": Table(_many(_FRAME // 8, b"B\x01"))}
    ),
    "25,000 voids": Strange(b"{", {"headers": Table(_many(_FRAME // 7, b"V"))}),
    "14,000 times the size of a frame": Strange(
        b"{", {"headers": Table(_many(_FRAME // 10, _long(b"S", b"")))}
    ),
    "names that are not UTF-8": Strange(
        b"{",
        {"headers": Table(table([(b"\xff" * 250 + b"%x" % n, b"t\x01") for n in range(490)]))},
    ),
    "a thousand tables deep": Strange(b"{", {"headers": Table(_nested(1_000, b"F"))}),
    "a list of 60,000 lists": Strange(
        b"{", {"headers": Table(table([(b"x", _long(b"A", _long(b"A", b"") * 25_000))]))}
    ),
    "a note of ours that fills the frame": Strange(
        b"{", {"headers": Table(table([(b"x-delivery-left-out", _long(b"S", b"y" * _FRAME))]))}
    ),
    "4 MiB of brackets": Strange(b"[" * 4 * 2**20),
    "4 MiB of numbers": Strange(b"[" + b"1," * 2 * 2**20 + b"1]"),
    "4,300 digits, a thousand times": Strange(b"[" + (b"9" * 4_300 + b",") * 1_000 + b"1]"),
    "15 MiB of a title": Strange(VALID_BYTES.replace(b"Title", b"x" * 15 * 2**20)),
    "a hundred thousand equal names": Strange(b"{" + b'"a":1,' * 100_000 + b'"a":1}'),
}
