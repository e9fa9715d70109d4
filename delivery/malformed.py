"""Answer bytes that are no HTTP request with a problem document, like every other error."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from delivery.problems import problem

__all__ = ["ProblemProtocol"]


class ProblemProtocol(H11Protocol):
    """uvicorn's protocol for HTTP/1.1, whose own answer to such bytes is plain text.

    It answers before there is a request, so no handler of the application can do it.
    """

    def send_400_response(self, msg: str) -> None:
        """Send the problem, and close: where the next request would begin is not known."""
        answer = problem(400, f"{msg} Expected HTTP/1.1 (RFC 9112).")
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
