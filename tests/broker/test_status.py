"""The one screen: every place, how old each figure is, and never a 0 for what nobody saw."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.connection import BrokerSettings, connect
from delivery.inbox import prune
from delivery.parking import Parking
from delivery.status_screen import status_screen
from delivery.stores import PUBLISHER
from delivery.topology import Queue, Topology, declare
from delivery.triage import alone, held
from delivery.watch import Snapshot, Watcher

NOBODY = "amqp://guest:guest@127.0.0.1:9/%2F"


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace, retries_ms=(50, 60_000)) as opened:
        yield opened


@pytest.fixture
def watcher(exchange: Exchange) -> Iterator[Watcher]:
    with closing(Watcher(exchange.config)) as own:
        yield own


def drawn(snapshot: Snapshot) -> str:
    console = Console(width=100, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(status_screen(snapshot))
    return capture.get()


def row(snapshot: Snapshot, name: str) -> list[str]:
    """The cells of one row of the screen."""
    (line,) = re.findall(rf"^{name}  +(.+)$", drawn(snapshot), re.M)
    return re.split(r"  +", line.strip())


def catalog(snapshot: Snapshot) -> dict[str, Any]:
    found: dict[str, Any] = snapshot.fields()["recipients"][0]
    return found


def test_every_place_is_on_the_screen(exchange: Exchange, watcher: Watcher) -> None:
    """Pending with its oldest, retry per delay, consumers, receipts by effect, copies, rates."""
    dead, waits = exchange.accept("m-1", "m-2")
    exchange.start("relay", "audit")
    for event_id in (dead, waits):
        exchange.await_receipt("audit", event_id)
    (body,) = exchange.select(PUBLISHER, f"SELECT body FROM outbox WHERE event_id = '{dead}'")
    exchange.put("audit", body, dead)
    exchange.await_receipt("audit", dead, duplicates=1)
    with exchange.refusing("m-1"):
        exchange.start("catalog")
        exchange.await_receipt("catalog", waits)
        wait_for(lambda: exchange.place("catalog").retry == (0, 1), "the second delay holds it")
    exchange.cast.stop("relay")
    (pending,) = exchange.accept("m-3")
    exchange.execute(
        PUBLISHER,
        "UPDATE outbox SET attempts = 2, outcome = 'unknown', detail = 'EOF'"
        " WHERE confirmed_at IS NULL",
    )

    wait_for(lambda: watcher.look().recipients[0].waiting.unacked == 0, "a sample")
    seen = watcher.look()
    assert row(seen, "ready") == ["0", "0", "now"]
    assert row(seen, "unacked")[:2] == ["0", "0"]
    assert re.fullmatch(r"up to \d+ s ago", row(seen, "unacked")[2])
    assert row(seen, "retry 50 ms") == ["0", "0", "now"]
    assert row(seen, "retry 60 s") == ["1", "0", "now"]
    assert row(seen, "consumers") == ["1", "1", "now"]
    assert row(seen, "queue kind")[:2] == ["classic", "classic"]
    assert row(seen, "applied")[:2] == ["1", "2"]
    assert row(seen, "duplicate")[:2] == ["0", "1"]
    assert row(seen, "difference") == ["0", "0", "by counts"]
    text = drawn(seen)
    assert "accepted 3, confirmed 2, pending 1\n  pending by last outcome: unknown 1\n" in text
    assert re.search(rf"oldest: \d+\.\d s, {pending}, attempts 2, last: unknown EOF\n", text)
    assert re.search(r"over 10 s: accepted 0\.\d", text)
    fields = seen.fields()
    assert fields["outbox"]["oldest_pending"]["event_id"] == pending
    assert (catalog(seen)["retry"], catalog(seen)["receipts"]["applied"]) == ((0, 1), 1)


def test_what_is_nowhere_is_a_difference(exchange: Exchange, watcher: Watcher) -> None:
    """Purged: missing by counts. A stranger's event: beyond what was accepted."""
    exchange.config.stores.open("catalog").close()
    exchange.accept("m-1")
    exchange.start("relay", "audit")
    wait_for(lambda: watcher.look().recipients[0].waiting.ready == 1, "it is in the queue")
    wait_for(lambda: watcher.look().recipients[1].receipts["applied"] == 1, "audit has it")
    wait_for(lambda: watcher.look().recipients[0].waiting.unacked == 0, "a sample")
    assert catalog(watcher.look())["difference"] == 0
    exchange.purge("catalog")
    seen = watcher.look()
    assert row(seen, "difference")[:2] == ["1", "0"]
    assert "catalog: on its way, or lost; by id: delivery ledger" in drawn(seen)
    for n in range(3):
        exchange.put("catalog", b"{}", f"x-{n}")
    wait_for(lambda: watcher.look().recipients[0].waiting.ready == 3, "the stranger's are there")
    seen = watcher.look()
    assert (seen.recipients[0].difference, seen.recipients[0].surplus) == (0, 2)
    assert "catalog: 2 beyond what was accepted" in drawn(seen)


