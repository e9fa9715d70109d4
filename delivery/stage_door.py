"""Let the live page act, in the demo alone: every action needs the token of that page."""

from __future__ import annotations

import hmac
import http.client
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from fastapi import FastAPI, Header, HTTPException, Response
from pika.exceptions import AMQPError
from pydantic import BaseModel, ConfigDict, Field

from delivery.connection import describe
from delivery.doorkeeper import Doorkeeper
from delivery.errors import DeliveryError
from delivery.live_page import TOKEN_HEADER
from delivery.problems import install_problems

__all__ = ["Action", "Order", "create_stage"]


class Order(BaseModel):
    """What an action needs; each takes its own part of it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    name: str = ""  # of a process, or of a recipient
    title: Annotated[str, Field(max_length=300)] = ""
    keys: list[str] | None = None
    reason: Annotated[str, Field(max_length=300)] = ""


Action = Callable[[Order], Any]


def create_stage(
    actions: Mapping[str, Action], token: str, told: Callable[[str, str], None], api_url: str
) -> FastAPI:
    """Return the application of the demo's page; *told* hears what each action did.

    An action answers with a sentence or a record; what can't be done now is a 409 with the reason.
    """
    app = FastAPI(title="Delivery, on stage", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Doorkeeper)
    install_problems(app)

    @app.post("/stage/{action}")
    def act(
        action: str, order: Order, shown: str = Header(default="", alias=TOKEN_HEADER)
    ) -> dict[str, Any]:
        if not hmac.compare_digest(shown.encode(), token.encode()):
            raise HTTPException(403, "the page's token is missing or old: reload the page")
        if action not in actions:
            raise HTTPException(404, f"no action {action[:64]!r}")
        try:
            done = actions[action](order)
        except (DeliveryError, AMQPError, OSError) as error:
            told("stage", f"{action}: {describe(error)}")
            raise HTTPException(409, describe(error)) from error
        if not isinstance(done, str):
            return {"found": done}
        told("stage", done)
        return {"said": done}

    @app.get("/publications/{event_id}")
    def publication(event_id: str) -> Response:
        """Ask the API's process, so that the page knows of an event what the API knows."""
        status, body = _get(api_url, f"/publications/{quote(event_id, safe='')}")
        return Response(body, status, media_type="application/json")

    return app


def _get(url: str, path: str) -> tuple[int, bytes]:
    site = urlsplit(url)
    try:
        connection = http.client.HTTPConnection(site.hostname or "", site.port, timeout=5)
        with closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        detail = f"the API's process does not answer ({describe(error)}); start it"
        return 503, json.dumps({"detail": detail}).encode()
