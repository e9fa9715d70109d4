"""The ten-line tour of README: one message, sent twice, has one effect.

Run it: .venv/bin/python lessons/tour.py (it finds or starts a broker, like everything here).
"""

from __future__ import annotations

import os
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path

from delivery import catalog, inbox, revision
from delivery.catalog import upsert
from delivery.codec import encode
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import MaterialPublished, material_published
from delivery.dead import dead_topology, park
from delivery.inbox import once, receipt_of
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, properties_of
from delivery.revision import latest_only
from delivery.routes import Route, topology_of
from delivery.sandbox import find_broker
from delivery.store import open_store
from delivery.topology import declare

broker = find_broker(os.environ, Path(".delivery"))
settings = BrokerSettings(url=broker.amqp_url)
route = Route("catalog", namespace=f"tour-{uuid.uuid4().hex[:8]}")
folder = tempfile.TemporaryDirectory()
schemas = (inbox.SCHEMA, revision.SCHEMA, catalog.SCHEMA)
store = open_store(Path(folder.name) / "catalog.sqlite3", *schemas)
data = MaterialPublished(
    material_id="tour",
    revision=1,
    title="Десять строк",
    slug="ten-lines",
    author="Delivery",
    published_at=datetime.now(UTC),
)
event = material_published(str(uuid.uuid4()), data)

# README shows what is between these two marks.
with connect(settings) as connection, ConfirmedChannel(settings) as channel:
    declare(connection, topology_of([route]) + dead_topology([route]))
    message = Message(route.exchange, event.type, properties_of(event), encode(event))
    first, second = channel.send(message), channel.send(message)
    handle = once(route, latest_only(upsert))
    policy = park(channel, route)
    consume(connection.channel(), route.queue, store, handle, on_failure=policy, idle=0.5)
    receipt = receipt_of(store, route.recipient, event.id)
    assert receipt is not None
print("sent twice:", first.outcome.value, second.outcome.value)
print("in the catalog:", receipt.effect.value, "once; recognised again:", receipt.duplicates)
# End of what README shows.

with connect(settings) as connection:
    for queue in (topology_of([route]) + dead_topology([route])).queues:
        connection.channel().queue_delete(queue.name)
    connection.channel().exchange_delete(route.exchange)
store.close()
folder.cleanup()
