"""The baselines are fair: on a calm broker they do it right; and each fails as its style does."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path

import psycopg
import pytest
from support.baseline import Baseline, baseline
from support.proxy import Proxy, proxied
from support.servers import postgres, redis
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.connection import BrokerSettings, connect
from delivery.routes import Route, events_exchange

Make = Callable[[str], Baseline]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """PostgreSQL and Redis, one of each for this file; a namespace keeps the tests apart."""
    folder = tmp_path_factory.mktemp("servers")
    with postgres(folder / "postgres") as dsn, redis(folder / "redis") as url:
        yield {"BASELINE_POSTGRES": dsn, "BASELINE_REDIS": url}


@pytest.fixture
def make(
    broker: Broker,
    tmp_path: Path,
    namespace: str,
    servers: dict[str, str],
    connection: object,  # cleans the namespace
) -> Iterator[Make]:
    """Give a baseline by name."""
    with ExitStack() as stack:

        def opened(name: str) -> Baseline:
            settings = {"DELIVERY_AMQP_URL": broker.amqp_url, "DELIVERY_NAMESPACE": namespace}
            own: AbstractContextManager[Baseline] = baseline(
                name, tmp_path, BASELINE_RETRY_AFTER="0.5", **settings, **servers
            )
            return stack.enter_context(own)

        yield opened


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    with proxied(broker.amqp_url) as opened:
        yield opened


@pytest.mark.parametrize("name", ["plain", "article"])
def test_on_a_calm_broker_nothing_is_wrong(make: Make, name: str) -> None:
    """50 publications reach both recipients once, and SIGTERM ends every process with 0."""
    exchange = make(name)
    exchange.start("api", "relay", "catalog", "audit")

    events = {
        exchange.publish(f"m-{number % 10}", f"Title {number}"): [
            f"m-{number % 10}",
            number // 10 + 1,
        ]
        for number in range(50)
    }

    found = exchange.await_facts(
        lambda facts: (
            len(facts["audit"]) >= 50
            and sorted(n for n, *_ in facts["catalog"].values()) == [5] * 10
        ),
        "50 audited, each material at revision 5",
    )
    assert found["accepted"] == events
    assert sorted(found["audit"]) == sorted(events)
    latest = {m: [n, e] for e, (m, n) in events.items() if n == 5}
    assert found["catalog"] == {
        f"m-{i}": [5, f"Title {40 + i}", latest[f"m-{i}"][1]] for i in range(10)
    }
    wait_for(lambda: exchange.facts()["pending"] == [], "everything is marked")
    assert exchange.facts()["stuck"] == []
    assert exchange.stop() == dict.fromkeys(("api", "relay", "catalog", "audit"), 0)
    for role in ("api", "relay", "catalog", "audit"):
        assert exchange.said(role, "connection.lost") == 0
        assert "Traceback" not in exchange.log(role)


# -- plain


def test_plain_loses_what_a_killed_recipient_held(
    make: Make, broker: Broker, namespace: str
) -> None:
    """auto_ack: 20 messages that wait in the process for its locked file die with it."""
    exchange = make("plain")
    exchange.start("api", "audit")
    data = Path(exchange.environ["DELIVERY_DATA"])
    with closing(sqlite3.connect(data / "audit.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        held = [exchange.publish(f"m-{number}") for number in range(20)]
        with connect(BrokerSettings(url=broker.amqp_url)) as connection:
            queue, channel = Route("audit", namespace).queue, connection.channel()
            wait_for(
                lambda: channel.queue_declare(queue, passive=True).method.message_count == 0,
                "all are handed over",
            )
        exchange.kill("audit")
        other.execute("ROLLBACK")

    exchange.start("audit")
    last = exchange.publish("m-last")
    found = exchange.await_facts(lambda facts: last in facts["audit"], "the last one arrives")

    assert set(held) < set(found["accepted"])
    assert found["audit"] == [last]


def test_plain_loses_what_it_commits_while_the_broker_is_away(make: Make, proxy: Proxy) -> None:
    """Accepted with 202, and nothing remembers to send it; then it lives on by itself."""
    exchange = make("plain")
    exchange.start("api", DELIVERY_AMQP_URL=proxy.url)
    exchange.start("audit")
    first = exchange.publish("m-1")
    # Cut earlier, the line would take the first with it, too: accepted, and not yet sent.
    exchange.await_facts(lambda facts: facts["audit"] == [first], "the first one arrives")
    proxy.refusing = True
    proxy.cut()
    lost = exchange.publish("m-2")
    assert exchange.said("api", "connection.lost") == 1
    assert exchange.said("api", f"publish.failed event_id={lost}") == 1
    proxy.refusing = False

    last = exchange.publish("m-3")
    found = exchange.await_facts(lambda facts: last in facts["audit"], "the last one arrives")

    assert lost in found["accepted"]
    assert found["audit"] == [first, last]


# -- article


def test_article_leaves_a_row_stuck_when_its_relay_is_killed(make: Make, proxy: Proxy) -> None:
    """Killed while it waits for a confirm: IN_PROGRESS, and no other relay looks at it again."""
    exchange = make("article")
    exchange.start("api", "audit")
    exchange.start("relay", DELIVERY_AMQP_URL=proxy.url)
    proxy.swallow_requests = True
    stuck = exchange.publish("m-1")
    wait_for(lambda: proxy.swallowed > 0, "the relay has sent it")
    assert exchange.facts()["pending"] == [stuck]  # the relay lives, and works on it
    exchange.kill("relay")

    exchange.start("relay")
    last = exchange.publish("m-2")
    found = exchange.await_facts(lambda facts: last in facts["audit"], "the next one arrives")

    assert (found["pending"], found["stuck"]) == ([], [stuck])
    assert found["audit"] == [last]


def test_article_doubles_what_was_confirmed_to_nobody(make: Make, proxy: Proxy) -> None:
    """The broker has it, the confirm is lost: the next attempt has another message_id."""
    exchange = make("article")
    exchange.start("api", "audit")
    exchange.start("relay", DELIVERY_AMQP_URL=proxy.url)
    proxy.swallow_replies = True
    event_id = exchange.publish("m-1")
    exchange.await_facts(lambda facts: facts["audit"] == [event_id], "it arrives")
    wait_for(lambda: proxy.swallowed > 0, "the confirm is swallowed")
    proxy.swallow_replies = False
    proxy.cut()

    found = exchange.await_facts(lambda facts: not facts["pending"], "it is SENT")
    found = exchange.await_facts(lambda facts: len(facts["audit"]) > 1, "it arrives again")

    assert found["audit"] == [event_id, event_id]
    assert exchange.said("relay", "connection.lost") == 1


def test_article_never_does_what_a_killed_recipient_had_only_seen(
    make: Make, servers: dict[str, str], namespace: str
) -> None:
    """The key is set, the effect waits for a lock, the process dies: skipped for ever."""
    exchange = make("article")
    exchange.start("api", "relay", "audit")
    dsn = servers["BASELINE_POSTGRES"]
    with psycopg.connect(dsn, autocommit=True) as watch, psycopg.connect(dsn) as other:
        other.execute(f'LOCK TABLE "{namespace}".audit IN ACCESS EXCLUSIVE MODE')
        lost = exchange.publish("m-1")
        waits = (
            "SELECT FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        )
        wait_for(
            lambda: watch.execute(waits, (f"{namespace} audit",)).fetchone() is not None,
            "the recipient is between key and effect",
        )
        exchange.kill("audit")
        other.rollback()

    exchange.start("audit")
    last = exchange.publish("m-2")
    found = exchange.await_facts(lambda facts: last in facts["audit"], "the next one arrives")

    assert found["audit"] == [last]
    assert lost in found["accepted"]
    assert (found["pending"], found["stuck"]) == ([], [])


def test_article_lets_an_older_revision_win(make: Make, broker: Broker, namespace: str) -> None:
    """Revision 1 fails and is tried later; revision 2 goes at once, and is overwritten."""
    exchange = make("article")
    exchange.start("api", "catalog", "audit")
    exchange.start("relay", BASELINE_RETRY_AFTER="3600")
    with connect(BrokerSettings(url=broker.amqp_url)) as connection:
        channel, names = connection.channel(), events_exchange(namespace)
        routes = [Route(recipient, namespace) for recipient in ("catalog", "audit")]
        for route in routes:
            channel.queue_unbind(route.queue, names, route.pattern)
        old = exchange.publish("m-1", "Old")
        exchange.await_said("relay", "ERROR publish.failed")
        for route in routes:
            channel.queue_bind(route.queue, names, route.pattern)
    new = exchange.publish("m-1", "New")
    found = exchange.await_facts(
        lambda facts: facts["audit"] and facts["catalog"], "the second one arrives"
    )
    assert (found["audit"], found["pending"]) == ([new], [old])

    exchange.kill("relay")
    exchange.start("relay", BASELINE_RETRY_AFTER="0")
    found = exchange.await_facts(
        lambda facts: facts["audit"] == [new, old] and facts["catalog"]["m-1"] == [1, "Old", old],
        "the older one wins",
    )
    assert found["accepted"] == {old: ["m-1", 1], new: ["m-1", 2]}
