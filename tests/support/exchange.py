"""A whole exchange of a test's own: real processes, files, names on the broker, and questions."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delivery.books import settled_accounts
from delivery.broker import Broker
from delivery.cast import Actor, Cast
from delivery.config import Config, as_it_is
from delivery.connection import BrokerSettings, connect
from delivery.contract import PublishMaterial
from delivery.dead import dead_queue
from delivery.desk import Desk
from delivery.inbox import Receipt, receipt_of
from delivery.ledger import Account
from delivery.materials import accept
from delivery.observe import Waiting, waiting
from delivery.publisher import envelope
from delivery.routes import routes_of
from delivery.services import prepare
from delivery.stores import PUBLISHER, Stores
from delivery.topology import Topology
from support.patience import patiently, remove_queues
from support.waiting import wait_for

TESTS = Path(__file__).resolve().parents[1]
RETRIES_MS = (150, 300)
KILLED = -signal.SIGKILL


@dataclass
class Exchange:
    """Processes are ``python -m delivery ...``; the test reads the same files and queues."""

    config: Config
    cast: Cast
    options: list[str]
    environ: dict[str, str]

    # -- processes

    def start(self, *names: str, **environ: str) -> list[Actor]:
        """Start api, relay, catalog or audit, each a process, and wait until they are ready."""
        commands = {"api": ["api", "--port", "0"], "relay": ["relay"]}
        actors = [
            self.cast.start(name, commands.get(name, ["receive", name]), **environ)
            for name in names
        ]
        for actor in actors:
            actor.await_event(f"{actor.name}.ready")
        return actors

    def kill(self, name: str) -> None:
        self.cast[name].process.kill()
        self.cast[name].process.wait(10)

    def await_death(self, name: str) -> None:
        """Wait until the process *name* has been killed, by the point it was armed with."""
        actor = self.cast[name]
        wait_for(lambda: actor.process.poll() is not None, f"{name} dies")
        assert actor.process.returncode == KILLED, actor.log()

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run one command of the command line to its end."""
        return delivery(*self.options, *arguments, environ={**self.environ, **environ})

    @property
    def url(self) -> str:
        """Where the API listens."""
        return self.cast["api"].await_event("api.ready").rpartition("url=")[2].strip()

    # -- what goes in

    def accept(self, *material_ids: str, key: str = "") -> list[str]:
        """Commit a publication of each material as the API does; return the event ids."""
        with closing(self.config.stores.open(PUBLISHER)) as store:
            return [
                accept(
                    store,
                    material_id,
                    PublishMaterial(title="Title", slug="a-title", author="An Author"),
                    key=key or uuid.uuid4().hex,
                )[0].event_id
                for material_id in material_ids
            ]

    def await_sent(self) -> None:
        """Wait until the relay has handed over all that was accepted."""
        pending = "SELECT count(*) FROM outbox WHERE confirmed_at IS NULL"
        wait_for(lambda: self.select(PUBLISHER, pending) == [0], "everything is sent")

    @contextlib.contextmanager
    def refusing(self, material_id: str) -> Iterator[None]:
        """Make the catalog's own database refuse *material_id*: a real error, from outside."""
        self.execute(
            "catalog",
            "CREATE TRIGGER trouble BEFORE INSERT ON catalog"
            f" WHEN NEW.material_id = '{material_id}'"
            " BEGIN SELECT RAISE(ABORT, 'the search index is not ready'); END",
        )
        try:
            yield
        finally:
            self.execute("catalog", "DROP TRIGGER trouble")

    def execute(self, participant: str, statement: str) -> None:
        with closing(self.config.stores.open(participant)) as store:
            store.execute(statement)

    def put(self, recipient: str, body: bytes, event_id: str, *, queue: str = "") -> None:
        """Put bytes straight into a queue, as a stranger could."""
        with connect(self.config.broker) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish(
                "",
                queue or self.config.route(recipient).queue,
                body,
                envelope(event_id, "material.published.v1", timestamp=1, correlation_id="c"),
                mandatory=True,
            )

    def purge(self, recipient: str) -> int:
        with connect(self.config.broker) as connection:
            purged = connection.channel().queue_purge(self.config.route(recipient).queue)
            return int(purged.method.message_count)

    def delete_queue(self, queue: str) -> None:
        with connect(self.config.broker) as connection:
            connection.channel().queue_delete(queue)

    def purge_dead(self, recipient: str) -> None:
        with connect(self.config.broker) as connection:
            connection.channel().queue_purge(self.dead_queue(recipient))

    # -- what is seen

    def select(self, participant: str, query: str) -> list[Any]:
        """Return the rows of *query*; of one column, its values."""
        with closing(self.config.stores.open(participant)) as store:
            rows = store.execute(query).fetchall()
        return [row[0] if len(row) == 1 else row for row in rows]

    def receipt(self, recipient: str, event_id: str) -> Receipt | None:
        with closing(self.config.stores.open(recipient)) as store:
            return receipt_of(store, recipient, event_id)

    def await_receipt(self, recipient: str, event_id: str, *, duplicates: int = 0) -> Receipt:
        """Wait for the receipt, with so many *duplicates*."""

        def there() -> bool:
            found = self.receipt(recipient, event_id)
            return found is not None and found.duplicates >= duplicates

        wait_for(there, f"{recipient} has a receipt for {event_id}")
        found = self.receipt(recipient, event_id)
        assert found is not None
        return found

    def place(self, recipient: str) -> Waiting:
        """Count what waits for *recipient* on the broker now."""
        with connect(self.config.broker) as connection:
            routes = routes_of(self.config.namespace)
            found = waiting(connection, routes, retries=len(self.config.retries_ms))
        return next(each for each in found if each.recipient == recipient)

    def await_dead(self, recipient: str, count: int = 1) -> None:
        wait_for(lambda: self.place(recipient).dead == count, f"{count} dead for {recipient}")

    def dead_queue(self, recipient: str) -> str:
        return dead_queue(self.config.route(recipient))

    def desk(self, recipient: str) -> Desk:
        return Desk(self.config, recipient)

    def accounts(self, seconds: float = 15.0) -> dict[str, Account]:
        return {each.recipient: each for each in settled_accounts(self.config, seconds=seconds)}

    def assert_all_applied(self) -> None:
        """Everything accepted was applied once by each recipient, and nothing waits anywhere."""
        events = sorted(self.select(PUBLISHER, "SELECT event_id FROM outbox"))
        assert events, "nothing was accepted: nothing is proved"
        for account in self.accounts().values():
            assert (account.difference, account.never_accepted) == (0, ()), account
            assert account.applied + account.stale == account.accepted == len(events), account
        # The audit log has no constraint that could hide a second effect.
        assert sorted(self.select("audit", "SELECT event_id FROM audit")) == events
        latest = self.select(PUBLISHER, "SELECT material_id, revision FROM material")
        shown = self.select("catalog", "SELECT material_id, revision FROM catalog")
        assert sorted(shown) == sorted(latest)


