"""Answer what is no HTTP request, or does not become one in time, with a problem document."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from delivery.problems import problem

__all__ = ["HEAD_LIMIT", "HEAD_SECONDS", "ProblemProtocol"]

HEAD_LIMIT = 64 * 1024  # bytes of a request's first line and headers together
HEAD_SECONDS = 10.0  # from the connection, or from a request's first byte, to the end of its head


class ProblemProtocol(HttpToolsProtocol):
    """uvicorn's protocol for HTTP/1.1, whose own answer to such bytes is plain text.

    It answers before there is a request, so no handler of the application can do it. Nor does
    uvicorn bound a head: one that never ends would keep a connection and its memory for ever.
    """

    _timer: asyncio.TimerHandle | None = None  # runs while a head is expected
    _received = 0  # bytes since then
    _too_large = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the first head."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse *data*; refuse a head that has become too large."""
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()  # empty lines before a request end uvicorn's own patience
        if self._timer is not None:
            self._received += len(data)
            if self._received > HEAD_LIMIT:
                self._refuse_size()

    def on_message_begin(self) -> None:
        """Expect the head of one more request on this connection."""
        super().on_message_begin()
        if self._timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """Begin to handle the request, unless its head came in one piece that is too large."""
        self._end_head()
        if len(self.url) + sum(len(n) + len(value) for n, value in self.headers) > HEAD_LIMIT:
            self._too_large = True
            raise ValueError  # ends the parser; send_400_response follows
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Send the problem, and close: where the next request would begin is not known."""
        if self._too_large:
            self._refuse_size()
        else:
            self._refuse(400, f"{msg} Expected HTTP/1.1 (RFC 9112).")

    def _expect_head(self) -> None:
        self._received = 0
        self._timer = self.loop.call_later(HEAD_SECONDS, self._refuse_slow)

    def _end_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse_slow(self) -> None:
        if self._received:
            self._refuse(408, f"The request's head was not complete within {HEAD_SECONDS:g} s.")
        else:
            self.transport.close()  # nothing was asked

    def _refuse_size(self) -> None:
        self._refuse(431, f"The request's head has more than {HEAD_LIMIT} bytes.")

    def _refuse(self, status: int, detail: str) -> None:
        if status != 400 and self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # the answer to the request before is still being sent
            return
        answer = problem(status, detail)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()
        lines = [first, *(b": ".join(header) for header in headers)]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()
