"""The page of a chaos run: whole, without outside addresses, with gaps where nobody answered."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from delivery.campaign import Record
from delivery.chaos import Load, Run
from delivery.handling import Effect
from delivery.heal import Healed
from delivery.ledger import Books, account
from delivery.report_page import COLOURS, page
from delivery.reporting import as_data, summary, write_report
from delivery.schedule import Planned
from delivery.timeline import Sample
from delivery.verdict import Facts, Tally, differences


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


def test_whatever_a_difference_says_is_text() -> None:
    shown = page(as_data(run(differences=["<script>alert(1)</script>"]), 7))
    assert "<p class='wrong'>&lt;script&gt;alert(1)&lt;/script&gt;</p>" in shown
    assert "<script" not in shown


def test_every_id_is_in_the_report_and_the_first_ones_are_in_the_summary() -> None:
    """Forty lines of ids on a screen help nobody; a report that leaves some out helps less."""
    ids = [f"e-{number:02}" for number in range(12)]
    facts = Facts(outbox=ids, audit=[], catalog={})
    wrong = differences([], facts, [])
    assert wrong == [f"in the outbox, and no client was told: 12: {', '.join(ids)}"]
    data = as_data(run(differences=wrong), 7)
    assert data["differences"] == wrong
    assert ids[-1] in page(data)
    shown = [*summary(run(differences=wrong))][-2]
    first = ", ".join(ids[:10])
    assert shown == (
        f"DIFFERENCE: in the outbox, and no client was told: 12: {first}"
        " and 2 more (--report names all)"
    )


def test_each_kind_shows_what_was_healed_because_of_it() -> None:
    shown = page(as_data(run(), 7))
    assert "<td class=text>stall</td><td>1</td><td>1</td><td>1</td>" in shown
    assert "<td class=text>alarm</td><td>1</td><td>0</td><td>0</td>" in shown


def test_a_fault_without_recovery_says_so_and_is_dark() -> None:
    wrong = Record(
        Planned(1, "stall", ("audit",), 5), ("audit",), 101.0, 105.0, True, "x", "no <b>"
    )
    shown = page(as_data(run(records=[wrong]), 7))
    assert "<td class=text>did not recover: no &lt;b&gt;</td>" in shown
    assert shown.count(COLOURS["error"]) == 1
    assert COLOURS["bit"] not in shown


def test_a_sum_with_an_unknown_part_is_not_known() -> None:
    (dead,) = re.findall(r"<path d='([^']*)' fill='none' stroke='#dc2626'", page(as_data(run(), 7)))
    assert dead == ""


def test_a_fault_stands_where_it_began_and_more_is_higher() -> None:
    shown = page(as_data(run(), 7))
    assert "<td class=text>1.0</td><td class=text>4.0</td>" in shown
    accepted, settled = (
        float(
            re.findall(rf"<path d='M[^ ]+ ([0-9.]+)[^']*' fill='none' stroke='{colour}'", shown)[0]
        )
        for colour in ("#16a34a", "#2563eb")
    )
    assert accepted < settled  # 3 and 1: SVG counts from the top


def test_a_run_in_which_nothing_happened_is_a_page_too() -> None:
    """No sample, no fault, no account, no time; and counts that are all 0."""
    nothing = dict.fromkeys(("catalog", "audit"), 0)
    still = Sample(100.0, 0, 0, nothing, nothing, nothing, nothing)
    for samples in ([], [still, still]):
        tags = Tags()
        tags.feed(page(as_data(run(records=[], samples=samples, accounts=[], seconds=0.0), 7)))
        assert tags.open == []


def test_the_account_is_shown_in_the_order_of_its_columns() -> None:
    books = Books(
        "audit", {f"e-{n}" for n in range(9)}, {"e-7"}, {"e-1": Effect.APPLIED}, (), 0, 0, 0
    )
    shown = page(as_data(run(accounts=[account(books)]), 7))
    numbers = "".join(f"<td>{n}</td>" for n in (9, 1, 0, 0, 1, 7))
    assert f"<td class=text>audit</td>{numbers}" in shown


def test_a_report_is_written_whatever_a_broker_said(tmp_path: Path) -> None:
    record = Record(Planned(1, "stall", ("audit",), 5), ("audit",), 101.0, 105.0, True, "\udcff")
    machine, readable = write_report(run(records=[record], differences=["x"]), 7, tmp_path / "new")
    data = json.loads(machine.read_text(encoding="utf-8"))
    assert data["faults"][0]["evidence"] == "\udcff"
    assert data["adds_up"] is False
    assert "\\udcff" in readable.read_text(encoding="utf-8")


def test_a_loss_by_our_own_code_is_not_put_down_to_the_broker() -> None:
    lines = [*summary(run(healed=[Healed("audit", "e-1", "")]))]
    assert not [line for line in lines if line.startswith("lost by the broker")]
