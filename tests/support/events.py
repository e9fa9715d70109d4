"""Events and messages to test with."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from delivery.codec import encode
from delivery.contract import Event, MaterialPublished, material_published
from delivery.publisher import Message, properties_of

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def event(
    material_id: str = "m-1", revision: int = 1, *, title: str = "Title", event_id: str = ""
) -> Event:
    data = MaterialPublished(
        material_id=material_id,
        revision=revision,
        title=title,
        slug="a-title",
        author="An Author",
        published_at=AT,
    )
    return material_published(event_id or str(uuid.uuid4()), data)


def message(of: Event, namespace: str) -> Message:
    return Message(f"{namespace}.events", of.type, properties_of(of), encode(of))
