"""Publish what the presenter asks for: plain, in a burst, late, twice, unreadable, unroutable."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
import uuid
from contextlib import closing

from pika import BasicProperties

from delivery.client import post
from delivery.config import Config
from delivery.connection import connect
from delivery.contract import EVENT_TYPE, PublishMaterial
from delivery.errors import DeliveryError
from delivery.materials import accept
from delivery.store import transaction
from delivery.stores import PUBLISHER

__all__ = ["BURST", "Messages"]

BURST = 100
LATE = 3.0  # seconds that an older revision is held back
FRAGILE = "fragile"  # how the ids of materials begin that the catalog's database refuses
NOWHERE = "material.unroutable"  # a routing key that no queue is bound with
TROUBLE = (
    f"CREATE TRIGGER IF NOT EXISTS trouble BEFORE INSERT ON catalog"
    f" WHEN NEW.material_id LIKE '{FRAGILE}-%'"
    f" BEGIN SELECT RAISE(ABORT, 'the search index is not ready'); END"
)


class Messages:
    """Each method publishes, and says what it did. Raises DeliveryError.

    What is not plain is made in the publisher's or the catalog's own store: real rows, real
    errors, that the relay and the recipients meet as they would on a bad day.
    """

    def __init__(self, config: Config, api_url: str) -> None:
        self._config = config
        self._url = api_url
        self._numbers = itertools.count(1)
        self.trouble = False  # the catalog's database refuses fragile materials

    def one(self, title: str) -> str:
        """Publish one material through the API."""
        shown = title.strip() or f"Publication {next(self._numbers)}"
        self._post(f"m-{uuid.uuid4().hex[:8]}", shown)
        return f"published: {shown}"

    def burst(self) -> str:
        """Publish many, through the API."""
        for number in range(1, BURST + 1):
            self._post(f"burst-{uuid.uuid4().hex[:8]}", f"Burst, {number} of {BURST}")
        return f"published {BURST}"

    def old_revision(self) -> str:
        """Publish two revisions of a material; the older one leaves the outbox last."""
        material = f"late-{uuid.uuid4().hex[:8]}"
        with closing(self._config.stores.open(PUBLISHER)) as store:
            self._accept(store, material, "An older revision", late=True)
            self._accept(store, material, "The newer revision")
        return f"revision 2 goes at once, revision 1 in {LATE:g} s: too late for the catalog"

    def duplicate(self) -> str:
        """Have the last confirmed event sent again, as after a crash between confirm and mark."""
        with closing(self._config.stores.open(PUBLISHER)) as store, transaction(store) as tx:
            again = tx.execute(
                "UPDATE outbox SET confirmed_at = NULL, next_attempt_at = 0 WHERE position ="
                " (SELECT max(position) FROM outbox WHERE confirmed_at IS NOT NULL)"
            )
        if again.rowcount == 0:
            raise DeliveryError("nothing was confirmed yet: publish one first")
        return "the last event goes out again, under its own id"

    def poison(self, title: str) -> str:
        """Put an event on the exchange that no recipient can read, with a *title* of its own."""
        message_id, kind = str(uuid.uuid4()), "material.published.v2"
        event = {"specversion": "1.0", "id": message_id, "type": kind, "data": {"title": title}}
        body = json.dumps(event, ensure_ascii=False).encode()
        properties = BasicProperties(message_id=message_id, type=kind, delivery_mode=2)
        with connect(self._config.named("stage")) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish(self._config.exchange, kind, body, properties, mandatory=True)
        return f"an event of type {kind}: nobody here reads it"

    def failing(self, title: str) -> str:
        """Publish a material that the catalog's own database refuses until it is healed."""
        with closing(self._config.stores.open("catalog")) as store, transaction(store) as tx:
            tx.execute(TROUBLE)
        self.trouble = True
        shown = title.strip() or f"A fragile one, {next(self._numbers)}"
        self._post(f"{FRAGILE}-{uuid.uuid4().hex[:8]}", shown)
        return f"published: {shown}; the catalog's database refuses it"

    def heal(self) -> str:
        """Let the catalog's database take everything again."""
        with closing(self._config.stores.open("catalog")) as store, transaction(store) as tx:
            tx.execute("DROP TRIGGER IF EXISTS trouble")
        self.trouble = False
        return "the catalog's database is healed: what is dead can be replayed"

    def unroutable(self) -> str:
        """Publish with a routing key that leads nowhere."""
        with closing(self._config.stores.open(PUBLISHER)) as store:
            self._accept(store, f"lost-{uuid.uuid4().hex[:8]}", "To nobody", key=NOWHERE)
        return (
            f"published with the key {NOWHERE}: the broker returns it, the outbox keeps it;"
            " with a parking queue, the broker keeps it there"
        )

    def mend(self) -> str:
        """Give what was unroutable the right key."""
        with closing(self._config.stores.open(PUBLISHER)) as store, transaction(store) as tx:
            mended = tx.execute(
                "UPDATE outbox SET event_type = ?, next_attempt_at = 0"
                " WHERE confirmed_at IS NULL AND event_type = ?",
                (EVENT_TYPE, NOWHERE),
            )
        return f"{mended.rowcount} got the right key"

    def _post(self, material_id: str, title: str) -> None:
        command = {"material_id": material_id, "title": title, "slug": "live", "author": "Stage"}
        status, answer, _ = post(self._url, command, uuid.uuid4().hex)
        if status != 202:
            raise DeliveryError(f"the API answered {status}: {answer.get('detail', answer)}")

    def _accept(
        self,
        store: sqlite3.Connection,
        material_id: str,
        title: str,
        *,
        late: bool = False,
        key: str = EVENT_TYPE,
    ) -> None:
        """Commit a publication whose row is not as the API writes it, before the relay sees it."""
        due = time.time() + LATE if late else 0.0
        # The trigger is this connection's alone, and part of the transaction that adds the row.
        store.execute("CREATE TEMP TABLE wish AS SELECT ? AS due, ? AS key", (due, key))
        store.execute(
            "CREATE TEMP TRIGGER odd AFTER INSERT ON main.outbox BEGIN UPDATE outbox"
            " SET next_attempt_at = (SELECT due FROM wish), event_type = (SELECT key FROM wish)"
            " WHERE position = NEW.position; END"
        )
        try:
            command = PublishMaterial(title=title, slug="live", author="Stage")
            accept(store, material_id, command, key=uuid.uuid4().hex)
        finally:
            store.execute("DROP TRIGGER odd")
            store.execute("DROP TABLE wish")
