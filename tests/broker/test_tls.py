"""Over TLS everything works as before, and whatever is wrong with it is said."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from pika import BasicProperties
from support.exchange import exchange_on
from support.secure import Secure, secure_broker
from support.waiting import wait_for

from delivery.broker import Broker, Kind
from delivery.confirms import Outcome
from delivery.connection import AccessRefused, BrokerSettings, BrokerUnavailable, connect
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message
from delivery.ready import wait_ready
from delivery.vitals import healths

each_way = pytest.mark.parametrize("opened", [connect, ConfirmedChannel])


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """A broker that speaks nothing but TLS."""
    with secure_broker(tmp_path_factory.mktemp("tls")) as started:
        wait_ready(started.trusted, print, running=started.machine.running)
        yield started


@pytest.fixture
def stranger(tmp_path: Path) -> str:
    """The file of a CA that did not sign it."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "stranger.pem"))
    return str(tmp_path / "stranger.pem")


@pytest.fixture
def expired(tmp_path: Path) -> Iterator[str]:
    """A server whose certificate was good until an hour ago; no broker is needed to see that."""
    ca, an_hour_ago = (
        trustme.CA(),
        datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1),
    )
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost", not_after=an_hour_ago).configure_cert(context)

    def answer(server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:  # closed: the test is over
                return
            try:
                context.wrap_socket(client, server_side=True).close()
            except OSError:
                client.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        port = server.getsockname()[1]
        yield f"amqps://u:p@localhost:{port}/%2F?cacertfile={tmp_path / 'ca.pem'}"
        server.shutdown(socket.SHUT_RDWR)


def settings(url: str) -> BrokerSettings:
    return BrokerSettings(url=url, connect_timeout=15.0)


@each_way
def test_with_its_ca_a_broker_is_reached(secure: Secure, opened) -> None:
    """Both of pika's connections: one that waits for each answer, one with many in flight."""
    with opened(settings(secure.trusted)):
        pass


def test_confirms_come_over_tls(secure: Secure) -> None:
    """More than one record of TLS at once, and a big one."""
    with connect(settings(secure.trusted)) as connection:
        connection.channel().queue_declare("tls", durable=True)
    bodies = [b"x" * size for size in (1, 16_385, 1_000_000)] * 20
    messages = [
        Message("", "tls", BasicProperties(message_id=str(n)), body)
        for n, body in enumerate(bodies)
    ]
    with ConfirmedChannel(settings(secure.trusted), timeout=60) as channel:
        answers = channel.send_all(messages)
    assert [answer.outcome for answer in answers] == [Outcome.CONFIRMED] * len(messages)


@each_way
def test_a_certificate_of_another_ca_is_refused(secure: Secure, stranger: str, opened) -> None:
    """Neither the system's CAs nor a stranger's signed it; nothing of ours is sent."""
    for url in (secure.url, f"{secure.url}?cacertfile={stranger}"):
        with pytest.raises(AccessRefused, match=r"certificate of localhost:\d+ is refused: .*cert"):
            opened(settings(url))


@each_way
def test_a_certificate_for_another_host_is_refused(secure: Secure, opened) -> None:
    """It is ours, and trusted; but it was made for localhost."""
    url = secure.trusted.replace("@localhost:", "@127.0.0.1:")
    with pytest.raises(AccessRefused, match=r"refused: .*mismatch.* '127\.0\.0\.1'"):
        opened(settings(url))


@each_way
def test_an_expired_certificate_is_refused(expired: str, opened) -> None:
    """The day comes for each certificate."""
    with pytest.raises(AccessRefused, match="is refused: certificate has expired"):
        opened(settings(expired))


@each_way
def test_plain_amqp_to_a_tls_port_says_what_it_could_be(secure: Secure, opened) -> None:
    """The broker hangs up without a word; so it may as well be starting."""
    with pytest.raises(BrokerUnavailable, match=r"it speaks TLS \(amqps://\)") as refusal:
        opened(settings(secure.url.replace("amqps://", "amqp://")))
    assert not isinstance(refusal.value, AccessRefused)


@each_way
def test_tls_to_a_plain_port_says_what_it_could_be(broker: Broker, opened) -> None:
    """What comes back is no TLS."""
    with pytest.raises(BrokerUnavailable, match=r"it speaks no TLS \(amqp://\)"):
        opened(settings(broker.amqp_url.replace("amqp://", "amqps://")))


def test_the_processes_work_over_tls_and_their_health_says_why_not(
    secure: Secure, stranger: str, tmp_path: Path, namespace: str
) -> None:
    """With the CA named in the environment; with another one each is refused, and says so."""
    given = Broker(Kind.GIVEN, secure.trusted, None, "unknown")
    with exchange_on(given, tmp_path, namespace) as exchange:
        own = {"DELIVERY_AMQP_URL": secure.url, "DELIVERY_AMQP_CA": secure.ca}
        exchange.start("relay", "audit", **own)
        (event_id,) = exchange.accept("m-1")
        exchange.await_receipt("audit", event_id)
        wrong = {**own, "DELIVERY_AMQP_CA": stranger}
        exchange.cast.start("catalog", ["receive", "catalog"], **wrong)
        data = exchange.config.stores.data
        wait_for(lambda: healths(data, "catalog"), "the catalog starts", 60)
        wait_for(lambda: healths(data, "catalog")[0].state.value == "refused", "it is refused", 60)
        assert "certificate" in healths(data, "catalog")[0].reason
