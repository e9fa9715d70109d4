"""Read what the recipients have after a run: effects, and messages that are dead."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from delivery.config import Config
from delivery.connection import connect
from delivery.routes import RECIPIENTS
from delivery.stores import PUBLISHER
from delivery.triage import DeadMessage, browse
from delivery.verdict import Facts

__all__ = ["facts_of", "outbox_of"]


def outbox_of(config: Config) -> tuple[set[str], set[str]]:
    """Return the event ids that the publisher's outbox has, and those that are still pending."""
    with closing(config.stores.open(PUBLISHER)) as publisher:
        outbox = {event for (event,) in publisher.execute("SELECT event_id FROM outbox")}
        query = "SELECT event_id FROM outbox WHERE confirmed_at IS NULL"
        return outbox, {event for (event,) in publisher.execute(query)}


def facts_of(
    config: Config,
    outbox: Collection[str],
    pending: Collection[str],
    strangers: Collection[str] = (),
) -> Facts:
    """Read the recipients' stores and dead queues; the publisher's ids are given.

    *strangers* are the keys of messages that were sent past the publisher.
    """
    dead = {}
    with connect(config.named("chaos")) as connection:
        for recipient in RECIPIENTS:
            messages = browse(connection, config.route(recipient))
            dead[recipient] = {message.key: _reason(config, message) for message in messages}
    with closing(config.stores.open("audit")) as audit:
        query = "SELECT event_id, material_id, revision, title FROM audit"
        written = audit.execute(query).fetchall()
    with closing(config.stores.open("catalog")) as catalog:
        cards = {
            material: (revision, title)
            for material, revision, title in catalog.execute(
                "SELECT material_id, revision, title FROM catalog"
            )
        }
    return Facts(
        outbox=outbox,
        audit=[event for event, *_ in written],
        catalog=cards,
        pending=pending,
        dead=dead,
        written=set(written),
        strangers=strangers,
    )


def _reason(config: Config, message: DeadMessage) -> str:
    early = message.reason == "exhausted" and message.attempts <= len(config.retries_ms)
    return f"exhausted by attempt {message.attempts}" if early else message.reason
