"""Where the broker is, and how one connection to it is opened."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

import pika
from pika.adapters.blocking_connection import BlockingConnection
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

from delivery.addresses import addresses
from delivery.any_headers import read_any_headers
from delivery.errors import DeliveryError, TemporaryError

__all__ = ["BrokerSettings", "BrokerUnavailable", "connect", "describe", "open_any"]

_Opened = TypeVar("_Opened")


# What pika raises when it can't connect. Not all of it is an AMQPError: a name that does not
# resolve and a failed TLS handshake are OSErrors, a handshake that nobody finishes is neither.
CONNECT_ERRORS = (AMQPError, AMQPConnectorException, OSError)


class BrokerUnavailable(TemporaryError):
    """The broker could not be reached, or went away; a later attempt may succeed."""

    event = "connection.lost"


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """Everything needed to reach the broker; times are in seconds.

    Heartbeat and blocked_timeout are always set: pika's defaults leave a dead connection unnoticed
    for two minutes, and a publish that a broker alarm blocks waiting for ever. The URL may ask for
    another heartbeat, ``?heartbeat=10``, as RabbitMQ's URI query parameters do. It may be several,
    separated by commas: the nodes of one cluster, any of which will do.
    """

    url: str
    name: str = "delivery"
    heartbeat: int = 30
    blocked_timeout: float = 20.0
    connect_timeout: float = 5.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, name: str = "delivery") -> BrokerSettings:
        """Read ``DELIVERY_AMQP_URL`` (amqp://user:password@host:port/vhost) from *environ*.

        Raises DeliveryError if it is not set.
        """
        url = environ.get("DELIVERY_AMQP_URL", "")
        if not url:
            raise DeliveryError("no broker is named: set DELIVERY_AMQP_URL")
        return cls(url=url, name=name)

    @property
    def nodes(self) -> list[BrokerSettings]:
        """The same settings for each node by itself."""
        return [replace(self, url=url) for url in addresses(self.url)]

    def parameters(self) -> pika.URLParameters:
        """Return pika's parameters for one connection. Raises DeliveryError for no AMQP URL."""
        try:
            if not self.url.startswith(("amqp://", "amqps://")):  # pika would take any scheme
                raise ValueError("it must begin with amqp:// or amqps://")
            parameters = pika.URLParameters(self.url)
        except (ValueError, IndexError, TypeError) as error:  # TypeError: a user, no password
            raise DeliveryError(
                f"the broker's URL can't be read ({error});"
                " expected amqp://user:password@host:5672/%2F"
            ) from error
        if "heartbeat" not in parse_qs(urlsplit(self.url).query):
            parameters.heartbeat = self.heartbeat
        parameters.blocked_connection_timeout = self.blocked_timeout
        parameters.socket_timeout = self.connect_timeout
        parameters.stack_timeout = self.stack_timeout
        parameters.client_properties = {"connection_name": self.name}
        return parameters

    @property
    def stack_timeout(self) -> float:
        """Seconds for the whole way from the first packet to the opened connection."""
        return self.connect_timeout * 2

    @property
    def address(self) -> str:
        """Return host:port/vhost of every node, without the password, for people to read."""
        if len(nodes := self.nodes) > 1:
            return ", ".join(node.address for node in nodes)
        parameters = self.parameters()
        vhost = "" if parameters.virtual_host == "/" else f"/{parameters.virtual_host}"
        return f"{parameters.host}:{parameters.port}{vhost}"


def connect(settings: BrokerSettings) -> BlockingConnection:
    """Open one connection; the caller closes it. Raises BrokerUnavailable.

    One connection serves one thread and one direction: a publisher that an alarm blocks must not
    hold up acks.
    """
    read_any_headers()
    return open_any(settings, _connect)


def open_any(settings: BrokerSettings, opened: Callable[[BrokerSettings], _Opened]) -> _Opened:
    """Return what *opened* makes of the first node that lets it; BrokerUnavailable if none does.

    In a new order each time: a node that takes connections but has lost the others, and so can
    confirm nothing, must not be everybody's first choice for ever.
    """
    nodes = settings.nodes
    failures = []
    for node in random.sample(nodes, len(nodes)):
        try:
            return opened(node)
        except BrokerUnavailable as error:
            failures.append(str(error))
    raise BrokerUnavailable("; ".join(failures))


def _connect(settings: BrokerSettings) -> BlockingConnection:
    try:
        return BlockingConnection(settings.parameters())
    except CONNECT_ERRORS as error:
        raise BrokerUnavailable(f"no broker at {settings.address}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """Return one line for people: pika's connection errors have an empty ``str()``."""
    causes = getattr(error, "exceptions", None) or error.args
    for cause in causes:
        if isinstance(cause, BaseException):
            return describe(cause)
    return str(error) or repr(error)
