"""Serve the live page from files inside the package; it loads nothing from anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Header, HTTPException, Response
from fastapi.responses import StreamingResponse

from delivery.live import Onlooker
from delivery.live_events import events

__all__ = ["TOKEN_HEADER", "install_page"]

TOKEN_HEADER = "X-Stage-Token"  # noqa: S105 - the name of a header
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Only what the package serves runs; no other page may frame it and have its buttons clicked.
SAFE = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOKEN_MARK = b"{{stage-token}}"


def install_page(
    app: FastAPI,
    lookout: Onlooker,
    *,
    stopping: Callable[[], bool],
    more: Callable[[], Mapping[str, Any]],
    token: str = "",
) -> None:
    """Serve the page at ``/``, its files and its events below ``/live/``.

    *more* is put into every snapshot. With a *token* the page may ask for actions.
    """

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return _asset("index.html", token)

    @app.get("/live/files/{name}", include_in_schema=False)
    def asset(name: str) -> Response:
        return _asset(name)

    @app.get("/live/events", include_in_schema=False)
    async def stream(after: str = "", last_event_id: str = Header(default="")) -> Response:
        told = events(lookout, last_event_id or after, more=more, stopping=stopping)
        return StreamingResponse(told, media_type="text/event-stream", headers=SAFE)


def _asset(name: str, token: str = "") -> Response:
    folder = files("delivery") / "static"
    known = {each.name for each in folder.iterdir()} if folder.is_dir() else set()
    if not known:
        raise HTTPException(503, "the live page's files are missing: install the whole package")
    if name not in known:
        raise HTTPException(404, f"the live page has no file {name[:64]!r}")
    body = (folder / name).read_bytes().replace(TOKEN_MARK, escape(token).encode())
    kind = TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    return Response(body, media_type=kind, headers=SAFE)
