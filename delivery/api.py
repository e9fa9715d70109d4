"""Accept commands over HTTP: a 202 means that the fact is committed and will be sent."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Path, Query, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from delivery import __version__
from delivery.contract import PublishMaterial
from delivery.doorkeeper import Doorkeeper
from delivery.feed import PAGE_LIMIT, Page
from delivery.materials import Request
from delivery.metrics import OutboxCollector
from delivery.problems import described, install_problems
from delivery.publisher_store import PublisherStore
from delivery.traceparent import continued

__all__ = ["create_app"]

log = logging.getLogger(__name__)

# It becomes the message's correlation_id, an AMQP short string.
Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,128}$",
        description="Names this request: repeating it with the same key and body does nothing new.",
    ),
]
TraceHeader = Annotated[
    str | None,
    Header(alias="traceparent", description="The trace that this request belongs to (W3C)."),
]
MaterialPath = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._~-]{0,63}$")]


def create_app(
    publisher: PublisherStore,
    *,
    begin: Callable[[str | None], AbstractContextManager[str]] = continued,
) -> FastAPI:
    """Return the application, which commits to *publisher*.

    *begin* gives the traceparent under which a request's event goes out.
    """
    app = FastAPI(
        title="Delivery",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        responses=described(400, 403, 408, 413, 503),  # at the door, or anywhere
    )
    app.add_middleware(Doorkeeper)
    install_problems(app)
    registry = CollectorRegistry()
    registry.register(OutboxCollector(publisher.summary))

    @app.post("/materials/{material_id}/publish", status_code=202, responses=described(409, 422))
    async def publish(
        material_id: MaterialPath,
        command: PublishMaterial,
        key: Key,
        response: Response,
        traceparent: TraceHeader = None,
    ) -> dict[str, Any]:
        """Publish the material's next revision."""
        with begin(traceparent) as current:
            answer, repeated = await publisher.accept(Request(material_id, command, key, current))
            fields = {"event_id": answer.event_id, "repeated": repeated, "traceparent": current}
            log.info("publication.accepted", extra=fields)
        link = f"/publications/{answer.event_id}"
        response.headers["Location"] = link
        if repeated:
            response.headers["Idempotency-Replayed"] = "true"
        return {
            "material_id": answer.material_id,
            "revision": answer.revision,
            "event_id": answer.event_id,
            "status_url": link,
        }

    _add_views(app, publisher)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Say that the process answers; needs no thread, so a blocked store can't delay it."""
        return {"status": "alive"}

    @app.get("/readyz")
    def readyz() -> dict[str, str]:
        """Say whether a command could be committed now; 503 with the reason if not."""
        publisher.check()
        return {"status": "ready"}

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> Response:
        """Show the publisher's figures for Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def _add_views(app: FastAPI, publisher: PublisherStore) -> None:
    """Add what only looks at the publications."""

    @app.get("/publications", responses=described(422))
    def publications(
        after: Annotated[int, Query(ge=0, lt=2**63, description="A position.")] = 0,
        limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT, description="Most events.")] = 100,
    ) -> Page:
        """Give what was accepted, oldest first: go on after the last position; empty is the end."""
        return publisher.page(after=after, limit=limit)

    @app.get("/publications/{word:path}", responses=described(404))
    def publication(word: str) -> dict[str, Any]:
        """Follow one event, by its own id, its request's or (the latest one) its material's."""
        found = publisher.trace(word)
        if found is None:
            raise HTTPException(404, f"no event, request or material has the id {word[:128]!r}")
        return found

    @app.get("/status")
    def status() -> dict[str, Any]:
        """Say what is accepted, confirmed and pending."""
        return publisher.summary()
