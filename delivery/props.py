"""What the demo's scenes handle: requests, receipts, queues, and trouble made on purpose."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from delivery.cast import Actor, Cast, await_that
from delivery.client import post
from delivery.config import Config
from delivery.connection import connect
from delivery.errors import DeliveryError
from delivery.inbox import Receipt, receipt_of
from delivery.observe import Waiting, waiting
from delivery.routes import routes_of

__all__ = [
    "Stage",
    "accepted",
    "await_dead",
    "await_receipt",
    "count",
    "execute",
    "expect",
    "places",
    "receipt",
    "receiver",
    "retrying",
    "trouble",
]


@dataclass
class Stage:
    """What the scenes share: the settings, the processes, and where the API listens."""

    config: Config
    cast: Cast
    url: str = ""

    def await_that(self, condition: Callable[[], object], what: str) -> None:
        """Wait until *condition* holds. Raises DeliveryError if that takes too long."""
        await_that(condition, what, stop=self.cast.stop_asked)

    def tell(self, line: str) -> None:
        """Show one line to the audience."""
        print(line, flush=True)  # noqa: T201


def receiver(stage: Stage, recipient: str, **environ: str) -> Actor:
    """Start (again) a recipient."""
    return stage.cast.start(recipient, ["receive", recipient], **environ)


def accepted(stage: Stage, command: dict[str, Any]) -> str:
    """Publish one command; return its event id."""
    status, answer, _ = post(stage.url, command, uuid.uuid4().hex)
    expect(status == 202, f"the API answered {status} {answer}")
    return str(answer["event_id"])


@contextmanager
def trouble(stage: Stage, material_id: str) -> Iterator[None]:
    """Make the catalog's own database refuse *material_id*: a real error, from outside."""
    trigger = (
        "CREATE TRIGGER trouble BEFORE INSERT ON catalog WHEN NEW.material_id = '{}'"
        " BEGIN SELECT RAISE(ABORT, 'the search index is not ready'); END"
    )
    execute(stage, "catalog", trigger.format(material_id.replace("'", "''")))
    try:
        yield
    finally:
        execute(stage, "catalog", "DROP TRIGGER trouble")


def execute(stage: Stage, participant: str, statement: str) -> None:
    """Run one statement in a participant's store."""
    with closing(stage.config.stores.open(participant)) as store:
        store.execute(statement)


def count(stage: Stage, participant: str, table: str) -> int:
    """Count the rows of a participant's table."""
    with closing(stage.config.stores.open(participant)) as store:
        return int(store.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608


def receipt(stage: Stage, recipient: str, event_id: str) -> Receipt | None:
    """Return the recipient's receipt, None if there is none."""
    with closing(stage.config.stores.open(recipient)) as store:
        return receipt_of(store, recipient, event_id)


def await_receipt(stage: Stage, recipient: str, event_id: str) -> Receipt:
    """Wait for the recipient's receipt, and return it."""
    stage.await_that(lambda: receipt(stage, recipient, event_id), f"{recipient} has a receipt")
    found = receipt(stage, recipient, event_id)
    assert found is not None
    return found


def retrying(stage: Stage) -> int:
    """Count the catalog's messages that wait for a retry."""
    return sum(count or 0 for count in places(stage, "catalog").retry)


def await_dead(stage: Stage, recipient: str) -> None:
    """Wait until the recipient has one dead message."""
    stage.await_that(lambda: places(stage, recipient).dead == 1, f"{recipient} has a dead message")


def places(stage: Stage, recipient: str) -> Waiting:
    """Count where the recipient's messages wait."""
    with connect(stage.config.named("demo")) as connection:
        routes = routes_of(stage.config.namespace)
        found = waiting(connection, routes, retries=len(stage.config.retries_ms))
    return next(place for place in found if place.recipient == recipient)


def expect(condition: bool, otherwise: str) -> None:
    """Raise DeliveryError unless *condition* holds."""
    if not condition:
        raise DeliveryError(f"the demo did not go as it must: {otherwise}")
