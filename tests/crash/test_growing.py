"""A publisher grows from SQLite to PostgreSQL under traffic: what was accepted is applied, once."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.exchange import KILLED, Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.client import post
from delivery.errors import DeliveryError
from delivery.postgres import open_postgres

MATERIALS = 5


def at(*points: str) -> pytest.MarkDecorator:
    """Run the test once for each point; it kills a process there."""
    return pytest.mark.parametrize("point", points)


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str, database: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        opened.environ["DELIVERY_POSTGRES_URL"] = database
        yield opened


class Client(threading.Thread):
    """Publishes all the time, and repeats each request under its key until it is answered."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.answers: dict[str, dict[str, Any]] = {}
        self.repeated: list[str] = []
        self.refused = 0
        self.most = 20  # requests, for a start
        self._url = url
        self._leaving = threading.Event()

    def run(self) -> None:
        while not self._leaving.is_set():
            key = f"key-{len(self.answers)}"
            if len(self.answers) == self.most:
                self._leaving.wait(0.01)
            elif answer := self._insist(key):
                self.answers[key] = answer

    def ask(self, key: str) -> tuple[int, dict[str, Any], bool]:
        material = f"m-{int(key.partition('-')[2]) % MATERIALS}"
        command = {"material_id": material, "title": key, "slug": "a-title", "author": "An Author"}
        return post(self._url, command, key)

    def leave(self) -> None:
        self._leaving.set()
        self.join(30)
        assert not self.is_alive()

    def _insist(self, key: str) -> dict[str, Any]:
        while not self._leaving.wait(0.01):
            try:
                status, answer, again = self.ask(key)
            except DeliveryError:
                self.refused += 1
                continue
            if status == 202:
                if again:
                    self.repeated.append(key)
                return answer
            assert status == 503, answer
            self.refused += 1
        return {}


def tables(database: str) -> list[int]:
    with closing(open_postgres(database)) as store:
        found = [
            store.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
            for table in ("outbox", "material", "request")
        ]
    return [int(row[0]) for row in found if row]


@at("copy.written")
def test_a_publisher_grows_while_clients_publish(
    exchange: Exchange, database: str, point: str
) -> None:
    """A copy that is killed changes nothing; the API's last answer, which was lost, is given."""
    # The 40th command is committed, and its client hears nothing.
    exchange.start("relay", "catalog", "audit")
    exchange.start("api", DELIVERY_KILL_AT="materials.committed:40")
    port = exchange.url.rpartition(":")[2]
    client = Client(exchange.url)
    client.start()
    try:
        wait_for(lambda: len(client.answers) == 20, "some are accepted")
        assert exchange.cast.stop("relay") == 0
        client.most = 10_000  # what comes from now on is pending
        exchange.await_death("api")
        assert len(client.answers) == 39

        killed = exchange.run("postgres", "copy", "--apply", DELIVERY_KILL_AT=point)
        assert killed.returncode == KILLED, killed.stderr
        assert tables(database) == [0, 0, 0]
        copied = exchange.run("postgres", "copy", "--apply")
        pending = int(copied.stdout.split()[1])
        assert pending >= 20, copied.stdout
        assert "40 answered requests" in copied.stdout, copied.stdout + copied.stderr
        assert tables(database) == [40, MATERIALS, 40]

        exchange.cast.start("api", ["postgres", "api", "--port", port]).await_event("api.ready")
        exchange.cast.start("relay", ["postgres", "relay"]).await_event("relay.ready")
        wait_for(lambda: len(client.answers) >= 80, "it goes on")
    finally:
        client.leave()

    assert (client.repeated, client.refused > 0) == (["key-39"], True)
    for key in ("key-0", "key-39", "key-40"):  # from before, between, and after
        assert client.ask(key) == (202, client.answers[key], True)
    revisions: dict[str, list[int]] = defaultdict(list)
    for answer in client.answers.values():
        revisions[answer["material_id"]].append(answer["revision"])
    assert all(found == list(range(1, len(found) + 1)) for found in revisions.values())

    judged = exchange.run("postgres", "ledger", "--json", "--within", "30")
    assert judged.returncode == 0, judged.stdout + judged.stderr
    accepted = len(client.answers)
    for account in json.loads(judged.stdout):
        assert (account["accepted"], account["difference"]) == (accepted, 0)
        assert account["applied"] + account["stale"] == accepted
    feed = ("--feed", exchange.url, "--grace", "0", "--page", "30", "--json")
    assert json.loads(exchange.run("reconcile", "audit", *feed).stdout)["missing"] == []
    events = sorted(answer["event_id"] for answer in client.answers.values())
    assert sorted(exchange.select("audit", "SELECT event_id FROM audit")) == events
    latest = {material: found[-1] for material, found in revisions.items()}
    assert dict(exchange.select("catalog", "SELECT material_id, revision FROM catalog")) == latest
    status = httpx.get(f"{exchange.url}/status", trust_env=False).json()
    assert (status["accepted"], status["confirmed"]) == (accepted, accepted)
    assert exchange.cast.stop("api") == exchange.cast.stop("relay") == 0


@at("copy.committed")
def test_a_publisher_that_was_moved_is_not_started_here_again(
    exchange: Exchange, database: str, point: str
) -> None:
    """Its API would accept what nobody sends, its relay send what others do. It can be read."""
    exchange.accept("m-1", "m-2")
    killed = exchange.run("postgres", "copy", "--apply", DELIVERY_KILL_AT=point)
    assert (killed.returncode, tables(database)) == (KILLED, [2, 2, 2]), killed.stderr
    copied = exchange.run("postgres", "copy", "--apply")
    assert copied.stdout.startswith("copied: 0 pending and 0 confirmed"), copied.stderr

    for service in ("relay", "api"):
        refused = exchange.run(service)
        assert (refused.returncode, refused.stdout) == (1, "")
        said = refused.stderr.splitlines()[-1]
        assert said.startswith("error: this publisher was moved to the database "), refused.stderr
        assert "`delivery postgres relay`" in said
        assert "password" not in said
    assert sum(exchange.place(each).ready or 0 for each in ("catalog", "audit")) == 0
    assert exchange.run("postgres", "copy").returncode == 0
    assert exchange.run("ledger").returncode == 0
