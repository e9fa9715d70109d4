"""Turn HTTP requests away at the door: a foreign Host or Origin, or too large a body."""

from __future__ import annotations

import asyncio
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delivery.errors import DeliveryError
from delivery.problems import problem

__all__ = ["BODY_LIMIT", "Doorkeeper", "check_loopback", "is_loopback"]

BODY_LIMIT = 1024 * 1024  # bytes
DRAIN_LIMIT = 64 * 1024 * 1024  # bytes of a body that is too large
PATIENCE = 15.0  # seconds for a whole request to arrive


def is_loopback(host: str) -> bool:
    """Tell whether *host* is this machine; any name but localhost could resolve anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_loopback(host: str) -> None:
    """Raise DeliveryError unless *host* is a loopback address: the API has no login."""
    if not is_loopback(host):
        raise DeliveryError(
            f"the API has no login, so it listens on loopback only, not on {host!r};"
            " put a proxy that checks users before it"
        )


class Doorkeeper:
    """ASGI middleware. A page of another site that a browser shows here can neither read nor post.

    The Host is checked against DNS rebinding, the Origin of whatever is not a read against forged
    requests. At most *limit* bytes of the body are kept, before the application starts.
    """

    def __init__(self, app: ASGIApp, limit: int = BODY_LIMIT) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Read first, also what will be refused: closing on unread bytes resets the connection, and
        # the client would lose the answer.
        try:
            async with asyncio.timeout(PATIENCE):
                read = await self._read(receive)
        except TimeoutError:
            answer = _closing(408, f"no complete request within {PATIENCE:g} s")
        except asyncio.CancelledError:
            answer = _closing(503, "the server is stopping")
        else:
            if read is None:
                return  # the client left half way: half a request must not be carried out
            body, size = read
            refusal = self._refusal(scope, size)
            answer = _closing(*refusal) if refusal else self._app
            receive = _replayed(body, receive)
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope, size: int) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        if (hosts := len(headers.getlist("host"))) != 1:
            return 400, f"a request has exactly one Host (RFC 9112, 3.2), not {hosts}"
        here = headers["host"]
        if not is_loopback(_host_of(f"//{here}")):
            return 403, f"the Host {here!r} is not this machine's loopback address"
        origin = headers.get("origin")
        reads = scope["method"] in ("GET", "HEAD", "OPTIONS")
        if origin is not None and not reads and origin.lower() != f"http://{here.lower()}":
            return 403, f"a page of {origin!r} may not post here"
        if size > self._limit:
            return 413, f"the body is larger than {self._limit} bytes"
        return None

    async def _read(self, receive: Receive) -> tuple[bytes, int] | None:
        """Return the body's first bytes, up to the limit, and how many there were in all.

        None means that the client left before its end.
        """
        kept, size = bytearray(), 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            part = message.get("body", b"")
            size += len(part)
            kept += part[: max(0, self._limit - len(kept))]
            if not message.get("more_body", False) or size > DRAIN_LIMIT:
                return bytes(kept), size


def _closing(status: int, detail: str) -> ASGIApp:
    return problem(status, detail, headers={"Connection": "close"})


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # such as an IPv6 address without its closing bracket
        return ""


def _replayed(body: bytes, receive: Receive) -> Receive:
    first = True

    async def again() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again
