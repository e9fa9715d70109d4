"""The commands that look at the whole: status, ledger, reconcile."""

from __future__ import annotations

import contextlib
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from delivery.terminal import Terminal, console, plain, show_json

if TYPE_CHECKING:
    from delivery.ledger import Account
    from delivery.watch import Watcher

__all__ = ["Json", "Within", "ledger", "show_accounts", "status"]

Json = Annotated[bool, typer.Option("--json", help="For machines.")]
Within = Annotated[float, typer.Option(help="Seconds to wait for messages that are on the way.")]


def status(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is pending, parked, ready, unacked, in a retry, dead, settled; and who consumes.

    Counts from the broker are exact, but for unacked: the management plugin's samples are up to 5 s
    old. Each figure says how old it is, and what nobody could tell is not visible, never 0.
    Exit 1 if the broker could not be asked.

    Example: delivery status --watch
    """
    from delivery.status_screen import status_screen
    from delivery.watch import Watcher

    terminal: Terminal = context.obj
    with closing(
        Watcher(terminal.config_on(None), terminal.sides, find=terminal.config)
    ) as watcher:
        if watch:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(watcher, as_json=as_json)
            return
        snapshot = watcher.look()
    if as_json:
        show_json(snapshot.fields())
    else:
        console().print(status_screen(snapshot))
    if snapshot.error:
        raise typer.Exit(1)


def _watch(watcher: Watcher, *, as_json: bool) -> None:
    """Show the state every second, as one screen or a JSON line, also while there is no broker."""
    import json
    import time

    from rich.live import Live

    from delivery.status_screen import status_screen
    from delivery.store import StoreUnavailable

    shown: Any
    screen = None if as_json else Live(console=console(wrap=True), auto_refresh=False)
    with screen or nullcontext() as live:
        while True:
            try:
                snapshot = watcher.look()
            except StoreUnavailable as error:
                fields, shown = {"error": str(error)}, str(error)
            else:
                fields, shown = snapshot.fields(), status_screen(snapshot)
            if live is None:
                typer.echo(json.dumps(fields, default=plain))
            else:
                live.update(shown, refresh=True)
            time.sleep(1)


def ledger(
    context: typer.Context,
    within: Within = 6.0,
    as_json: Json = False,
) -> None:
    """Count each accepted event once for each recipient; exit 1 if the sums differ.

    accepted = applied + stale + dropped + forgotten + dead + parked + retry + unacked + ready
    + pending + difference

    Example: delivery ledger
    """
    from delivery.books import settled_accounts

    terminal: Terminal = context.obj
    show_accounts(settled_accounts(terminal.config(), seconds=within), as_json=as_json)


def show_accounts(accounts: list[Account], *, as_json: bool, command: str = "delivery") -> None:
    """Print the ledger, and end the command: with 1 if the sums differ."""
    from delivery.tables import ledger_table

    if as_json:
        show_json(accounts)
    else:
        console().print(ledger_table(accounts))
        for each in accounts:
            for name, ids in (("missing", each.missing), ("never accepted", each.never_accepted)):
                if ids:
                    shown = ", ".join(ids[:10]) + (" ..." if len(ids) > 10 else "")
                    typer.echo(f"{each.recipient}: {name}: {shown}")
            if each.parked:
                typer.echo(f"{each.recipient}: {each.parked} parked: {command} unrouted list")
            if each.missing:
                typer.echo(f"to find and heal: {command} reconcile {each.recipient}")
            if each.foreign_dead:
                typer.echo(f"{each.recipient}: {each.foreign_dead} dead that nobody accepted here")
    raise typer.Exit(0 if all(each.balanced for each in accounts) else 1)
