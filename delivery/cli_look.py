"""The commands that look at the whole: status, ledger."""

from __future__ import annotations

import contextlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from delivery.terminal import Terminal, console, plain, show_json

if TYPE_CHECKING:
    from delivery.config import Config
    from delivery.observe import Waiting

__all__ = ["ledger", "status"]

Json = Annotated[bool, typer.Option("--json", help="For machines.")]


def status(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is pending, ready, unacked, waiting for a retry, dead, and who consumes.

    Example: delivery status --watch
    """
    from delivery.tables import status_table

    terminal: Terminal = context.obj
    config = terminal.config()
    if not watch and not as_json:
        console().print(status_table(*_look(config)))
    elif not watch:
        show_json(_fields(*_look(config)))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(config, as_json=as_json)


def _watch(config: Config, *, as_json: bool) -> None:
    """Show the state every second, as one screen or a JSON line, also while there is no broker."""
    import json
    import time

    from rich.live import Live

    from delivery.errors import TemporaryError
    from delivery.tables import status_table

    with Live(console=console(), auto_refresh=False) if not as_json else nullcontext() as live:
        while True:
            shown: Any
            try:
                summary, places = _look(config)
                shown = _fields(summary, places) if as_json else status_table(summary, places)
            except TemporaryError as error:
                shown = {"error": str(error)} if as_json else str(error)
            if live is None:
                typer.echo(json.dumps(shown, default=plain))
            else:
                live.update(shown, refresh=True)
            time.sleep(1)


def _fields(summary: dict[str, Any], places: list[Waiting]) -> dict[str, Any]:
    return {"outbox": summary, "recipients": places}


def ledger(
    context: typer.Context,
    within: Annotated[
        float, typer.Option(help="Seconds to wait for messages that are on the way.")
    ] = 6.0,
    as_json: Json = False,
) -> None:
    """Count each accepted event once for each recipient; exit 1 if the sums differ.

    accepted = applied + stale + dropped + dead + retry + unacked + ready + pending + difference

    Example: delivery ledger
    """
    from delivery.books import settled_accounts
    from delivery.tables import ledger_table

    terminal: Terminal = context.obj
    accounts = settled_accounts(terminal.config(), seconds=within)
    if as_json:
        show_json(accounts)
    else:
        console().print(ledger_table(accounts))
        for each in accounts:
            for name, ids in (("missing", each.missing), ("never accepted", each.never_accepted)):
                if ids:
                    shown = ", ".join(ids[:10]) + (" ..." if len(ids) > 10 else "")
                    typer.echo(f"{each.recipient}: {name}: {shown}")
            if each.missing:
                typer.echo(f"to find and heal: delivery reconcile {each.recipient}")
            if each.foreign_dead:
                typer.echo(f"{each.recipient}: {each.foreign_dead} dead that nobody accepted here")
    raise typer.Exit(0 if all(each.balanced for each in accounts) else 1)


def _look(config: Config) -> tuple[dict[str, Any], list[Waiting]]:
    from delivery.connection import connect
    from delivery.observe import waiting
    from delivery.routes import routes_of
    from delivery.stores import PUBLISHER
    from delivery.tracing import outbox_summary

    store = config.stores.open(PUBLISHER)
    summary = outbox_summary(store)
    store.close()
    with connect(config.named("status")) as connection:
        routes = routes_of(config.namespace)
        retries = len(config.retries_ms)
        management = config.management
        return summary, waiting(connection, routes, retries=retries, management=management)
