"""How long a confirmed channel waits, how much it lets fly, and what it says when it is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.events import event, message
from support.proxy import Proxy, proxied
from support.world import World

from delivery.confirms import Outcome
from delivery.connection import AccessRefused, BrokerUnavailable
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, properties_of


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    with proxied(world.settings.url) as opened:
        yield opened


def through(world: World, proxy: Proxy, **options: float) -> ConfirmedChannel:
    return ConfirmedChannel(replace(world.settings, url=proxy.url), **options)  # type: ignore[arg-type]


def test_an_answer_is_not_waited_for_longer_than_it_takes(world: World) -> None:
    """The timeout is a limit, not a pause."""
    world.declare(routes=[world.catalog])

    with ConfirmedChannel(world.settings, timeout=20.0) as channel:
        begun = time.monotonic()
        for _ in range(3):
            assert channel.send(message(event(), world.namespace)).outcome is Outcome.CONFIRMED
    assert time.monotonic() - begun < 10.0


def test_by_default_five_hundred_may_be_in_flight(world: World, proxy: Proxy) -> None:
    """No more can become unknown at once; the others are untried."""
    world.declare(routes=[world.catalog])
    messages = [message(event(), world.namespace) for _ in range(502)]

    with through(world, proxy, timeout=0.5) as channel:
        proxy.swallow_replies = True
        answers = channel.send_all(messages)

    assert [answer.outcome for answer in answers] == [Outcome.UNKNOWN] * 500


def test_a_cut_is_noticed_before_the_timeout(world: World, proxy: Proxy) -> None:
    """No answer can come any more: what is in flight is unknown at once."""
    world.declare(routes=[world.catalog])
    with through(world, proxy, timeout=25.0) as channel:
        proxy.cut()

        begun = time.monotonic()
        answer = channel.send(message(event(), world.namespace))

    assert time.monotonic() - begun < 10.0
    assert answer.outcome is Outcome.UNKNOWN
    assert "no confirm" not in answer.detail


def test_serving_ends_as_soon_as_the_connection_is_gone(world: World, proxy: Proxy) -> None:
    """Its caller can connect again; the error names the broker's address and the reason."""
    with through(world, proxy) as channel:
        proxy.cut()

        begun = time.monotonic()
        with pytest.raises(BrokerUnavailable) as gone:
            channel.serve(25.0)

    assert time.monotonic() - begun < 10.0
    address = replace(world.settings, url=proxy.url).address
    assert str(gone.value).startswith(f"the connection to {address} is gone: ")
    assert not str(gone.value).endswith(": ")
    assert not isinstance(gone.value, AccessRefused)


def test_a_channel_closed_for_a_missing_right_says_so_afterwards(world: World) -> None:
    """Trying again mends nothing: nobody may publish to an exchange that is internal."""
    internal = Message("amq.rabbitmq.trace", "key", properties_of(event()), b"")
    with ConfirmedChannel(world.settings) as channel:
        assert channel.send(internal).outcome is Outcome.UNKNOWN
        with pytest.raises(AccessRefused, match=r"is gone: .*ACCESS_REFUSED"):
            channel.send(internal)


def test_serving_without_a_time_only_looks(world: World) -> None:
    """A consumer calls it between two deliveries: it must not wait there."""
    with ConfirmedChannel(world.settings) as channel:
        begun = time.monotonic()
        for _ in range(10):
            channel.serve()
    assert time.monotonic() - begun < 5.0


def test_leaving_the_block_closes_the_connection(world: World) -> None:
    """Afterwards the channel says so instead of publishing."""
    with ConfirmedChannel(world.settings) as channel:
        pass

    with pytest.raises(BrokerUnavailable, match="is gone"):
        channel.send(message(event(), world.namespace))
