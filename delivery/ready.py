"""A broker is ready when it confirms a message and gives it back, not when its port is open."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from delivery.address import parameters_of
from delivery.addresses import addresses
from delivery.errors import DeliveryError
from delivery.management import Management

__all__ = ["REFUSED", "NotReady", "probe", "wait_ready"]


# What a broker that is up says to a user, virtual host or right that it does not know. One that
# is starting may hang up at the same points, and pika then reports the same.
REFUSED = (
    AuthenticationError,
    ProbableAuthenticationError,
    ProbableAccessDeniedError,
    ChannelClosedByBroker,
)


class NotReady(DeliveryError):
    """The broker did not confirm a publish in time: look at why, then try again."""


def probe(amqp_url: str) -> str:
    """Send one message through a queue of our own, confirmed; return the broker's version.

    Of several addresses any will do. Raises AMQPError or OSError: whatever stood in the way. A 403
    names the right that is missing.
    """
    nodes = [_parameters(each) for each in addresses(amqp_url)]
    with _quiet(), pika.BlockingConnection(nodes) as connection:
        channel = connection.channel()
        queue = f"delivery.probe.{uuid.uuid4()}"
        channel.queue_declare(queue, exclusive=True, auto_delete=True)
        channel.confirm_delivery()
        channel.basic_publish("", queue, b"ready?", mandatory=True)
        channel.basic_get(queue, auto_ack=True)
        # pika 1.3 keeps what the server said about itself in a private place only.
        said = getattr(connection, "_impl").server_properties or {}  # noqa: B009
        return str(said.get("version", "unknown"))


def wait_ready(
    amqp_url: str,
    say: Callable[[str], None],
    *,
    management_url: str | None = None,
    deadline: float = 180.0,  # on two busy cores one of three nodes was seen to need over 60
    running: Callable[[], bool] = lambda: True,
    hopeless: tuple[type[Exception], ...] = (),
) -> str:
    """Probe until the broker is ready and return its version; NotReady after `deadline` seconds.

    A starting broker refuses, resets (behind a published Docker port) or says something that
    is not AMQP: all of that only means "not yet". A broker whose process ended has no "yet".
    """
    start = time.monotonic()
    next_word = start + 5
    while True:
        try:
            version = probe(amqp_url)
            if management_url is not None:
                # It comes up a moment after AMQP.
                Management(management_url, amqp_url).get("/api/overview")
            return version
        except hopeless as error:
            raise NotReady(f"waiting will not help: {error!r}") from error
        except (AMQPError, AMQPConnectorException, OSError) as error:
            seen = repr(error)  # a refused port's error has an empty str
        now = time.monotonic()
        if not running():
            raise NotReady(f"the broker ended before it was ready; last seen: {seen}")
        if now - start > deadline:
            raise NotReady(f"no confirmed publish within {deadline:g} s; last seen: {seen}")
        if now > next_word:
            say(f"still waiting for the broker: {now - start:.0f} s, of {deadline:g} at most")
            next_word = now + 5
        time.sleep(0.2)


def _parameters(amqp_url: str) -> pika.URLParameters:
    try:
        parameters = parameters_of(amqp_url)
    except DeliveryError as error:
        raise NotReady(f"no AMQP URL to connect with: {error}") from error
    parameters.connection_attempts = 1
    parameters.socket_timeout = 5
    parameters.stack_timeout = 10
    parameters.blocked_connection_timeout = 5  # a broker in alarm accepts everything but this
    return parameters


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep pika's own error log out of a loop in which errors are expected."""
    logger = logging.getLogger("pika")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