def test_without_management_a_rest_may_be_unacked(exchange: Exchange) -> None:
    """Not 0, and not a loss: it can't be told, and the screen says why."""
    exchange.config.stores.open("catalog").close()
    exchange.accept("m-1")
    exchange.start("relay", "audit")
    with closing(Watcher(replace(exchange.config, management_url=None))) as watcher:
        wait_for(lambda: watcher.look().recipients[0].waiting.ready == 1, "it is in the queue")
        assert catalog(watcher.look())["difference"] == 0
        with connect(exchange.config.broker) as other:
            method, _, _ = other.channel().basic_get(exchange.config.route("catalog").queue)
            assert method is not None
            seen = watcher.look()
    assert (catalog(seen)["unacked"], catalog(seen)["difference"]) == (None, None)
    assert row(seen, "unacked")[:2] == ["not visible", "not visible"]
    assert row(seen, "difference")[0] == "not visible"
    assert "catalog: no difference is told: 1 may be unacked: not visible" in drawn(seen)
    assert "unacked is not visible: the management plugin's address is not known" in drawn(seen)


def test_receipts_that_are_gone_or_not_visible_are_not_0(
    exchange: Exchange, watcher: Watcher
) -> None:
    """No file yet; and pruned receipts, which make the counts no whole."""
    exchange.accept("m-1")
    seen = watcher.look()
    assert row(seen, "applied")[:2] == ["not visible", "not visible"]
    assert "catalog: no difference is told: the receipts are not visible" in drawn(seen)
    with closing(exchange.config.stores.open("catalog")) as inbox:
        prune(inbox, "catalog", before=5.0, oldest_dead=None)
    seen = watcher.look()
    assert row(seen, "applied")[:2] == ["0", "not visible"]
    assert "catalog: no difference is told: receipts were pruned" in drawn(seen)


def test_while_somebody_looks_at_the_dead_their_number_is_not_told(
    exchange: Exchange, watcher: Watcher
) -> None:
    """None of them is ready then: 0 would be wrong."""
    exchange.start("catalog")
    exchange.put("catalog", b"no event", "bad")
    exchange.await_dead("catalog")
    assert row(watcher.look(), "dead")[0] == "1"
    route = exchange.config.route("catalog")
    with connect(exchange.config.broker) as other, held(other, route) as (_, messages):
        assert len(list(messages)) == 1
        seen = watcher.look()
    assert catalog(seen)["dead_held"] is True
    assert "0 and those that somebody holds" in drawn(seen)
    assert row(watcher.look(), "dead")[0] == "1"


def test_a_queue_that_does_not_exist_is_not_0(
    broker: Broker, tmp_path: Path, namespace: str
) -> None:
    """Nothing was declared: said so."""
    with (
        exchange_on(broker, tmp_path, namespace, declared=False) as bare,
        closing(Watcher(bare.config)) as watcher,
    ):
        assert row(watcher.look(), "dead")[:2] == ["no queue", "no queue"]


