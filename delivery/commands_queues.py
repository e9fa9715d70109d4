"""The commands that change queues which are in use: queues plan, change, limit, unlimit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from delivery.command_group import CommandGroup
from delivery.terminal import Terminal, say, show_json

if TYPE_CHECKING:
    from delivery.relocation import Move

__all__ = ["queues_app", "register"]

queues_app = typer.Typer(
    cls=CommandGroup,
    help="Other arguments for queues that are in use.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Json = Annotated[bool, typer.Option("--json", help="For machines.")]
Queue = Annotated[str, typer.Argument(help="Its name on the broker: delivery.catalog")]


def register(app: typer.Typer) -> None:
    """Add the group ``queues`` to the command line."""
    app.add_typer(queues_app, name="queues")


@queues_app.command()
def plan(context: typer.Context, as_json: Json = False) -> None:
    """Say which queues are not as the settings say (--retries, --queues). Nothing is changed.

    Example: delivery queues plan
    """
    from delivery.changing import plan_change

    terminal: Terminal = context.obj
    moves = plan_change(terminal.config())
    if as_json:
        show_json(moves)
        return
    _show(moves)
    say(
        "nothing is changed: delivery queues change QUEUE ..." if moves else "all as they should be"
    )


@queues_app.command()
def change(
    context: typer.Context,
    queues: Annotated[list[str], typer.Argument(help="Their names on the broker.")],
    as_json: Json = False,
) -> None:
    """Make the named queues what the settings say, messages and all.

    Their recipients must be stopped; the API and the relay may go on. Run it again after an
    interruption. Then start everything with the new settings.

    Example: delivery queues change delivery.catalog.retry.1
    """
    from delivery.changing import change_queues, plan_change
    from delivery.interrupted import told_if_interrupted

    terminal: Terminal = context.obj
    config = terminal.config()
    with told_if_interrupted(lambda: plan_change(config, queues)):
        moves = change_queues(config, queues)
    if as_json:
        show_json(moves)
        return
    _show(moves)
    say(f"{len(moves)} queues changed")


@queues_app.command()
def limit(
    context: typer.Context,
    queue: Queue,
    length: Annotated[int, typer.Option(min=1, help="At most so many ready messages.")],
    into: Annotated[
        str, typer.Option(help="The queue for the oldest beyond it; else publishers are refused.")
    ] = "",
    ttl_ms: Annotated[
        int | None, typer.Option(min=1, help="And none older than this; only with --into.")
    ] = None,
) -> None:
    """Bound a queue by a policy, at once and without a move: the declaration stays as it is.

    Example: delivery queues limit delivery.audit --length 100000 --into delivery.audit.dead
    """
    from delivery.errors import DeliveryError
    from delivery.limits import Refuse, Shed
    from delivery.policies import limit_queue

    if ttl_ms is not None and not into:
        raise DeliveryError("what is too old must go somewhere: --into QUEUE")
    terminal: Terminal = context.obj
    bound = Shed(length, ttl_ms, into) if into else Refuse(length)
    limit_queue(terminal.config(), queue, bound)
    beyond = f"the oldest beyond go to {into}" if into else "publishers of more are refused"
    typer.echo(f"{queue}: at most {length} ready; {beyond}")


@queues_app.command()
def unlimit(context: typer.Context, queue: Queue) -> None:
    """Take that limit away; exit 1 if there was none.

    Example: delivery queues unlimit delivery.audit
    """
    from delivery.policies import unlimit_queue

    terminal: Terminal = context.obj
    there = unlimit_queue(terminal.config(), queue)
    typer.echo(f"{queue}: {'the limit is gone' if there else 'there was no limit of ours'}")
    raise typer.Exit(0 if there else 1)


def _show(moves: list[Move]) -> None:
    for each in moves:
        readers = f", {each.consumers} reading: stop them first" if each.consumers else ""
        aside = f", {each.set_aside} set aside" if each.set_aside else ""
        typer.echo(f"{each.queue}: {each.kind}; {each.ready} ready{aside}{readers}")
