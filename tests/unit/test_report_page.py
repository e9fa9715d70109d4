"""The page of a chaos run: whole, without outside addresses, with gaps where nobody answered."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from delivery.campaign import Record
from delivery.chaos import Load, Run
from delivery.heal import Healed
from delivery.ledger import Books, account
from delivery.report_page import page
from delivery.reporting import as_data, summary
from delivery.schedule import Planned
from delivery.timeline import Sample
from delivery.verdict import Tally


def sample(at: float, pending: int | None) -> Sample:
    both = {"catalog": 1, "audit": 2}
    return Sample(at, 3, pending, both, both, both, {"catalog": 0, "audit": None})


def run(**changes: Any) -> Run:
    planned = Planned(1, "stall", ("audit",), 5), Planned(2, "alarm", ("api", "relay"), 6)
    given: dict[str, Any] = {
        "system": "delivery",
        "broker": "RabbitMQ 4.3.6",
        "load": Load(),
        "begun": 100.0,
        "seconds": 10.0,
        "records": [
            Record(planned[0], ("audit",), 101.0, 105.0, True, "no byte for <4> s"),
            Record(planned[1], ("api", "relay"), 105.0, 106.0, False, "nothing came"),
        ],
        "samples": [sample(101.0, 4), sample(102.0, None), sample(103.0, 0)],
        "tally": Tally(3, 0, 0, 0, 0),
        "accounts": [account(Books("audit", {"e-1"}, (), {}, (), 0, 0, 0))],
        "healed": [Healed("audit", "e-1", "stall")],
    }
    return Run(**{**given, **changes})


class Tags(HTMLParser):
    """Collects what is opened and not closed, and every address."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href")]
        if tag not in ("meta", "path") and not (
            tag == "rect" and self.get_starttag_text()[-2:] == "/>"
        ):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] == "p":
            self.open.pop()
        assert self.open.pop() == tag


def test_the_page_is_whole_and_has_no_outside_address() -> None:
    tags = Tags()
    tags.feed(page(as_data(run(), 7)))
    assert tags.open == []
    assert tags.addresses == []


def test_what_was_seen_is_shown_as_text() -> None:
    shown = page(as_data(run(), 7))
    assert "no byte for &lt;4&gt; s" in shown
    assert "<4>" not in shown
    assert "did not bite: nothing came" in shown
    assert "<title>Chaos run, seed 7: everything adds up</title>" in shown


def test_a_difference_is_shown_in_words() -> None:
    shown = page(as_data(run(differences=["audit has no entry for: 1: e-1"]), 7))
    assert "this does not add up" in shown
    assert "<p class='wrong'>audit has no entry for: 1: e-1</p>" in shown


def test_no_answer_is_a_gap_and_not_a_zero() -> None:
    (pending,) = re.findall(
        r"<path d='([^']+)' fill='none' stroke='#b45309'", page(as_data(run(), 7))
    )
    assert pending.count("M") == 2
    assert "L" not in pending


def test_the_summary_counts_bites_and_names_what_reconcile_healed() -> None:
    lines = [*summary(run())]
    assert lines[1] == "2 faults injected, 1 bit: alarm 0 of 1, stall 1"
    assert "lost by the broker and healed by reconcile: 1, explained by stall" in lines
    assert lines[-1] == "everything adds up"
    assert [*summary(run(differences=["x"]))][-2:] == ["DIFFERENCE: x", "THIS DOES NOT ADD UP"]
