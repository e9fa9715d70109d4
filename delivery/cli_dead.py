"""The commands on dead messages; here are those for groups, one in full, and the trail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from delivery.cli_act import drop, replay
from delivery.cli_list import list_command, plan
from delivery.command_group import CommandGroup
from delivery.terminal import Terminal, console, say, show_json

if TYPE_CHECKING:
    from delivery.lookout import Lookout

__all__ = ["dead_app"]

dead_app = typer.Typer(
    cls=CommandGroup,
    help="Messages that could not be processed: look, plan, replay, drop.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Recipient = Annotated[str, typer.Argument(help="catalog or audit")]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]


def _lookout(context: typer.Context, recipient: str) -> Lookout:
    from delivery.lookout import Lookout

    terminal: Terminal = context.obj
    return Lookout(terminal.config(), recipient, sides=terminal.sides)


@dead_app.command()
def groups(
    context: typer.Context,
    recipient: Annotated[str, typer.Argument(help="catalog or audit; both, if left out")] = "",
    as_json: Json = False,
) -> None:
    """Count the dead messages by recipient and reason, with the first and the last time.

    Example: delivery dead groups
    """
    from delivery.groups import groups_of
    from delivery.routes import RECIPIENTS
    from delivery.triage_tables import groups_table

    found = []
    for name in (recipient,) if recipient else RECIPIENTS:
        with _lookout(context, name) as lookout:
            found += groups_of(name, lookout.each())
    if as_json:
        show_json(found)
    else:
        console().print(groups_table(found))


@dead_app.command()
def show(
    context: typer.Context,
    recipient: Recipient,
    key: Annotated[str, typer.Argument(metavar="ID", help="The message's id, or how it begins.")],
    as_json: Json = False,
) -> None:
    """Show one dead message in full: properties, headers, error, traceback, decoded body.

    Example: delivery dead show catalog 0f8e
    """
    from delivery.triage_tables import dead_in_full, full_lines

    with _lookout(context, recipient) as lookout:
        found = lookout.find(key)
    if as_json:
        show_json([dead_in_full(message) for message in found])
        return
    for message in found:
        for line in full_lines(message):
            typer.echo(line)


@dead_app.command()
def trail(
    context: typer.Context,
    recipient: Annotated[str, typer.Argument(help="catalog or audit; both, if left out")] = "",
    key: Annotated[str, typer.Option("--id", help="One message's id, or how it begins.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="The latest so many.")] = 50,
    as_json: Json = False,
) -> None:
    """Say who did what to which message, why, and what came of it. Needs no broker.

    Example: delivery dead trail catalog
    """
    from contextlib import closing

    from delivery.routes import check_recipient
    from delivery.triage_tables import trail_lines

    terminal: Terminal = context.obj
    if recipient:
        check_recipient(recipient)
    with closing(terminal.sides.publisher()) as publisher:
        found = publisher.entries(recipient=recipient, message_id=key, limit=limit)
    if as_json:
        show_json(found)
        return
    if not found:
        say("the trail is empty")
    for line in trail_lines(found):
        typer.echo(line)


dead_app.command("list")(list_command)
dead_app.command()(plan)
dead_app.command()(replay)
dead_app.command()(drop)
