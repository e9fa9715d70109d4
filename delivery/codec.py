"""The bytes of an event: a CloudEvents 1.0 event in structured JSON, or a ContractError."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from delivery.contract import EVENT_TYPE, Event
from delivery.errors import DeliveryError

__all__ = ["CONTENT_TYPE", "ContractError", "decode", "encode"]

CONTENT_TYPE = "application/cloudevents+json"  # CloudEvents 1.0, JSON format, section 3

_FAMILY = EVENT_TYPE.rpartition(".v")[0]


class ContractError(DeliveryError):
    """The bytes do not satisfy the contract; sending them again cannot help.

    ``reason`` is one word for machines (``not_json``, ``missing_field`` ...).
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def encode(event: Event) -> bytes:
    """Return the bytes of *event*: compact UTF-8 JSON, fields in the order of the contract."""
    fields = event.model_dump(mode="json")
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode(body: bytes) -> Event:
    """Return the event that *body* stands for, or raise ContractError."""
    fields = _parse(body)
    _check_type(fields)
    try:
        return Event.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error) from None


def _parse(body: bytes) -> dict[str, Any]:
    if not body:
        raise ContractError("empty", "the body has no bytes")
    try:
        fields = _READER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ContractError("not_utf8", f"byte {error.start} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ContractError("not_json", str(error)) from None
    if not isinstance(fields, dict):
        raise ContractError("not_object", f"expected a JSON object, got {type(fields).__name__}")
    return fields


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        # Readers disagree on which of two equal names wins (RFC 8259, section 4).
        raise ContractError("duplicate_field", "a name occurs twice in one JSON object")
    return fields


def _no_constant(name: str) -> None:
    raise ContractError("not_json", f"{name} is not JSON")


# Made once: json.loads would make one for every message.
_READER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _check_type(fields: dict[str, Any]) -> None:
    kind = fields.get("type")
    if kind == EVENT_TYPE or not isinstance(kind, str):
        return
    family, dot_v, version = kind.rpartition(".v")
    known_family = bool(dot_v) and family == _FAMILY and re.fullmatch("[0-9]+", version) is not None
    reason = "unknown_version" if known_family else "unknown_type"
    raise ContractError(reason, f"got {kind[:100]!r}; this reader understands {EVENT_TYPE!r}")


def _refusal(error: ValidationError) -> ContractError:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    kind = first["type"]
    if kind == "missing":
        reason = "missing_field"
    elif kind.endswith("_type"):
        reason = "wrong_type"
    else:
        reason = "wrong_value"
    return ContractError(reason, f"{where or 'event'}: {first['msg'][:500]}")
