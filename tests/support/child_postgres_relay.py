"""A child that relays a PostgreSQL outbox until it is told to stop."""

from __future__ import annotations

from contextlib import closing

from delivery.connection import BrokerSettings
from delivery.pipeline import ConfirmedChannel
from delivery.postgres import open_postgres
from delivery.postgres_outbox import PostgresOutbox
from delivery.relay import relay_once
from delivery.routes import events_exchange
from delivery.stopping import stop_on_signals
from support.children import arguments


def relay(*, url: str, namespace: str, store: str, database: str, limit: int = 20) -> None:
    """Relay what is due; while others hold the rest, or it is not there yet, look again."""
    stop = stop_on_signals()
    with (
        closing(open_postgres(database)) as opened,
        ConfirmedChannel(BrokerSettings(url=url)) as channel,
    ):
        box = PostgresOutbox(opened, events_exchange(namespace))
        while not stop:
            if not relay_once(box, channel, limit=limit):
                stop.wait(0.01)


if __name__ == "__main__":
    relay(**arguments())
