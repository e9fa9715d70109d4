"""What the live page is told by a real broker: its line, and the demo's parking place."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.exchange import Exchange, delivery, environment, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker, Kind
from delivery.config import Config
from delivery.confirms import Outcome
from delivery.connection import BrokerSettings, connect
from delivery.live import Onlooker
from delivery.live_demo import beside
from delivery.observe import depth
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope
from delivery.stage_set import stage_set
from delivery.stopping import Stop
from delivery.unrouted import parking_of
from delivery.wiretap import Wiretap


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        yield opened


def typed(line: str) -> dict[str, str]:
    """Return what a shell's ``export`` makes of *line*."""
    return dict(each.split("=", 1) for each in shlex.split(line)[1:])


def test_a_line_that_was_lost_while_nobody_watched_is_no_news(
    exchange: Exchange, broker: Broker
) -> None:
    """A broker closes the line of a client that is silent, as a page is that nobody has open."""
    login = urlsplit(broker.amqp_url)
    user, password = login.username or "guest", login.password or "guest"
    with Wiretap(broker.amqp_url, user=user, password=password, heartbeat=30) as tap:
        config = replace(exchange.config, broker=BrokerSettings(url=tap.url))
        with closing(Onlooker(config.stores, lambda: config)) as lookout:

            def age() -> float:
                return float(lookout.snapshot()["broker"]["age"])

            with lookout.watched():
                wait_for(lambda: lookout.snapshot()["broker"]["seen"], "the broker is seen")
            wait_for(lambda: age() > 1.5, "nobody looks any more")
            assert tap.cut() == 1
            with lookout.watched():
                wait_for(lambda: age() < 1, "somebody looks again")
                assert lookout.snapshot()["broker"]["seen"]
            told = [line.what for line in lookout.story.since(0) if line.who == "broker"]
            assert told == ["in sight"]


def test_the_demo_empties_its_parking_place_and_removes_it_at_the_end(
    breakable_broker: Broker,
) -> None:
    """A reset begins with nothing parked, and still catches; a given broker keeps nothing of it."""
    given = replace(breakable_broker, kind=Kind.GIVEN, machine=None)
    with stage_set(os.environ, given, Stop(), parking_of) as (config, hand, _):
        assert config.parking is not None
        # What the demo says to type is enough for a command that acts on its exchange.
        own = environment(**typed(beside(config, breakable_broker)))
        assert delivery("unrouted", "declare", environ=own).returncode == 0

        def parked() -> int | None:
            assert config.parking is not None
            with connect(config.broker) as connection:
                found = depth(connection, config.parking.queue)
            return found and found.ready

        def publish() -> None:
            about = envelope("m-1", "material.published.v1", timestamp=1)
            with ConfirmedChannel(config.broker) as channel:
                sent = channel.send(Message(config.exchange, "typo", about, b"{}"))
            assert sent.outcome is Outcome.CONFIRMED

        publish()
        assert parked() == 1
        hand.reset()
        assert parked() == 0
        publish()
        assert parked() == 1
    assert parked() is None
    assert config.management is not None
    with pytest.raises(OSError, match="404"):
        config.management.get(f"/api/policies/%2F/{config.parking.queue}")


def test_the_demo_says_how_to_join_it_and_no_password_but_its_own(
    breakable_broker: Broker, tmp_path: Path
) -> None:
    """Its own broker is there to be broken; a given one's address may hold somebody's secret."""
    folder = tmp_path / "a folder"
    config = Config.on(breakable_broker, folder, namespace="live-1", retries_ms=(1000, 2000))
    rest = f"DELIVERY_DATA='{folder}' DELIVERY_NAMESPACE=live-1 DELIVERY_RETRIES_MS=1000,2000"
    given = replace(breakable_broker, kind=Kind.GIVEN, machine=None)
    assert beside(config, given) == f"export {rest}"
    own = typed(beside(config, breakable_broker))
    assert own["DELIVERY_AMQP_URL"] == breakable_broker.amqp_url
    assert own["DELIVERY_MANAGEMENT_URL"] == breakable_broker.management_url
