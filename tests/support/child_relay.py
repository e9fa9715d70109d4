"""A child that relays an outbox."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from delivery import outbox
from delivery.connection import BrokerSettings
from delivery.outbox import SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.relay import only_relay, relay_once
from delivery.routes import events_exchange
from delivery.store import open_store
from support.children import arguments


def relay(*, url: str, namespace: str, store: str, limit: int = 100) -> None:
    """Relay what is due, then end."""
    with (
        only_relay(Path(store)),
        closing(open_store(store, outbox.SCHEMA)) as opened,
        ConfirmedChannel(BrokerSettings(url=url)) as channel,
    ):
        box = SqliteOutbox(opened, events_exchange(namespace))
        while relay_once(box, channel, limit=limit):
            pass


if __name__ == "__main__":
    relay(**arguments())