@contextlib.contextmanager
def exchange_on(
    broker: Broker,
    folder: Path,
    namespace: str,
    *,
    retries_ms: tuple[int, ...] = RETRIES_MS,
    declared: bool = True,
    shape: Callable[[Topology], Topology] = as_it_is,
    **more: str,
) -> Iterator[Exchange]:
    """Give an exchange on *broker*; its processes, queues and exchange are gone afterwards."""
    data = folder / "data"
    config = Config(
        broker=BrokerSettings(url=broker.amqp_url, name="test"),
        stores=Stores(data),
        namespace=namespace,
        retries_ms=retries_ms,
        management_url=broker.management_url,
        shape=shape,
    )
    retries = ",".join(map(str, retries_ms))
    options = ["--data", str(data), "--namespace", namespace, "--retries", retries]
    environ = environment(DELIVERY_AMQP_URL=broker.amqp_url, **more)
    if broker.management_url:
        environ["DELIVERY_MANAGEMENT_URL"] = broker.management_url
    cast = Cast(options, environ, folder / "logs")
    try:
        with cast.curtain():
            if declared:
                patiently(config.broker, lambda _: prepare(config, "test"))
            yield Exchange(config, cast, options, environ)
    finally:
        remove(config)


def remove(config: Config) -> None:
    topology = config.topology()
    remove_queues(config.broker, *(queue.name for queue in topology.queues))
    with connect(config.broker) as connection:
        for exchange in topology.exchanges:
            connection.channel().exchange_delete(exchange.name)


def delivery(
    *arguments: str, environ: dict[str, str] | None = None, seconds: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run ``delivery`` with *arguments* to its end; stdout and stderr are kept apart."""
    return subprocess.run(
        [sys.executable, "-m", "delivery", *arguments],
        env=environ or environment(),
        cwd=TESTS,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=seconds,
        check=False,
    )


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without its broker, with the package under test."""
    import delivery as package

    own = {k: v for k, v in os.environ.items() if not k.startswith("DELIVERY_")}
    paths = (str(TESTS), str(Path(package.__file__).parents[1]))
    return {**own, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1", **more}
