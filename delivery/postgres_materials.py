"""Decide on a command in PostgreSQL: material, request and outbox row commit together."""

from __future__ import annotations

import json
from dataclasses import asdict

from delivery import postgres_outbox
from delivery.contract import MaterialPublished, PublishMaterial
from delivery.materials import Accepted, answer_under, digest_of, next_event
from delivery.postgres import Connection, transaction
from delivery.postgres_turns import take_turn
from delivery.store import Schema

__all__ = ["SCHEMA", "accept"]

_KEYS = 5674  # the first of the two numbers of each key's advisory lock

# A request goes with its event's row when that is removed; then its key may be used anew.
SCHEMA = Schema(
    "materials",
    1,
    """
CREATE TABLE material (
    material_id text PRIMARY KEY,
    revision bigint NOT NULL,
    title text NOT NULL,
    slug text NOT NULL,
    author text NOT NULL,
    summary text NOT NULL,
    published_at timestamptz NOT NULL
);
CREATE TABLE request (
    idempotency_key text PRIMARY KEY,
    digest text NOT NULL,
    answer text NOT NULL,
    accepted_at timestamptz NOT NULL,
    event_id text NOT NULL UNIQUE REFERENCES outbox (event_id) ON DELETE CASCADE
)
""",
)


def accept(
    store: Connection,
    material_id: str,
    command: PublishMaterial,
    *,
    key: str,
    traceparent: str | None = None,
) -> tuple[Accepted, bool]:
    """Publish the material's next revision, as materials.accept does; the server's clock counts.

    Requests with one key take turns until the commit, and so do the writers of one material: each
    looks only when the one before it has committed.
    """
    digest = digest_of(material_id, command)
    with transaction(store) as tx:
        tx.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_KEYS, key))
        request = tx.execute(
            "SELECT digest, answer FROM request WHERE idempotency_key = %s", (key,)
        ).fetchone()
        if known := answer_under(key, request, digest):
            return known, True
        take_turn(tx, material_id)
        current, now = tx.execute(
            "SELECT coalesce((SELECT revision FROM material WHERE material_id = %s), 0),"
            " extract(epoch FROM clock_timestamp())::float8",
            (material_id,),
        ).fetchone() or (0, 0.0)
        event = next_event(material_id, command, current, now)
        answer = Accepted(material_id, event.data.revision, event.id)
        _write_material(tx, event.data, command.summary)
        postgres_outbox.add(tx, event, correlation_id=key, accepted_at=now, traceparent=traceparent)
        tx.execute(
            "INSERT INTO request VALUES (%s, %s, %s, to_timestamp(%s), %s)",
            (key, digest, json.dumps(asdict(answer)), now, event.id),
        )
    return answer, False


def _write_material(tx: Connection, data: MaterialPublished, summary: str) -> None:
    tx.execute(
        "INSERT INTO material VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (material_id)"
        " DO UPDATE SET revision = excluded.revision, title = excluded.title,"
        " slug = excluded.slug, author = excluded.author, summary = excluded.summary,"
        " published_at = excluded.published_at",
        (
            *(data.material_id, data.revision, data.title, data.slug, data.author, summary),
            data.published_at,
        ),
    )
