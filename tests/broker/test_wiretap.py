"""The line between a process and the real broker: cut at one frame, or silent."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.exceptions import AMQPError
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.confirms import Outcome
from delivery.connection import BrokerSettings, BrokerUnavailable, connect
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, envelope
from delivery.wiretap import ACK, PUBLISH, Trap, Wiretap, frames


@pytest.fixture
def tap(broker: Broker) -> Iterator[Wiretap]:
    login = urlsplit(broker.amqp_url)
    user, password = login.username or "guest", login.password or "guest"
    with Wiretap(broker.amqp_url, user=user, password=password, heartbeat=30) as opened:
        yield opened


def message(queue: str, number: int) -> Message:
    properties = envelope(f"id-{number}", "kind", timestamp=0, correlation_id="c")
    return Message("", queue, properties, b"x" * 100)


def test_what_goes_through_is_counted(tap: Wiretap, connection, namespace: str) -> None:
    queue = f"{namespace}.catalog"
    connection.channel().queue_declare(queue, durable=True)
    with ConfirmedChannel(BrokerSettings(url=tap.url)) as channel:
        answers = channel.send_all([message(queue, n) for n in range(5)])
    assert [answer.outcome for answer in answers] == [Outcome.CONFIRMED] * 5
    assert tap.seen[PUBLISH] == 5
    assert tap.seen[ACK] >= 1


def test_a_dropped_confirm_leaves_the_message_there_and_the_outcome_unknown(
    tap: Wiretap, connection, namespace: str
) -> None:
    queue = f"{namespace}.catalog"
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    with ConfirmedChannel(BrokerSettings(url=tap.url)) as publisher:
        trap = tap.set(Trap(ACK, towards_broker=False))
        (answer,) = publisher.send_all([message(queue, 1)])
    assert answer.outcome is Outcome.UNKNOWN
    assert (trap.sprung.is_set(), trap.dropped) == (True, 21)
    assert channel.queue_declare(queue, passive=True).method.message_count == 1


def test_half_a_publish_does_not_arrive(tap: Wiretap, connection, namespace: str) -> None:
    queue = f"{namespace}.catalog"
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    with ConfirmedChannel(BrokerSettings(url=tap.url)) as publisher:
        trap = tap.set(Trap(PUBLISH, towards_broker=True, half=True))
        (answer,) = publisher.send_all([message(queue, 1)])
    assert answer.outcome is Outcome.UNKNOWN
    assert trap.dropped > 0
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_a_trap_springs_once_and_the_next_connection_works(
    tap: Wiretap, connection, namespace: str
) -> None:
    queue = f"{namespace}.catalog"
    connection.channel().queue_declare(queue, durable=True)
    tap.set(Trap(ACK, towards_broker=False))
    outcomes = []
    for number in range(2):
        with ConfirmedChannel(BrokerSettings(url=tap.url)) as publisher:
            outcomes.append(publisher.send(message(queue, number)).outcome)
    assert outcomes == [Outcome.UNKNOWN, Outcome.CONFIRMED]


def test_a_trap_waits_for_its_own_direction(tap: Wiretap, connection, namespace: str) -> None:
    """A confirm is an ack that comes from the broker; the trap is for the reader's."""
    queue = f"{namespace}.catalog"
    connection.channel().queue_declare(queue, durable=True)
    trap = tap.set(Trap(ACK, towards_broker=True))
    with ConfirmedChannel(BrokerSettings(url=tap.url)) as publisher:
        assert publisher.send(message(queue, 1)).outcome is Outcome.CONFIRMED
    assert (trap.sprung.is_set(), trap.dropped) == (False, 0)


def test_a_body_that_looks_like_a_method_is_not_counted_as_one(
    tap: Wiretap, connection, namespace: str
) -> None:
    queue = f"{namespace}.catalog"
    connection.channel().queue_declare(queue, durable=True)
    properties = envelope("id-1", "kind", timestamp=0, correlation_id="c")
    with ConfirmedChannel(BrokerSettings(url=tap.url)) as publisher:
        body = struct.pack(">HH", *PUBLISH)
        assert publisher.send(Message("", queue, properties, body)).outcome is Outcome.CONFIRMED
    assert tap.seen[PUBLISH] == 1


def test_half_a_frame_is_passed_on_byte_by_byte() -> None:
    """A bare socket stands where the broker does: it would not show what it read of a frame."""
    greeting, payload = b"AMQP\0\0\x09\x01", struct.pack(">HH", *PUBLISH) + b"12345"
    frame = bytes([1, 0, 1]) + struct.pack(">I", len(payload)) + payload + b"\xce"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"amqp://u:p@127.0.0.1:{server.getsockname()[1]}/%2F"
        with Wiretap(address, user="u", password="p", heartbeat=3) as tap:
            trap = tap.set(Trap(PUBLISH, towards_broker=True, half=True))
            with socket.create_connection(("127.0.0.1", urlsplit(tap.url).port or 0)) as client:
                client.sendall(greeting + frame)
                broker, _ = server.accept()
                with broker, broker.makefile("rb") as reading:
                    assert reading.read() == greeting + frame[: len(frame) // 2]
            assert trap.dropped == len(frame) - len(frame) // 2
            wait_for(lambda: tap.open == 0, "the line is gone")


def test_a_silent_line_is_open_and_nothing_comes_until_it_speaks_again(
    tap: Wiretap, connection, namespace: str
) -> None:
    queue = f"{namespace}.catalog"
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    with ConfirmedChannel(BrokerSettings(url=tap.url), timeout=0.3) as publisher:
        with tap.silence():
            (answer,) = publisher.send_all([message(queue, 1)])
            assert answer.outcome is Outcome.UNKNOWN
            assert channel.queue_declare(queue, passive=True).method.message_count == 0
        wait_for(
            lambda: channel.queue_declare(queue, passive=True).method.message_count == 1,
            "what was held back arrives",
        )


def test_cut_ends_every_connection(tap: Wiretap) -> None:
    opened = [connect(BrokerSettings(url=tap.url)) for _ in range(2)]
    assert tap.cut() == 2
    for connection in opened:
        wait_for(lambda c=connection: _gone(c), "the connection is gone")


def _gone(connection) -> bool:
    try:
        connection.process_data_events(0)
    except AMQPError:
        return True
    return not connection.is_open


def test_a_dead_broker_looks_like_a_dead_broker() -> None:
    dead = Wiretap("amqp://u:p@127.0.0.1:1/%2F", user="u", password="p", heartbeat=3)
    with dead as tap, pytest.raises(BrokerUnavailable):
        connect(BrokerSettings(url=tap.url))


@given(st.lists(st.binary(max_size=40)), st.integers(1, 7))
def test_frames_are_cut_out_of_the_stream_whatever_the_pieces(
    payloads: list[bytes], size: int
) -> None:
    sent = [bytes([3, 0, 1, *len(p).to_bytes(4, "big")]) + p + b"\xce" for p in payloads]
    stream, pending, found = b"".join(sent), bytearray(), []
    for start in range(0, len(stream), size):
        pending += stream[start : start + size]
        found += frames(pending)
    assert found == sent
    assert not pending
