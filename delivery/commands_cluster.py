"""The commands about a cluster, and the kind of queues that needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from delivery.command_group import CommandGroup
from delivery.terminal import SHAPES, Terminal, say, show_json

if TYPE_CHECKING:
    from delivery.terminal import Shape

__all__ = ["cluster_app", "register"]

cluster_app = typer.Typer(
    cls=CommandGroup,
    help="Queues that outlive a node.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the group ``cluster``, and what ``--queues quorum`` means."""
    app.add_typer(cluster_app, name="cluster")
    SHAPES["quorum"] = _quorum


def _quorum() -> Shape:
    from delivery.quorum import as_quorum

    return as_quorum


@cluster_app.command()
def run(context: typer.Context) -> None:
    """Start three nodes of one cluster, say where they are, and remove them at Ctrl-C.

    Example: delivery cluster run
    """
    import contextlib
    import signal

    from delivery.cluster import three_nodes

    terminal: Terminal = context.obj
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), three_nodes(terminal.environ, say) as cluster:
        plugin = f"DELIVERY_MANAGEMENT_URL={cluster.broker.management_url}"  # the first node's
        typer.echo(f"export DELIVERY_QUEUES=quorum DELIVERY_AMQP_URL={cluster.amqp_url} {plugin}")
        say("the cluster runs until Ctrl-C")
        signal.pause()


@cluster_app.command()
def move(
    context: typer.Context,
    apply: Annotated[bool, typer.Option("--apply", help="Move them; without it: plan.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Make the exchange's classic queues quorum queues, messages and all.

    The recipients must be stopped; the API and the relay may go on. Run it again after an
    interruption. Then start everything with --queues quorum (DELIVERY_QUEUES=quorum).

    Example: delivery cluster move --apply
    """
    from contextlib import nullcontext

    from delivery.interrupted import told_if_interrupted
    from delivery.moving import move_to_quorum, plan_move

    terminal: Terminal = context.obj
    config = terminal.config()
    with told_if_interrupted(lambda: plan_move(config)) if apply else nullcontext():
        moves = move_to_quorum(config) if apply else plan_move(config)
    if as_json:
        show_json({"applied": apply, "queues": moves})
        return
    for each in moves:
        readers = f", {each.consumers} reading: stop them first" if each.consumers else ""
        aside = f", {each.set_aside} set aside" if each.set_aside else ""
        typer.echo(f"{each.queue}: {each.kind}, {each.ready} ready{aside}{readers}")
    done = "moved to quorum" if apply else "to move to quorum (plan only: add --apply)"
    say(f"{len(moves)} queues {done}")
