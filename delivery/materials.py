"""Decide on a command: material, request and outbox row commit together, or none does."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from delivery import outbox
from delivery.contract import Event, MaterialPublished, PublishMaterial, material_published
from delivery.errors import DeliveryError
from delivery.identity import new_event_id
from delivery.points import reach
from delivery.store import Schema, transaction

__all__ = [
    "SCHEMA",
    "Accepted",
    "KeyReused",
    "Refusal",
    "Request",
    "RevisionMismatch",
    "accept",
    "accept_all",
    "answer_under",
    "digest_of",
    "next_event",
]

SCHEMA = Schema(
    "materials",
    1,
    """
CREATE TABLE material (
    material_id TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    title TEXT NOT NULL,
    slug TEXT NOT NULL,
    author TEXT NOT NULL,
    summary TEXT NOT NULL,
    published_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE request (
    idempotency_key TEXT PRIMARY KEY,
    digest TEXT NOT NULL,
    answer TEXT NOT NULL,
    accepted_at REAL NOT NULL
) STRICT, WITHOUT ROWID
""",
)


@dataclass(frozen=True)
class Accepted:
    """The answer to an accepted command; the same for every repetition of its request."""

    material_id: str
    revision: int
    event_id: str


@dataclass(frozen=True)
class Request:
    """A command on a material, under the idempotency key that its repetitions share."""

    material_id: str
    command: PublishMaterial
    key: str
    traceparent: str | None = None


class Refusal(DeliveryError):
    """The command can't be accepted, and nothing was written."""


class KeyReused(Refusal):
    """The idempotency key belongs to another command."""


class RevisionMismatch(Refusal):
    """The material is not at the revision that the command was written for."""


def accept(
    store: sqlite3.Connection,
    material_id: str,
    command: PublishMaterial,
    *,
    key: str,
    traceparent: str | None = None,
    clock: Callable[[], float] = time.time,
) -> tuple[Accepted, bool]:
    """Publish the material's next revision; return the answer, and whether it is a repeated one.

    *key* is the request's idempotency key, *traceparent* what it belongs to. Raises KeyReused,
    RevisionMismatch, StoreUnavailable; a refused command leaves nothing behind, so its key may be
    used again.
    """
    request = Request(material_id, command, key, traceparent)
    (answer,) = accept_all(store, [request], clock=clock)
    if isinstance(answer, Refusal):
        raise answer
    return answer


def accept_all(
    store: sqlite3.Connection,
    requests: Sequence[Request],
    *,
    clock: Callable[[], float] = time.time,
) -> list[tuple[Accepted, bool] | Refusal]:
    """Do what accept does for each of *requests*, in one transaction; say why one is refused.

    Raises StoreUnavailable: then none of them is accepted.
    """
    with transaction(store) as tx:
        answers = [_accept_alone(tx, request, clock()) for request in requests]
    reach("materials.committed")
    return answers


def _accept_alone(
    tx: sqlite3.Connection, request: Request, now: float
) -> tuple[Accepted, bool] | Refusal:
    try:
        return _accept(tx, request, now)
    except Refusal as refusal:  # before the first write: there is nothing to undo
        return refusal


def _accept(tx: sqlite3.Connection, request: Request, now: float) -> tuple[Accepted, bool]:
    material_id, command, key = request.material_id, request.command, request.key
    digest = digest_of(material_id, command)
    if known := answer_under(key, _request(tx, key), digest):
        return known, True
    event = next_event(material_id, command, _current_revision(tx, material_id), now)
    answer = Accepted(material_id, event.data.revision, event.id)
    _write_material(tx, event.data, command.summary)
    tx.execute(
        "INSERT INTO request VALUES (?, ?, ?, ?)",
        (key, digest, json.dumps(asdict(answer)), now),
    )
    outbox.add(tx, event, correlation_id=key, accepted_at=now, traceparent=request.traceparent)
    reach("materials.written")
    return answer, False


def digest_of(material_id: str, command: PublishMaterial) -> str:
    """Return what all repetitions of one request have in common."""
    return hashlib.sha256(f"{material_id}\n{command.model_dump_json()}".encode()).hexdigest()


def answer_under(key: str, request: tuple[str, str] | None, digest: str) -> Accepted | None:
    """Return the answer that *request* (its digest and answer, under *key*) has had, if any.

    Raises KeyReused if that was another request than *digest*'s.
    """
    if request is None:
        return None
    if request[0] != digest:
        raise KeyReused(f"the key {key!r} was used for another command; take a new one")
    return Accepted(**json.loads(request[1]))


def next_event(material_id: str, command: PublishMaterial, current: int, now: float) -> Event:
    """Return the event of the material's revision after *current*. Raises RevisionMismatch."""
    if command.expected_revision not in (None, current):
        raise RevisionMismatch(
            f"material {material_id!r} is at revision {current}, not {command.expected_revision}"
        )
    data = MaterialPublished(
        material_id=material_id,
        revision=current + 1,
        title=command.title,
        slug=command.slug,
        author=command.author,
        published_at=datetime.fromtimestamp(now, UTC),
    )
    return material_published(new_event_id(now), data)


def _request(tx: sqlite3.Connection, key: str) -> tuple[str, str] | None:
    found: tuple[str, str] | None = tx.execute(
        "SELECT digest, answer FROM request WHERE idempotency_key = ?", (key,)
    ).fetchone()
    return found


def _current_revision(tx: sqlite3.Connection, material_id: str) -> int:
    row = tx.execute(
        "SELECT revision FROM material WHERE material_id = ?", (material_id,)
    ).fetchone()
    return int(row[0]) if row else 0


def _write_material(tx: sqlite3.Connection, data: MaterialPublished, summary: str) -> None:
    tx.execute(
        "INSERT INTO material VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (material_id) DO UPDATE SET"
        " revision = excluded.revision, title = excluded.title, slug = excluded.slug,"
        " author = excluded.author, summary = excluded.summary,"
        " published_at = excluded.published_at",
        (
            data.material_id,
            data.revision,
            data.title,
            data.slug,
            data.author,
            summary,
            data.published_at.isoformat(),
        ),
    )
