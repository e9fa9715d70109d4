"""Answer every HTTP error as a problem document (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from delivery.errors import DeliveryError
from delivery.materials import KeyReused, RevisionMismatch
from delivery.store import StoreUnavailable

__all__ = ["MEDIA_TYPE", "described", "install_problems", "problem"]

MEDIA_TYPE = "application/problem+json"

STATUS: Mapping[type[Exception], HTTPStatus] = {
    KeyReused: HTTPStatus.UNPROCESSABLE_ENTITY,
    RevisionMismatch: HTTPStatus.CONFLICT,
    StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}

_TEXT = {"type": "string"}
_SCHEMA = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {**_TEXT, "format": "uri-reference"},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "errors": {
            "type": "array",
            "items": {"type": "object", "properties": {"where": _TEXT, "what": _TEXT}},
        },
    },
}


def problem(
    status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: object
) -> JSONResponse:
    """Return the problem document for *status*; *detail* says what to do about it."""
    known = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    body = {**known, "detail": detail, **more}
    return JSONResponse(body, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says of these statuses, and of any other: a problem document."""
    content = {MEDIA_TYPE: {"schema": _SCHEMA}}
    found: dict[int | str, dict[str, Any]] = {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in statuses
    }
    return found | {"default": {"description": "Any other error", "content": content}}


def install_problems(app: FastAPI) -> None:
    """Make *app* answer its own errors, the framework's, and unforeseen ones as problems."""
    app.add_exception_handler(DeliveryError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)


def _ours(_request: Request, error: Exception) -> JSONResponse:
    status = STATUS.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
    headers = {"Retry-After": "1"} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return problem(status, str(error), headers=headers)


def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # Without the input: it can hold what JSON can't (NaN, half a surrogate pair).
    errors = [_where(each) for each in error.errors()]
    missing_key = any(each["where"].lower() == "header.idempotency-key" for each in errors)
    status = HTTPStatus.BAD_REQUEST if missing_key else HTTPStatus.UNPROCESSABLE_ENTITY
    detail = "; ".join(f"{each['where']}: {each['what']}" for each in errors)
    return problem(status, detail, errors=errors)


def _where(error: Mapping[str, Any]) -> dict[str, str]:
    where = ".".join(str(part) for part in error["loc"])
    return {"where": where.encode("ascii", "backslashreplace").decode(), "what": error["msg"]}


def _http(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, str(error.detail), headers=error.headers)


def _unforeseen(_request: Request, _error: Exception) -> JSONResponse:
    return problem(500, "an unforeseen error; it is in the server's log")