def test_what_is_parked_is_on_the_screen_if_there_is_such_a_queue(exchange: Exchange) -> None:
    """No queue: not a word, and not 0. Held by somebody: said. Lost from sight: as old as it is."""
    queue = f"{exchange.config.namespace}.parking"
    place = Parking(queue, f"{queue}.desk", "the command")
    with (
        closing(Watcher(replace(exchange.config, parking=place))) as watcher,
        connect(exchange.config.broker) as other,
    ):
        assert (watcher.look().fields()["parked"], "parked" in drawn(watcher.look())) == (None, 0)
        declare(other, Topology(queues=(Queue(queue),)))
        try:
            wait_for(lambda: "queue kind classic" in drawn(watcher.look()), "the plugin knows it")
            assert f"parked (now): 0 in {queue}, queue kind classic\n" in drawn(watcher.look())
            exchange.put("catalog", b"{}", "x-1", queue=queue)
            wait_for(lambda: watcher.look().fields()["parked"]["ready"] == 1, "it is counted")
            text = drawn(watcher.look())
            assert f"parked (now): 1 in {queue}, queue kind classic\n" in text
            assert "  no queue wanted them; once one does: the command\n" in text
            with alone(other, place.lock, "a test"):
                assert f"1 and those that somebody holds in {queue}" in drawn(watcher.look())
            assert f"parked (now): 1 in {queue}" in drawn(watcher.look())
            watcher._config = replace(watcher._config, broker=BrokerSettings(url=NOBODY))
            watcher.close()
            wait_for(lambda: re.search(r"parked \(\d+ s ago\): 1 in", drawn(watcher.look())), "old")
        finally:
            other.channel().queue_delete(queue)


def test_the_last_figures_grow_old_while_there_is_no_broker(exchange: Exchange) -> None:
    """They stay on the screen with their age; the stores are read afresh; then all is new again."""
    for recipient in ("catalog", "audit"):
        exchange.config.stores.open(recipient).close()
    watcher = Watcher(exchange.config)
    with closing(watcher):
        wait_for(lambda: watcher.look().recipients[0].difference == 0, "a first figure")
        watcher.close()
        lost = replace(exchange.config, broker=BrokerSettings(url=NOBODY))
        watcher._config, own = lost, watcher._config
        exchange.accept("m-1")
        wait_for(
            lambda: re.fullmatch(r"[2-9] s ago", row(watcher.look(), "ready")[2]), "it grows old"
        )
        seen = watcher.look()
        assert seen.outbox["accepted"] == 1
        assert "the broker was not asked: no broker at 127.0.0.1:9" in drawn(seen)
        assert row(seen, "difference")[0] == "not visible"
        watcher._config = own
        assert row(watcher.look(), "ready")[2] == "now"


def test_a_first_look_without_a_broker_shows_no_figure(exchange: Exchange) -> None:
    """Not visible, everywhere."""
    config = replace(exchange.config, broker=BrokerSettings(url=NOBODY))
    with closing(Watcher(config)) as watcher:
        seen = watcher.look()
    for name in ("ready", "unacked", "dead", "consumers"):
        assert row(seen, name) == ["not visible"] * 3


def test_the_watch_follows_as_a_process(exchange: Exchange) -> None:
    """A JSON object a second: what is accepted meanwhile is in the next one."""
    command = [sys.executable, "-m", "delivery", *exchange.options, "status", "--watch", "--json"]
    watching = subprocess.Popen(
        command, env={**os.environ, **exchange.environ}, stdout=subprocess.PIPE, text=True
    )
    with watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["outbox"]["accepted"] == 0
        exchange.accept("m-1")
        lines = (json.loads(watching.stdout.readline()) for _ in range(4))
        assert any(line["outbox"]["accepted"] == 1 for line in lines)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(10) == 0
