"""Real processes say whether they are ready: by a command with an exit code, and over HTTP."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.store import transaction
from delivery.stores import PUBLISHER


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        yield opened


def start(exchange: Exchange, name: str, **environ: str) -> str:
    """Start a process with a port, and return its address."""
    words = ["relay"] if name == "relay" else ["receive", name]
    actor = exchange.cast.start(name, [*words, "--metrics-port", "0"], **environ)
    return actor.await_event("metrics.ready").rpartition("url=")[2].strip()


def asked(exchange: Exchange, process: str) -> tuple[int, str, str]:
    """Exit code, state and reason as the command tells them."""
    ended = exchange.run("health", process, "--json")
    assert ended.stderr == ""
    (found,) = json.loads(ended.stdout) or [{"state": "not running", "reason": ""}]
    return ended.returncode, found["state"], found["reason"]


def got(url: str, path: str) -> tuple[int, dict[str, Any]]:
    answer = httpx.get(url + path, trust_env=False)
    return answer.status_code, answer.json()


def test_ready_then_gone(exchange: Exchange) -> None:
    """Command and port agree; a process that was killed is not running."""
    assert asked(exchange, "catalog") == (1, "not running", "")
    url = start(exchange, "catalog")
    exchange.cast["catalog"].await_event("catalog.ready")
    assert asked(exchange, "catalog") == (0, "ready", "")
    shown = exchange.run("health", "catalog")
    assert re.fullmatch(r"catalog ready since \S+ \S+, process \d+\n", shown.stdout)
    assert got(url, "/healthz")[0] == 200
    status, answer = got(url, "/readyz")
    assert (status, answer["status"], answer["reason"]) == (200, "ready", "")
    assert httpx.get(url + "/nothing", trust_env=False).status_code == 404
    exchange.kill("catalog")
    ended = exchange.run("health", "catalog")
    assert (ended.returncode, ended.stdout[:19]) == (1, "catalog not running")


def test_a_process_that_has_nothing_to_do_gives_signs_of_life(exchange: Exchange) -> None:
    """Else an idle one would be called stalled after half a minute."""
    for name in ("relay", "catalog"):
        exchange.start(name)
        (file,) = exchange.config.stores.data.glob(f"{name}@*.health")
        before = file.stat().st_mtime
        for _ in range(2):
            wait_for(lambda: file.stat().st_mtime > before, f"{name} gives a sign", 5)  # noqa: B023
            before = file.stat().st_mtime


def test_without_a_broker_it_is_alive_and_reconnecting(exchange: Exchange) -> None:
    """Not ready, with the reason; a restart would not help, so it is alive."""
    url = start(exchange, "relay", DELIVERY_AMQP_URL="amqp://guest:guest@127.0.0.1:9/%2F")
    wait_for(lambda: got(url, "/readyz")[1]["status"] == "reconnecting", "it is said")
    status, answer = got(url, "/readyz")
    assert status == 503
    assert "no broker at 127.0.0.1:9" in answer["reason"]
    assert got(url, "/healthz")[0] == 200
    code, state, reason = asked(exchange, "relay")
    assert (code, state) == (1, "reconnecting")
    assert "no broker at 127.0.0.1:9" in reason


def test_one_with_nothing_to_do_finds_out_that_its_store_cant_be_written(
    exchange: Exchange,
) -> None:
    """One is locked, the other's disk is full: paused until a write is done, and not in between."""
    urls = {name: start(exchange, name) for name in ("relay", "catalog")}
    for name in urls:
        exchange.cast[name].await_event(f"{name}.ready")
    pid = exchange.cast["catalog"].process.pid
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    begun = {name: exchange.cast[name].mark() for name in urls}
    with closing(exchange.config.stores.open(PUBLISHER)) as store, transaction(store):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))
        for name in urls:
            # It tries again after the first, and that is no reason to call it well.
            exchange.cast[name].await_event("store.unavailable", times=2, since=begun[name])
            assert exchange.cast[name].said(f"{name}.ready", since=begun[name]) == 0
            assert got(urls[name], "/readyz")[1]["status"] == "paused"
            assert asked(exchange, name)[:2] == (1, "paused")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
    for name in urls:
        wait_for(lambda: got(urls[name], "/readyz")[0] == 200, "it goes on", 30)  # noqa: B023
        assert asked(exchange, name) == (0, "ready", "")


def test_a_copy_that_is_not_safe_is_a_pause_and_not_the_connections_fault(
    exchange: Exchange,
) -> None:
    """The retry queue is deleted behind its back: paused, and the sentence names the queue."""
    url = start(exchange, "catalog")
    exchange.cast["catalog"].await_event("catalog.ready")
    queue = f"{exchange.config.route('catalog').queue}.dead"
    exchange.delete_queue(queue)
    exchange.put("catalog", b"no event", "bad")
    wait_for(lambda: got(url, "/readyz")[1]["status"] == "paused", "it is said", 30)
    # It declares its queues again when it comes back, and goes on.
    wait_for(lambda: got(url, "/readyz")[1]["status"] == "ready", "it goes on")
    assert exchange.cast["catalog"].log().count(queue) >= 1


# What is set off by an impossible limit, and the limit that ends it.
ALARMS = {
    "memory": ("set_vm_memory_high_watermark", "0.0000001", "0.6"),
    "disk": ("set_disk_free_limit", "9000GB", "50MB"),
}


@pytest.mark.parametrize("alarm", ALARMS)
def test_the_broker_in_alarm(
    breakable_broker: Broker, tmp_path: Path, namespace: str, alarm: str
) -> None:
    """No memory, no disk: blocked with the broker's reason; ready when it is over, and all sent."""
    limit, impossible, usual = ALARMS[alarm]
    with exchange_on(breakable_broker, tmp_path, namespace) as exchange:
        url = start(exchange, "relay")
        exchange.start("audit")
        exchange.cast["relay"].await_event("relay.ready")
        breakable_broker.ctl(limit, impossible)
        try:
            exchange.accept("m-1")
            wait_for(lambda: got(url, "/readyz")[1]["status"] == "blocked", "it is said")
            assert alarm in got(url, "/readyz")[1]["reason"]
            assert 'delivery_connection_blocked{process="relay"} 1.0' in metrics(url)
            assert asked(exchange, "relay")[:2] == (1, "blocked")
        finally:
            breakable_broker.ctl(limit, usual)
        wait_for(lambda: got(url, "/readyz")[1]["status"] == "ready", "it is over", 60)
        (event_id,) = exchange.select("publisher", "SELECT event_id FROM outbox")
        exchange.await_receipt("audit", event_id)
        assert 'delivery_connection_blocked{process="relay"} 0.0' in metrics(url)


def metrics(url: str) -> str:
    return httpx.get(url + "/metrics", trust_env=False).text
