"""Answer bytes that are no HTTP request with a problem document, like every other error."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from delivery.problems import problem

__all__ = ["ProblemProtocol"]


class ProblemProtocol(HttpToolsProtocol):
    """uvicorn's protocol for HTTP/1.1, whose own answer to such bytes is plain text.

    It answers before there is a request, so no handler of the application can do it.
    """

    def send_400_response(self, msg: str) -> None:
        """Send the problem, and close: where the next request would begin is not known."""
        answer = problem(400, f"{msg} Expected HTTP/1.1 (RFC 9112).")
        headers = [*answer.raw_headers, (b"connection", b"close")]
        lines = [b"HTTP/1.1 400 Bad Request", *(b": ".join(header) for header in headers)]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()
