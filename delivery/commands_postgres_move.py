"""The commands that move a publisher to PostgreSQL, and judge it there: copy, ledger."""

from __future__ import annotations

from typing import Annotated

import typer

from delivery.cli_look import Json, Within, show_accounts
from delivery.commands_postgres import Inboxes, Url, inboxes_of, need_psycopg, postgres_app
from delivery.terminal import Terminal

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to the group that is in *app* already."""
    postgres_app.command("ledger")(ledger_command)
    postgres_app.command("copy")(copy_command)


def ledger_command(
    context: typer.Context,
    url: Url,
    inbox: Inboxes = None,
    within: Within = 6.0,
    as_json: Json = False,
) -> None:
    """Do what `delivery ledger` does, for a publisher in PostgreSQL.

    A recipient that --inbox does not name keeps its receipts in its SQLite file.

    Example: delivery postgres ledger --url postgresql://delivery@db/delivery
    """
    need_psycopg()
    from delivery.books import settled_accounts
    from delivery.ledger_stores import sqlite_shelves
    from delivery.postgres_books import postgres_shelves

    terminal: Terminal = context.obj
    others = sqlite_shelves(terminal.stores)
    shelves = postgres_shelves(url, inboxes_of(inbox), others)
    accounts = settled_accounts(terminal.config(), seconds=within, shelves=shelves)
    show_accounts(accounts, as_json=as_json, command="delivery postgres")


def copy_command(
    context: typer.Context,
    url: Url,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; otherwise only say what.")] = False,
) -> None:
    """Plan the copy of the SQLite publisher into PostgreSQL; with --apply, copy it.

    Materials, answered requests and events come along, all in one transaction. The SQLite API and
    relay must be stopped, and stay so: while they run, it is refused. Repeat it as often as you
    like.

    Example: delivery postgres copy --url postgresql://delivery@db/delivery --apply
    """
    need_psycopg()
    from contextlib import closing, nullcontext

    from delivery.errors import DeliveryError
    from delivery.postgres import open_postgres
    from delivery.postgres_copy import copy_publisher
    from delivery.postgres_publisher import SCHEMAS
    from delivery.relay import only_relay
    from delivery.served import unserved
    from delivery.stores import PUBLISHER

    terminal: Terminal = context.obj
    path = terminal.stores.path(PUBLISHER)
    if not path.exists():
        raise DeliveryError(f"there is no publisher's file {path}")
    with (
        only_relay(path),
        unserved(path) if apply else nullcontext(),  # what came after it would never be sent
        closing(terminal.stores.open(PUBLISHER)) as source,
        closing(open_postgres(url, *SCHEMAS, name="delivery copy")) as target,
    ):
        found = copy_publisher(source, target, apply=apply)
    said = (
        f"{found.pending} pending and {found.confirmed} confirmed rows to add, {found.marked} to"
        f" mark as confirmed, {found.known} are there already; {found.materials} materials and"
        f" {found.requests} answered requests to add"
    )
    if found.refusal():
        said += f"; REFUSED: {found.refusal()}"
    typer.echo(f"copied: {said}" if apply else f"plan: {said}; nothing is changed without --apply")
