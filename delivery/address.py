"""The broker's address as the environment gives it, and what pika is told of it."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import pika

from delivery.addresses import addresses
from delivery.errors import DeliveryError

__all__ = [
    "CA",
    "PASSWORD",
    "PASSWORD_FILE",
    "URL",
    "given_password",
    "given_url",
    "masked",
    "parameters_of",
    "tls_context",
]

URL = "DELIVERY_AMQP_URL"
PASSWORD = "DELIVERY_AMQP_PASSWORD"  # noqa: S105  # the name of a setting
PASSWORD_FILE = "DELIVERY_AMQP_PASSWORD_FILE"  # noqa: S105
CA = "DELIVERY_AMQP_CA"

# Where to find the certificates that the broker's is checked with (RabbitMQ, "URI Query
# Parameters"). pika does not know it, so it never sees it.
CA_FILE = "cacertfile"
EXPECTED = "expected amqp://user:password@host:5672/%2F"


def given_url(environ: Mapping[str, str]) -> str:
    """Return DELIVERY_AMQP_URL, empty if there is none, with what else belongs to it put in.

    That is the password (DELIVERY_AMQP_PASSWORD_FILE, or DELIVERY_AMQP_PASSWORD), so that the
    address itself can be shown to anybody, and the file of the CA (DELIVERY_AMQP_CA). Raises
    DeliveryError: a URL that can't be read, or a file that others on this machine can.
    """
    url = environ.get(URL, "")
    password, ca = given_password(environ), environ.get(CA, "")
    if not url or not (password or ca):
        return url
    return ",".join(_completed(each, password, ca) for each in addresses(url))


def _completed(url: str, password: str, ca: str) -> str:
    try:
        parts = urlsplit(url)
        netloc = parts.netloc
        if password:
            if not parts.username:
                raise DeliveryError(f"{URL} names no user for the password: amqp://user@host:5672")
            netloc = f"{parts.username}:{quote(password, safe='')}@{netloc.rpartition('@')[2]}"
        query = parse_qsl(parts.query) + ([(CA_FILE, ca)] if ca else [])
        return urlunsplit((parts.scheme, netloc, parts.path, urlencode(query), ""))
    except ValueError:
        raise _unreadable() from None


def parameters_of(url: str) -> pika.URLParameters:
    """Return pika's parameters for *url*; over TLS (amqps) certificate and host name are checked.

    Raises DeliveryError, which shows nothing of the URL: any part may be a piece of a password.
    """
    if not url.startswith(("amqp://", "amqps://")):  # pika would take any scheme
        raise _unreadable()
    try:
        parts = urlsplit(url)
        if _is_cut(url):
            raise _unreadable()
        query = [(name, value) for name, value in parse_qsl(parts.query) if name != CA_FILE]
        if "ssl_options" in dict(query):  # pika's own, which can turn the checks off
            raise DeliveryError(f"the broker's URL may not hold ssl_options: set {CA}")
        parameters = pika.URLParameters(urlunsplit(parts._replace(query=urlencode(query))))
    except TypeError:  # pika's way to say so
        raise DeliveryError(
            f"the broker's URL names a user and no password: set {PASSWORD_FILE}"
        ) from None
    except (ValueError, IndexError):
        raise _unreadable() from None
    if parts.scheme == "amqps":
        parameters.ssl_options = pika.SSLOptions(tls_context(url), parameters.host)
    return parameters


def masked(url: str) -> str:
    """Return *url* for people and machines that need no password: three stars stand for it."""
    return ",".join(map(_masked, addresses(url)))


def _masked(url: str) -> str:
    parts = urlsplit(url)
    if _is_cut(url):
        return f"{parts.scheme}://***"
    user, _, host = parts.netloc.rpartition("@")
    name = f"{user.partition(':')[0]}:***@" if user else ""
    return urlunsplit(parts._replace(netloc=name + host))


def tls_context(url: str) -> ssl.SSLContext:
    """Return what checks the server's certificate: by *url*'s CA, else by the system's.

    Raises DeliveryError if there is no such file, or it holds no certificate.
    """
    file = dict(parse_qsl(urlsplit(addresses(url)[0]).query)).get(CA_FILE)
    try:
        return ssl.create_default_context(cafile=file)  # it checks the host name, too
    except OSError as error:  # an SSLError is one
        raise DeliveryError(f"the broker's CA can't be read from {file}: {error}") from error


def given_password(environ: Mapping[str, str]) -> str:
    """Return the password that is given apart, empty if none. Raises DeliveryError."""
    file = environ.get(PASSWORD_FILE)
    if not file:
        return environ.get(PASSWORD, "")
    try:
        mode = stat.S_IMODE(Path(file).stat().st_mode)
        text = Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DeliveryError(f"{PASSWORD_FILE}: {type(error).__name__}: {file}") from error
    if mode & 0o007:
        raise DeliveryError(f"others on this machine may use {file} (mode {mode:o}): chmod 600")
    if not text:
        raise DeliveryError(f"{PASSWORD_FILE}: {file} is empty")
    return text


def _is_cut(url: str) -> bool:
    """Say whether an @ follows the host: then a / ? or # of the password has ended it."""
    parts = urlsplit(url)
    return "@" in f"{parts.path}{parts.query}{parts.fragment}"


def _unreadable() -> DeliveryError:
    return DeliveryError(f"the broker's URL can't be read; {EXPECTED}")
