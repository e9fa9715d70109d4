"""The contract: what a command is, and what an event is.

A *command* asks its owner to do something and may be refused; an *event* says what has already
happened, so a recipient can only understand it or not. Unknown extra fields of an event are
tolerated, so its publisher can add one without asking anybody.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

__all__ = [
    "EVENT_TYPE",
    "Event",
    "MaterialPublished",
    "PublishMaterial",
    "json_schema",
    "material_published",
]

EVENT_TYPE: Final = "material.published.v1"
SCHEMA_ID: Final = "urn:delivery:schema:material.published.v1"
SOURCE = "urn:delivery:materials"


# RFC 3339, section 5.6, in its usual form: capital T and Z, seconds always, no leap second.
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def _instant(value: object) -> datetime:
    """Read an RFC 3339 timestamp, to the millisecond; a number or a bare local time is refused."""
    if isinstance(value, str) and _RFC3339.fullmatch(value):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("expected an RFC 3339 timestamp such as 2026-01-31T12:00:00Z")
    try:
        moment = value if value.tzinfo is UTC else value.astimezone(UTC)
    except OverflowError:
        raise ValueError("the timestamp is out of range") from None
    below = moment.microsecond % 1000
    return moment.replace(microsecond=moment.microsecond - below) if below else moment


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Instant = Annotated[
    datetime,
    BeforeValidator(_instant),
    PlainSerializer(_rfc3339),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
MaterialId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._~-]{0,63}$")]
Slug = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=100)]
# Something to read, and no NUL: PostgreSQL's text cannot hold one.
_READABLE = r"^[^\x00]*[^\s\x00][^\x00]*$"
Title = Annotated[str, Field(max_length=300, pattern=_READABLE)]
Author = Annotated[str, Field(max_length=200, pattern=_READABLE)]
# 2**53 - 1: the largest integer that every JSON reader keeps exactly (RFC 8259, section 6).
Revision = Annotated[int, Field(ge=1, le=2**53 - 1)]
# An AMQP short string holds 255 bytes, and the id travels in one as message_id.
EventId = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")]


class PublishMaterial(BaseModel):
    """The command: publish a material's next revision. Its owner may refuse it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    title: Title
    slug: Slug
    author: Author
    summary: Annotated[str, Field(max_length=5_000, pattern=r"^[^\x00]*$")] = ""
    expected_revision: Annotated[int, Field(ge=0, le=2**53 - 2)] | None = Field(
        default=None, description="Refuse unless this is the material's current revision; 0 = new."
    )


class MaterialPublished(BaseModel):
    """The fact: a material's revision has been published."""

    model_config = ConfigDict(strict=True, frozen=True)

    material_id: MaterialId
    revision: Revision
    title: Title
    slug: Slug
    author: Author
    published_at: Instant


class Event(BaseModel):
    """The fact in its CloudEvents 1.0 envelope."""

    model_config = ConfigDict(strict=True, frozen=True)

    specversion: Literal["1.0"]
    id: EventId
    type: Literal["material.published.v1"]
    source: Annotated[str, Field(min_length=1, max_length=255)]
    subject: MaterialId
    time: Instant
    datacontenttype: Literal["application/json"]
    dataschema: Literal["urn:delivery:schema:material.published.v1"]
    data: MaterialPublished

    @model_validator(mode="after")
    def _one_material(self) -> Self:
        if self.subject != self.data.material_id:
            raise ValueError("subject differs from data.material_id")
        return self


def material_published(event_id: str, data: MaterialPublished) -> Event:
    """Return the event that announces *data*, under the id that it keeps for ever."""
    return Event(
        specversion="1.0",
        id=event_id,
        type=EVENT_TYPE,
        source=SOURCE,
        subject=data.material_id,
        time=data.published_at,
        datacontenttype="application/json",
        dataschema=SCHEMA_ID,
        data=data,
    )


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of an event's body."""
    schema = Event.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **schema}
