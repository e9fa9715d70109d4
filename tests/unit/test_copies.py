"""A copy carries the message, and leaves behind what belongs to its old journey."""

from __future__ import annotations

import decimal
import time
from datetime import UTC, datetime

import pytest
from pika import BasicProperties

from delivery.copies import copy_of, cut
from delivery.handling import Delivery


def copied(properties: BasicProperties, **headers: object) -> BasicProperties:
    return copy_of(Delivery(queue="q", body=b"", properties=properties), **headers)


def test_a_copy_keeps_the_identity_of_the_message() -> None:
    """The same message_id, type, timestamp and content type: it is the same message."""
    original = BasicProperties(
        message_id="id-1",
        type="t",
        timestamp=1,
        app_id="a",
        correlation_id="c",
        content_type="application/json",
        content_encoding="utf-8",
        headers={"ours": "kept"},
    )

    copy = copied(original)

    for name in ("message_id", "type", "timestamp", "app_id", "correlation_id"):
        assert getattr(copy, name) == getattr(original, name)
    assert (copy.content_type, copy.content_encoding) == ("application/json", "utf-8")
    assert copy.headers == {"ours": "kept"}


def test_a_copy_is_persistent_does_not_expire_and_names_no_user() -> None:
    """A copy that expires in a dead queue is lost; another's user_id is refused by the broker."""
    copy = copied(BasicProperties(delivery_mode=1, expiration="100", user_id="someone"))

    assert (copy.delivery_mode, copy.expiration, copy.user_id) == (2, None, None)


@pytest.mark.parametrize(
    "name",
    [
        *("x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason"),
        *("x-last-death-exchange", "x-last-death-queue", "x-last-death-reason", "CC", "BCC"),
    ],
)
def test_the_brokers_own_notes_are_left_behind(name: str) -> None:
    """x-death would be stale; CC and BCC would send the copy to other queues, too."""
    assert copied(BasicProperties(headers={name: ["x"], "kept": 1})).headers == {"kept": 1}


def test_headers_are_added_and_removed_by_name() -> None:
    """An underscore stands for a hyphen, None removes."""
    copy = copied(BasicProperties(headers={"old": 1, "x-gone": 2}), x_new=3, x_gone=None)

    assert copy.headers == {"old": 1, "x-new": 3}


def test_the_original_is_not_changed() -> None:
    """The same delivery may still be copied elsewhere."""
    original = BasicProperties(headers={"a": 1}, expiration="5", delivery_mode=1)

    copied(original, a=2, b=3)

    assert original.headers == {"a": 1}
    assert (original.expiration, original.delivery_mode) == ("5", 1)


def test_header_values_that_pika_reads_but_cannot_write_become_text() -> None:
    """pika 1.3.2 reads floats and writes none; nested ones included."""
    copy = copied(BasicProperties(headers={"f": 1.5, "deep": {"l": [2.5, {"f": 3.5}]}}))

    assert copy.headers == {"f": "1.5", "deep": {"l": ["2.5", {"f": "3.5"}]}}
    copy.encode()


def test_header_values_that_pika_can_write_stay_as_they_are() -> None:
    """Only what must change does."""
    headers = {
        "text": "é🐇",
        "bytes": b"\xff",
        "flag": True,
        "int": -1,
        "time": datetime(2026, 1, 1, tzinfo=UTC),
        "decimal": decimal.Decimal("1.5"),
        "list": ["a", 1],
        "table": {"a": {"b": "c"}},
    }

    copy = copied(BasicProperties(headers=headers))

    assert copy.headers == headers
    copy.encode()


def test_a_short_text_is_not_cut() -> None:
    """Up to the limit it stays whole."""
    assert cut("é" * 1_000) == "é" * 1_000


def test_a_long_text_is_cut_and_says_so() -> None:
    """300 KB of error text must not end up in a header."""
    assert cut("x" * 300_000) == "x" * 1_000 + " ... (299000 more characters)"


def test_a_text_that_is_no_utf8_is_made_so() -> None:
    """A lone surrogate in an error's text must not stop the parking."""
    assert cut("bad \ud800 text") == "bad \\ud800 text"


def size(copy: BasicProperties) -> int:
    return sum(map(len, copy.encode()))


def test_of_twenty_thousand_headers_the_shortest_are_kept_at_once() -> None:
    """They fill the sender's frame, and pika writes each longer than it was: seconds, not minutes.

    Nobody serves the connection while a copy is made; past the heartbeat it would be lost, and the
    same message would come again.
    """
    headers = {f"{n:x}": 2**31 for n in range(20_000)}
    begun = time.process_time()

    copy = copied(BasicProperties(headers=headers | {"long": "x" * 90_000}), x_ours="kept")

    assert time.process_time() - begun < 5
    assert 120_000 < size(copy) <= 128_000
    assert copy.headers["x-ours"] == "kept"
    assert "long" not in copy.headers
    assert copy.headers["0"] == 2**31
    assert "more characters)" in copy.headers["x-delivery-left-out"]


def test_a_note_of_ours_that_a_sender_wrote_cannot_fill_the_frame() -> None:
    """What a copy says it left out is cut like any text; what earlier copies said is kept."""
    for before, kept in (("y" * 127_900, "y" * 1_000), ("first", "first, long")):
        headers = {"x-delivery-left-out": before, "long": "x" * 127_990}
        copy = copied(BasicProperties(headers=headers), x_ours="z" * 4_000)

        assert size(copy) <= 128_000
        assert copy.headers["x-delivery-left-out"].startswith(kept)
        assert copy.headers["x-ours"] == "z" * 4_000


def test_a_header_that_cannot_be_written_is_left_out_alone() -> None:
    """One name that is too long once it is text costs no other header its place."""
    headers = {b"\xff" * 200: "no", "long": "x" * 50_000}

    copy = copied(BasicProperties(headers=headers))

    assert copy.headers["long"] == "x" * 50_000
    assert copy.headers["x-delivery-left-out"].startswith("b'\\xff")
    assert size(copy) <= 128_000
