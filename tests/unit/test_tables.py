"""A stranger's text is shown as it is: no markup, no escape sequence, no line of its own."""

from __future__ import annotations

import io
import json

from pika import BasicProperties
from rich.console import Console

from delivery.handling import Delivery
from delivery.tables import dead_table
from delivery.terminal import console
from delivery.triage import DeadMessage, HeldMessage
from delivery.triage_tables import MOST, full_lines
from delivery.visible import visible


def dead(key: str, error: str) -> DeadMessage:
    return DeadMessage(key, "incompatible", error, 1, 0, 0, 0, False)


def shown(*messages: DeadMessage) -> str:
    out = io.StringIO()
    settings = console()
    plain = Console(file=out, width=200, markup=settings._markup, emoji=settings._emoji)
    plain.print(dead_table("catalog", messages))
    return out.getvalue()


def test_what_looks_like_markup_is_text() -> None:
    """An id such as mark[/y]up must not hide every dead message of the recipient."""
    text = shown(dead("mark[/y]up", "should match '^[a-z0-9]+(-[a-z0-9]+)*$' :smile:"))
    assert "mark[/y]up" in text
    assert "'^[a-z0-9]+(-[a-z0-9]+)*$' :smile:" in text


def test_control_characters_do_not_reach_the_terminal() -> None:
    """They could move the cursor, or forge a line."""
    text = shown(dead("evil\x1b[31m\nid", "first\nsecond"))
    assert "\x1b" not in text
    assert r"evil\x1b[31m\nid" in text


def test_an_id_and_a_reason_are_never_cut() -> None:
    """They are what the next command needs."""
    out = io.StringIO()
    key = "0f8e5a0e-5b5e-4a53-9d70-7c0c1a2b3c4d"
    narrow = Console(file=out, width=60, markup=False)
    narrow.print(dead_table("catalog", [dead(key, "x" * 80)]))
    assert key in out.getvalue()
    assert "incompatible" in out.getvalue()


def test_readable_text_stays_as_it_is() -> None:
    """Letters of any script are no control characters."""
    assert visible("Где 消息 🙂") == "Где 消息 🙂"


def test_a_message_in_full_cannot_forge_a_line_and_is_bounded() -> None:
    """Headers, traceback and body are a stranger's; a body of a mebibyte does not flood."""
    properties = BasicProperties(headers={"x\nforged": "a\x1b[2J"}, type="t\rt")
    body = json.dumps({"text": "\u2028" + "x" * 3 * MOST}).encode()
    delivery = Delivery(queue="q", body=body, properties=properties)
    message = HeldMessage("k", "r", "e", 1, 0, 10**14, 0, True, "T\x1b[1m\nE", delivery)
    lines = list(full_lines(message))
    assert all(line.isprintable() for line in lines)
    assert r"  x\nforged: a\x1b[2J" in lines
    assert r"  type: t\rt" in lines
    assert lines[lines.index("traceback (its last calls):") + 1 :][:2] == [r"  T\x1b[1m", "  E"]
    assert sum(map(len, lines)) < MOST + 1_000
    assert "--json" in lines[-1]
    assert "sent: not known" in lines
