"""Turn HTTP requests away at the door: a foreign Host or Origin, or too large a body."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from delivery.errors import DeliveryError
from delivery.problems import problem

__all__ = ["BODY_LIMIT", "Doorkeeper", "check_loopback", "is_loopback"]

BODY_LIMIT = 1024 * 1024  # bytes


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
    requests. The body is read up to *limit* bytes before the application starts.
    """

    def __init__(self, app: ASGIApp, limit: int = BODY_LIMIT) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        body = b""
        if refusal is None:
            read = await self._read(receive)
            body = read or b""
            refusal = None if read is not None else self._too_large()
        if refusal is not None:
            status, detail = refusal
            headers = {"Connection": "close"}  # what is left of the body is not read
            await problem(status, detail, headers=headers)(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if not is_loopback(host):
            return 403, f"the Host {host!r} is not this machine's loopback address"
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            site = urlsplit(origin)
            if site.netloc.lower() != headers.get("host", "").lower():
                return 403, f"a page of {origin!r} may not post here"
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._limit:
            return self._too_large()
        return None

    def _too_large(self) -> tuple[int, str]:
        return 413, f"the body is larger than {self._limit} bytes"

    async def _read(self, receive: Receive) -> bytes | None:
        parts = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return bytes(parts)
            parts += message.get("body", b"")
            if len(parts) > self._limit:
                return None
            if not message.get("more_body", False):
                return bytes(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    first = True

    async def again() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again
