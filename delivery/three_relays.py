"""The campaign against three relays on one PostgreSQL outbox: one is killed, again and again."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime

from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege

from delivery.arena import Arena
from delivery.belongings import own_folder
from delivery.broker import Broker
from delivery.cast import Cast, await_that
from delivery.chaos import Load, Run, not_recovered, put_under_load
from delivery.config import Config
from delivery.contract import MaterialPublished, material_published
from delivery.errors import DeliveryError
from delivery.facts import facts_of
from delivery.faults_relays import RELAYS
from delivery.identity import new_event_id
from delivery.postgres import Connection, open_postgres, transaction
from delivery.postgres_outbox import SCHEMA, add
from delivery.routes import RECIPIENTS
from delivery.schedule import Planned
from delivery.stopping import Stop
from delivery.system import RETRIES_MS
from delivery.traffic import Entry, Journal
from delivery.verdict import differences, tally

__all__ = ["attack_relays"]

REST = 120.0  # seconds for the last event to be settled; a row's pause is 30 s at most


class _Writer(Journal):
    """A service that commits facts into the PostgreSQL outbox; a commit is its promise."""

    def __init__(self, store: Connection, stop: Stop) -> None:
        super().__init__("", stop)
        self._store = store
        self._revisions = Counter[str]()

    def publish(self, material_id: str, title: str, *, patience: float = 0.0) -> Entry:
        """Commit one publication. Raises StoreUnavailable."""
        now, revision = time.time(), self._revisions[material_id] + 1
        data = MaterialPublished(
            material_id=material_id,
            revision=revision,
            title=title,
            slug="s",
            author="A",
            published_at=datetime.fromtimestamp(now, UTC),
        )
        event = material_published(new_event_id(now), data)
        with transaction(self._store) as tx:
            add(tx, event, correlation_id=event.id, accepted_at=now)
        self._revisions[material_id] = revision
        entry = self.entries[event.id] = Entry(event.id, material_id, revision, title, now)
        return entry


def attack_relays(
    environ: Mapping[str, str],
    broker: Broker,
    url: str,
    planned: Sequence[Planned],
    load: Load,
    *,
    say: Callable[[str], None],
    stop: Stop,
    namespace: str = "chaos-relays",
) -> Run:
    """Commit events while the relays are killed one at a time, and judge what has arrived.

    In a schema of its own in the database at *url*, which is dropped afterwards. The API is not
    part of it: the events are committed as a service would. Raises DeliveryError if it can't begin.
    """
    begun = time.time()
    with own_folder("relays-", say) as data:
        config = Config.on(broker, data, namespace=namespace, retries_ms=RETRIES_MS)
        with _schema(url) as own, closing(open_postgres(own, SCHEMA)) as store:
            with _arena(config, environ, broker, own, _Writer(store, stop)) as arena:
                records, samples, error = put_under_load(arena, planned, load, say)
                say("healing: every relay runs, every message gets its time")
                late = _await_rest(arena, store)
            entries, facts = arena.journal.entries.values(), facts_of(config, *_rows(store))
        wrong = [*filter(None, [error, late]), *not_recovered(records)]
        return Run(
            system="delivery: three relays on PostgreSQL",
            broker=f"RabbitMQ {broker.version}",
            load=load,
            begun=begun,
            seconds=time.time() - begun,
            records=records,
            samples=samples,
            tally=tally(entries, facts),
            differences=[*wrong, *differences(entries, facts, ())],
        )


@contextlib.contextmanager
def _schema(url: str) -> Iterator[str]:
    """Give the URL of a new schema in the database; drop it afterwards."""
    name = f"chaos_{secrets.token_hex(5)}"
    with closing(open_postgres(url)) as maker:
        try:
            maker.execute(f"CREATE SCHEMA {name}")
        except InsufficientPrivilege as refusal:
            raise DeliveryError(f"the campaign needs a schema of its own: {refusal}") from refusal
        try:
            yield make_conninfo(url, options=f"-csearch_path={name}")
        finally:
            maker.execute(f"DROP SCHEMA {name} CASCADE")


@contextlib.contextmanager
def _arena(
    config: Config, environ: Mapping[str, str], broker: Broker, url: str, writer: Journal
) -> Iterator[Arena]:
    own = {
        **environ,
        "DELIVERY_DATA": str(config.stores.data),
        "DELIVERY_NAMESPACE": config.namespace,
        "DELIVERY_AMQP_URL": broker.amqp_url,
        "DELIVERY_RETRIES_MS": ",".join(map(str, config.retries_ms)),
        "DELIVERY_QUEUES": "classic",
        "DELIVERY_POSTGRES_URL": url,
    }
    own.pop("DELIVERY_KILL_AT", None)
    cast = Cast((), own, config.stores.data / "logs", writer.stop)
    with cast.curtain():
        arena = Arena(
            config=config,
            broker=broker,
            cast=cast,
            # A small batch: the relays share, and a killed one holds something, and not all.
            commands=dict.fromkeys(RELAYS, ("postgres", "relay", "--batch", "5"))
            | {recipient: ("receive", recipient) for recipient in RECIPIENTS},
            taps={},
            users={},
            journal=writer,
            heartbeat=0,
        )
        arena.start_all()
        yield arena


def _await_rest(arena: Arena, store: Connection) -> str:
    """Wait until all that was committed is sent and settled; return what is still missing."""
    committed = len(arena.journal.entries)

    def settled() -> bool:
        return not _rows(store)[1] and min(arena.settled().values()) >= committed

    try:
        await_that(settled, "every committed event is settled", stop=arena.stop, seconds=REST)
    except DeliveryError as error:
        if arena.stop:
            raise
        return str(error)
    return ""


def _rows(store: Connection) -> tuple[set[str], set[str]]:
    """Return the event ids in the outbox, and those that are still pending."""
    rows = store.execute("SELECT event_id, confirmed_at IS NULL FROM outbox").fetchall()
    return {event for event, _ in rows}, {event for event, pending in rows if pending}
