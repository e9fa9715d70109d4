"""The envelope says who a message is, and holds nothing that AMQP cannot carry."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support.events import AT, event

from delivery.publisher import APP_ID, envelope, properties_of


def test_the_properties_mirror_the_event() -> None:
    """Identity and type can be read without the body; the message is persistent."""
    of = event()

    found = properties_of(of, correlation_id="request-1")

    assert (found.message_id, found.type, found.app_id) == (of.id, of.type, APP_ID)
    assert (found.correlation_id, found.timestamp) == ("request-1", int(AT.timestamp()))
    assert found.content_type == "application/cloudevents+json"
    assert (found.content_encoding, found.delivery_mode) == ("utf-8", 2)


@pytest.mark.parametrize("value", [1.5, {1, 2}, object(), {"deep": 1.5}, [1.5]])
def test_headers_that_amqp_cannot_carry_are_refused_before_the_socket(value: object) -> None:
    """pika would find out while writing, and the error would not name the header."""
    with pytest.raises(ValueError, match="header 'bad': AMQP cannot carry a"):
        envelope("id", "type", timestamp=1, headers={"good": 1, "bad": value})


def test_headers_that_amqp_can_carry_stay_as_they_are() -> None:
    """Text, bytes, flags, integers, times and nothing."""
    headers = {"a": "ü🐇", "b": b"\xff", "c": True, "d": -1, "e": datetime.now(UTC), "f": None}

    found = envelope("id", "type", timestamp=1, headers=headers)

    assert found.headers == headers
    found.encode()
