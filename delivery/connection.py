"""Where the broker is, and how one connection to it is opened."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

import pika
from pika.adapters.blocking_connection import BlockingConnection
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import (
    AMQPError,
    AuthenticationError,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from delivery.address import URL, given_url, parameters_of
from delivery.addresses import addresses
from delivery.any_headers import read_any_headers
from delivery.errors import DeliveryError, TemporaryError

__all__ = [
    "ACCESS_REFUSED",
    "AccessRefused",
    "BrokerSettings",
    "BrokerUnavailable",
    "connect",
    "describe",
    "open_any",
    "unavailable",
]

ACCESS_REFUSED = 403  # AMQP 0-9-1, reply codes
_Opened = TypeVar("_Opened")


# What pika raises when it can't connect. Not all of it is an AMQPError: a name that does not
# resolve and a failed TLS handshake are OSErrors, a handshake that nobody finishes is neither.
CONNECT_ERRORS = (AMQPError, AMQPConnectorException, OSError)


class BrokerUnavailable(TemporaryError):
    """The broker could not be reached, or went away; a later attempt may succeed."""

    event = "connection.lost"


class AccessRefused(BrokerUnavailable):
    """The broker is there, but user, password, right or certificate is not as it must be.

    Somebody has to mend that; a later attempt may succeed then.
    """

    event = "access.refused"


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """Everything needed to reach the broker; times are in seconds.

    Heartbeat and blocked_timeout are always set: pika's defaults leave a dead connection unnoticed
    for two minutes, and a publish that a broker alarm blocks waiting for ever. The URL may ask for
    another heartbeat, ``?heartbeat=10``, as RabbitMQ's URI query parameters do. It may be several,
    separated by commas: the nodes of one cluster, any of which will do.
    """

    url: str = field(repr=False)  # holds a password
    name: str = "delivery"
    heartbeat: int = 30
    blocked_timeout: float = 20.0
    connect_timeout: float = 5.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, name: str = "delivery") -> BrokerSettings:
        """Read ``DELIVERY_AMQP_URL`` (amqp://user:password@host:port/vhost) from *environ*.

        Password and CA may be given apart, see ``given_url``. Raises DeliveryError if none is set.
        """
        url = given_url(environ)
        if not url:
            raise DeliveryError(f"no broker is named: set {URL}")
        return cls(url=url, name=name)

    @property
    def nodes(self) -> list[BrokerSettings]:
        """The same settings for each node by itself."""
        return [replace(self, url=url) for url in addresses(self.url)]

    def parameters(self) -> pika.URLParameters:
        """Return pika's parameters for one connection. Raises DeliveryError for no AMQP URL."""
        parameters = parameters_of(self.url)
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
    """Open one connection; the caller closes it. Raises BrokerUnavailable, AccessRefused.

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
    failures: list[BrokerUnavailable] = []
    for node in random.sample(nodes, len(nodes)):
        try:
            return opened(node)
        except BrokerUnavailable as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    refused = all(isinstance(each, AccessRefused) for each in failures)
    raise (AccessRefused if refused else BrokerUnavailable)("; ".join(map(str, failures)))


def _connect(settings: BrokerSettings) -> BlockingConnection:
    try:
        return BlockingConnection(settings.parameters())
    except CONNECT_ERRORS as error:
        raise unavailable(settings, error) from error


def unavailable(settings: BrokerSettings, error: BaseException) -> BrokerUnavailable:
    """Return what a failed attempt to connect means, in words that name neither password."""
    where, cause = settings.address, _root(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return AccessRefused(f"the certificate of {where} is refused: {cause.verify_message}")
    user = getattr(settings.parameters().credentials, "username", "")
    match cause:
        case AuthenticationError() | ProbableAuthenticationError():
            return AccessRefused(f"{where} refuses user {user!r}: unknown, or a wrong password")
        case ProbableAccessDeniedError():
            return AccessRefused(f"{where} refuses user {user!r}: {describe(cause)}")
    hint = ""
    if isinstance(cause, IncompatibleProtocolError):
        hint = "; it is starting, or it speaks TLS (amqps://)"
    elif isinstance(cause, ssl.SSLError):
        hint = "; it is starting, or it speaks no TLS (amqp://)"
    return BrokerUnavailable(f"no broker at {where}: {describe(cause)}{hint}")


def describe(error: BaseException) -> str:
    """Return one line for people: pika's connection errors have an empty ``str()``."""
    cause = _root(error)
    return str(cause) or repr(cause)


def _root(error: BaseException) -> BaseException:
    tried = getattr(error, "exceptions", None) or [getattr(error, "exception", None)]
    for cause in (*reversed(tried), *error.args):  # the last address that was tried comes first
        if isinstance(cause, BaseException):
            return _root(cause)
    return error
