"""A child that applies the audit log's messages to PostgreSQL, each once."""

from __future__ import annotations

from contextlib import closing

from delivery import postgres_inbox
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume_with
from delivery.postgres import open_postgres
from delivery.postgres_inbox import applying, once
from delivery.routes import Route
from support.children import arguments
from support.stores import AUDIT, postgres_append


def consume(*, url: str, namespace: str, store: str, database: str, batch: int = 1) -> None:
    """Consume until nothing came for a while."""
    route = Route("audit", namespace)
    with (
        closing(open_postgres(database, postgres_inbox.SCHEMA, AUDIT)) as opened,
        connect(BrokerSettings(url=url)) as connection,
    ):
        apply = applying(opened, once(route, postgres_append))
        consume_with(connection.channel(), route.queue, apply, batch=batch, idle=0.4)


if __name__ == "__main__":
    consume(**arguments())
