"""The commands about dead messages: list, show, plan, replay, drop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from delivery.errors import DeliveryError
from delivery.terminal import Terminal, console, operator, show_json

if TYPE_CHECKING:
    from delivery.desk import Desk

__all__ = ["dead_app"]

dead_app = typer.Typer(
    help="Messages that could not be processed: look, plan, replay, drop.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Recipient = Annotated[str, typer.Argument(help="catalog or audit")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="A message; may be repeated.")]
All = Annotated[bool, typer.Option("--all", help="Every dead message of the recipient.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept with your name.")]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]


def _desk(context: typer.Context, recipient: str) -> Desk:
    from delivery.desk import Desk

    terminal: Terminal = context.obj
    return Desk(terminal.config(), recipient)


@dead_app.command("list")
def list_command(context: typer.Context, recipient: Recipient, as_json: Json = False) -> None:
    """List a recipient's dead messages, oldest first.

    Example: delivery dead list catalog
    """
    from delivery.tables import dead_fields, dead_table

    with _desk(context, recipient) as desk:
        messages = desk.browse()
    if as_json:
        show_json([dead_fields(message) for message in messages])
    else:
        console().print(dead_table(recipient, messages))


@dead_app.command()
def show(context: typer.Context, recipient: Recipient, key: str) -> None:
    """Show one dead message in full, as JSON: properties, headers, error, body.

    Example: delivery dead show catalog 0f8e...
    """
    from delivery.tables import dead_in_full

    with _desk(context, recipient) as desk:
        found = [message for message in desk.browse() if message.key == key]
        if not found:
            raise DeliveryError(desk.absence(key))
    for message in found:
        show_json(dead_in_full(message))


@dead_app.command()
def plan(context: typer.Context, recipient: Recipient, as_json: Json = False) -> None:
    """Say for each dead message what a replay would do. Nothing is changed.

    Example: delivery dead plan catalog
    """
    from delivery.tables import plan_fields, plan_table

    with _desk(context, recipient) as desk:
        planned = desk.plan()
    if as_json:
        show_json([plan_fields(each) for each in planned])
    else:
        console().print(plan_table(recipient, planned))


@dead_app.command()
def replay(
    context: typer.Context,
    recipient: Recipient,
    reason: Reason,
    ids: Ids = None,
    every: All = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even where a receipt may have been pruned.")
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the results.")] = 15.0,
) -> None:
    """Send dead messages to their own recipient again, and say what became of each.

    Look at the plan first. Exit 1 unless each was applied, or was settled before.

    Example: delivery dead replay catalog --id 0f8e... --reason "index is back"
    """
    from delivery.plan import Result

    with _desk(context, recipient) as desk:
        keys = desk.choose(ids or [], every=every)
        results = desk.replay(keys, reason=reason, operator=operator(), force=force, seconds=wait)
        vanished = keys - {planned.message.key for planned, _ in results}
        for planned, result in results:
            typer.echo(f"{planned.message.key}  {result.value}")
        for key in sorted(vanished):
            typer.echo(desk.absence(key))
    good = (Result.APPLIED, Result.ALREADY_APPLIED, Result.STALE)
    done = not vanished and all(result in good for _, result in results)
    raise typer.Exit(0 if done else 1)


@dead_app.command()
def drop(
    context: typer.Context,
    recipient: Recipient,
    reason: Reason,
    ids: Ids = None,
    every: All = False,
) -> None:
    """Give dead messages up for good. The ledger counts them as dropped.

    Example: delivery dead drop catalog --id 0f8e... --reason "test data"
    """
    with _desk(context, recipient) as desk:
        keys = desk.choose(ids or [], every=every)
        dropped = {each.key for each in desk.drop(keys, reason=reason, operator=operator())}
        for key in sorted(keys):
            typer.echo(f"{key}  dropped" if key in dropped else desk.absence(key))
    raise typer.Exit(0 if dropped == keys else 1)
