"""The commands that look at the whole: status, ledger, reconcile."""

from __future__ import annotations

import contextlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from delivery.terminal import Terminal, console, operator, plain, say, show_json

if TYPE_CHECKING:
    from delivery.config import Config
    from delivery.observe import Waiting

__all__ = ["ledger", "reconcile", "status"]

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


def reconcile(
    context: typer.Context,
    recipient: Annotated[str, typer.Argument(help="catalog or audit")],
    grace: Annotated[
        float, typer.Option(min=0, help="Leave alone what was confirmed within so many seconds.")
    ] = 60.0,
    apply: Annotated[bool, typer.Option("--apply", help="Send them; without it: plan.")] = False,
    as_json: Json = False,
) -> None:
    """Find accepted events that a recipient never settled, and (--apply) send them to it again.

    Safe at any time: what did arrive is recognised by its receipt. Events from before the last
    pruning of receipts are left out.

    Example: delivery reconcile catalog
    """
    from delivery.lookout import Lookout
    from delivery.pipeline import ConfirmedChannel
    from delivery.reconcile import missing, send_again
    from delivery.stores import PUBLISHER
    from delivery.trail import begin, conclude

    terminal: Terminal = context.obj
    config = terminal.config()
    route = config.route(recipient)
    with Lookout(config, recipient) as lookout:
        dead = {message.key for message in lookout.browse() if message.is_event}
    feed, inbox = config.stores.open(PUBLISHER), config.stores.open(recipient)
    found = missing(feed, inbox, route, dead=dead, grace=grace)
    if apply and found:
        who, why = operator(), "reconcile: neither a receipt nor a dead message"
        acts = [
            begin(feed, "send again", recipient, each.event_id, operator=who, reason=why)
            for each in found
        ]
        with ConfirmedChannel(config.named("reconcile")) as channel:
            send_again(channel, route, found)
        conclude(feed, [(act, "sent") for act in acts])
    ids = [event.event_id for event in found]
    if as_json:
        show_json({"recipient": recipient, "missing": ids, "sent": apply})
        return
    for event_id in ids:
        typer.echo(event_id)
    if grace:
        say(f"events confirmed less than {grace:g} s ago were left alone (--grace)")
    done = "sent again" if apply else "to send again (plan only: add --apply)"
    say(f"{recipient}: {len(ids)} {done}")


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
