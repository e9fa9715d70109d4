"""What a publisher knows: confirmed, returned, refused or unknown, and never more than is true."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
from pika import BasicProperties, SelectConnection
from support.events import event, message
from support.proxy import Proxy, proxied
from support.queues import World
from support.waiting import wait_for

from delivery.codec import encode
from delivery.confirms import Answer, NotConfirmed, Outcome
from delivery.connection import BrokerUnavailable
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message
from delivery.topology import Binding, Exchange, Queue, Topology, declare
from delivery.wire import ROOM


def test_a_plain_confirm_hides_what_nobody_gets_and_ours_does_not(world: World) -> None:
    """Case 1: unroutable is acked by a plain confirm-mode channel, and RETURNED by ours."""
    declare(world.connection, Topology((Exchange(world.catalog.exchange),)))
    of = event()

    plain = world.connection.channel()
    plain.confirm_delivery()
    plain.basic_publish(world.catalog.exchange, of.type, encode(of))  # no exception: an ack

    with ConfirmedChannel(world.settings) as channel:
        answer = channel.send(message(of, world.namespace))
    assert answer.outcome is Outcome.RETURNED
    assert "312 NO_ROUTE" in answer.detail
    assert of.type in answer.detail


def test_a_confirmed_message_is_in_every_queue_that_wants_it(world: World) -> None:
    """Identity, type and bytes arrive as they were sent, and persistent."""
    world.declare()
    of = event(title="Ünïcödé 🐇")

    with ConfirmedChannel(world.settings) as channel:
        assert channel.send(message(of, world.namespace)) == Answer(Outcome.CONFIRMED)

    for route in (world.catalog, world.audit):
        ((properties, body),) = world.take(route.queue)
        assert body == encode(of)
        assert (properties.message_id, properties.type) == (of.id, of.type)
        assert (properties.delivery_mode, properties.content_encoding) == (2, "utf-8")


def test_a_full_queue_that_rejects_is_refused(world: World) -> None:
    """x-max-length 1 with reject-publish: the first is confirmed, the second REFUSED."""
    queue = Queue(world.catalog.queue, {"x-max-length": 1, "x-overflow": "reject-publish"})
    exchange = world.catalog.exchange
    bindings = (Binding(exchange, queue.name, world.catalog.pattern),)
    declare(world.connection, Topology((Exchange(exchange),), (queue,), bindings))

    with ConfirmedChannel(world.settings) as channel:
        first = channel.send(message(event(), world.namespace))
        second = channel.send(message(event(), world.namespace))

        assert (first.outcome, second.outcome) == (Outcome.CONFIRMED, Outcome.REFUSED)
        with pytest.raises(NotConfirmed, match="refused"):
            channel.move(b"{}", BasicProperties(message_id="x"), to_queue=queue.name)
    assert world.ready(queue.name) == 1


def test_each_of_many_messages_in_flight_gets_its_own_answer(world: World) -> None:
    """2,000 with a window of 500, every third one unroutable: no answer goes to a neighbour."""
    world.declare(routes=[world.catalog])
    messages = [message(event(), world.namespace) for _ in range(2_000)]
    for n in range(0, 2_000, 3):
        messages[n] = replace(messages[n], routing_key="nobody.listens")

    with ConfirmedChannel(world.settings, timeout=5.0, window=500) as channel:
        answers = channel.send_all(messages)

    assert [answer.outcome for answer in answers] == [
        Outcome.CONFIRMED if n % 3 else Outcome.RETURNED for n in range(2_000)
    ]
    assert world.ready(world.catalog.queue) == 1_333


def test_a_return_and_its_ack_do_not_end_the_channel(world: World) -> None:
    """After an unroutable message the next good one goes out on the same channel."""
    world.declare(routes=[world.catalog])
    good = message(event(), world.namespace)

    with ConfirmedChannel(world.settings) as channel:
        assert channel.send(replace(good, routing_key="x")).outcome is Outcome.RETURNED
        assert channel.send(good).outcome is Outcome.CONFIRMED


def cut_when_swallowed(proxy: Proxy) -> threading.Thread:
    def wait_and_cut() -> None:
        wait_for(lambda: proxy.swallowed, "the broker's reply is swallowed")
        proxy.cut()

    thread = threading.Thread(target=wait_and_cut)
    thread.start()
    return thread


def test_a_connection_lost_before_the_confirm_is_unknown(world: World) -> None:
    """Case 2: the message has arrived, but its publisher cannot know."""
    world.declare(routes=[world.catalog])
    with proxied(world.settings.url) as proxy:
        with ConfirmedChannel(replace(world.settings, url=proxy.url)) as channel:
            proxy.swallow_replies = True
            cutting = cut_when_swallowed(proxy)
            answer = channel.send(message(event(), world.namespace))
            cutting.join()

            with pytest.raises(BrokerUnavailable):
                channel.send(message(event(), world.namespace))
            with pytest.raises(BrokerUnavailable):
                channel.serve()
        assert proxy.swallowed > 0
    assert answer.outcome is Outcome.UNKNOWN
    assert answer.detail
    assert world.ready(world.catalog.queue) == 1


def test_a_request_that_never_reached_the_broker_is_unknown_too(world: World) -> None:
    """Case 2, the other side: the same words, and the message has not arrived."""
    world.declare(routes=[world.catalog])
    with proxied(world.settings.url) as proxy:
        with ConfirmedChannel(replace(world.settings, url=proxy.url)) as channel:
            proxy.swallow_requests = True
            cutting = cut_when_swallowed(proxy)
            answer = channel.send(message(event(), world.namespace))
            cutting.join()
        assert proxy.swallowed > 0
    assert answer.outcome is Outcome.UNKNOWN
    assert world.ready(world.catalog.queue) == 0


def test_silence_is_unknown_after_the_timeout(world: World) -> None:
    """Case 2: no reply and no cut. pika has no deadline for confirms; the channel has."""
    world.declare(routes=[world.catalog])
    with proxied(world.settings.url) as proxy:
        with ConfirmedChannel(replace(world.settings, url=proxy.url), timeout=0.5) as channel:
            proxy.swallow_replies = True
            begun = time.monotonic()
            answer = channel.send(message(event(), world.namespace))
            took = time.monotonic() - begun
            with pytest.raises(BrokerUnavailable, match="no confirm within"):
                channel.send(message(event(), world.namespace))
        assert proxy.swallowed > 0
    assert answer == Answer(Outcome.UNKNOWN, "no confirm within 0.5 s")
    assert 0.5 <= took < 5.0  # and not its usual ten
    assert world.ready(world.catalog.queue) == 1


def test_what_was_not_sent_before_the_loss_has_no_answer(world: World) -> None:
    """The window bounds what can become unknown; the rest is untried, and safe to send later."""
    world.declare(routes=[world.catalog])
    with proxied(world.settings.url) as proxy:
        settings = replace(world.settings, url=proxy.url)
        with ConfirmedChannel(settings, timeout=0.5, window=3) as channel:
            proxy.swallow_replies = True
            answers = channel.send_all([message(event(), world.namespace) for _ in range(10)])

    assert Counter(answer.outcome for answer in answers) == {Outcome.UNKNOWN: 3}
    assert world.ready(world.catalog.queue) == 3


def test_a_missing_exchange_is_unknown_and_named(world: World) -> None:
    """The broker closes the channel (404): no answer came, and the detail says why."""
    with ConfirmedChannel(world.settings) as channel:
        answer = channel.send(message(event(), world.namespace))

    assert answer.outcome is Outcome.UNKNOWN
    assert f"no exchange '{world.namespace}.events'" in answer.detail


def test_a_move_to_a_missing_queue_is_not_confirmed_and_names_it(world: World) -> None:
    """A copy that went nowhere must not let its original go."""
    with (
        ConfirmedChannel(world.settings) as channel,
        pytest.raises(NotConfirmed, match=r"'no\.such\.queue'.*returned.*original stays"),
    ):
        channel.move(b"{}", BasicProperties(message_id="x"), to_queue="no.such.queue")


def test_a_message_larger_than_a_frame_arrives_whole(world: World) -> None:
    """A body of 300 KB is split into frames, and confirmed once."""
    world.declare(routes=[world.catalog])
    body = b"x" * 300_000
    big = Message("", world.catalog.queue, BasicProperties(message_id="big"), body)

    with ConfirmedChannel(world.settings) as channel:
        assert channel.send(big).outcome is Outcome.CONFIRMED

    ((_, arrived),) = world.take(world.catalog.queue)
    assert arrived == body


def test_messages_in_flight_share_their_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 messages go to the system in a few large pieces, bounded, and not three for each."""
    world.declare(routes=[world.audit])
    pieces: list[int] = []
    hand_over = SelectConnection._adapter_emit_data

    def noting(connection: SelectConnection, data: bytes) -> None:
        pieces.append(len(data))
        hand_over(connection, data)

    monkeypatch.setattr(SelectConnection, "_adapter_emit_data", noting)
    with ConfirmedChannel(world.settings) as channel:
        channel.send_all([message(event(), world.namespace) for _ in range(400)])

    opening_and_closing = 20
    assert len(pieces) < opening_and_closing + 10
    assert max(pieces) < ROOM + 131_072  # one frame more
