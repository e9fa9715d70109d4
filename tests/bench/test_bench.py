"""The table says "met" only of what was measured so, and what is measured is what it says."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from bench import ceilings
from bench.load import SIZE, events, fresh, place
from bench.machine import look
from bench.ours import received, relayed
from bench.plot import svg
from bench.report import cells, machine_lines, write
from bench.scene import Curve, Row, Scene, interleaved
from bench.sharing import shared

from delivery.broker import Broker
from delivery.codec import encode
from delivery.connection import connect
from delivery.postgres import open_postgres
from delivery.postgres_outbox import SCHEMA


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row("w", 80, "/s", "p", 100, ">= 0.75 x"), True),
        (Row("w", 70, "/s", "p", 100, ">= 0.75 x"), False),
        (Row("w", 109, "us", "p", 100, "<= 1.1 x"), True),
        (Row("w", 120, "us", "p", 100, "<= 1.1 x"), False),
        (Row("w", 9, "ms", target="<= 8 ms"), False),
        (Row("w", 8, "ms", target="<= 8 ms"), True),
        (Row("w", 9, "ms", "p", 3, "<= 8 ms"), False),
        (Row("w", 8, "ms", "p", 1, "<= 8 ms"), True),
        (Row("w", 8, "ms", target="<= 9 x"), False),
        (Row("w", 8, "ms"), None),
    ],
)
def test_a_target_is_of_the_ratio_if_it_says_x_and_otherwise_of_ours(row: Row, met: bool) -> None:
    assert row.met is met
    assert cells(row)[-1] == {True: "met", False: "MISSED", None: ""}[met]


def test_contestants_take_turns(tmp_path: Path) -> None:
    """What slows the machine for a while slows each of them."""
    turns: list[str] = []
    scene = Scene("", tmp_path, "", rounds=3, say=lambda _: None)

    def run(name: str) -> float:
        turns.append(name)
        return len(turns)

    found = interleaved(scene, {"a": lambda: run("a"), "b": lambda: run("b")})
    assert turns == ["a", "b"] * 3
    assert found == {"a": [1, 3, 5], "b": [2, 4, 6]}


def test_the_report_holds_every_row_and_curve(tmp_path: Path) -> None:
    """JSON for machines, a page with one plot for each curve."""
    curve = Curve("Cost <1>", "rows", "us", {"relay": [(1, 2.0), (10, 3.0)], "receive": [(1, 4.0)]})
    machine = look()
    write(tmp_path, [Row("w", 1.0, "/s", "p", 2.0)], [curve], machine_lines(machine, machine))
    data = json.loads((tmp_path / "bench.json").read_text())
    assert (data["rows"][0]["ratio"], data["curves"][0]["title"]) == (0.5, "Cost <1>")
    page = (tmp_path / "bench.html").read_text()
    assert page.count("<svg") == 1
    assert "Cost &lt;1&gt;" in page
    assert len(re.findall("<polyline", svg(curve))) == 2


def test_the_axis_of_a_plot_has_plain_numbers() -> None:
    """14,000 and not 1.4e+04; small ones keep their fractions."""
    for most, tick in ((14_000.0, ">11,550<"), (3.0, ">2.48<")):
        assert tick in svg(Curve("Rate", "batch", "/s", {"ours": [(1, most / 2), (2, most)]}))


def test_what_is_measured_is_done(broker: Broker, tmp_path: Path) -> None:
    """300 events of 512 bytes: relayed into the queue, and from there all received, once."""
    made = events(300)
    assert {len(encode(each)) for each in made} == {SIZE}
    with place(broker.amqp_url) as at:
        assert relayed(at, tmp_path, made) > 0
        assert received(at, fresh(tmp_path), 300, batch=100) > 0
        assert at.publish(made) > 0
        assert ceilings.consumed(at.url, at.route.queue, 300) > 0
    assert ceilings.stored(fresh(tmp_path), made) > 0


def test_three_relays_share_what_is_measured(broker: Broker, database: str) -> None:
    """300 events, each confirmed at its first attempt, and each in the queue once."""
    with place(broker.amqp_url) as at, closing(open_postgres(database, SCHEMA)) as store:
        assert shared(at, store, database, events(300), 3) > 0
        with connect(at.settings) as connection:
            queue = connection.channel().queue_declare(at.route.queue, passive=True)
        assert queue.method.message_count == 300
