"""The commands about the topology: declare, lint, diagram, asyncapi."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from delivery.command_group import CommandGroup
from delivery.terminal import Terminal, show_json

if TYPE_CHECKING:
    from delivery.config import Config

__all__ = ["topology_app"]

topology_app = typer.Typer(
    cls=CommandGroup,
    help="What the exchange needs on the broker.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@topology_app.command("declare")
def declare_command(context: typer.Context) -> None:
    """Lint the topology, then declare it: all of it, or nothing if something there differs.

    Example: delivery topology declare
    """
    from delivery.services import prepare

    terminal: Terminal = context.obj
    config = terminal.config(start_broker=True)
    prepare(config, "topology")
    topology = config.topology()
    typer.echo(
        f"declared on {config.broker.address}: {len(topology.exchanges)} exchange(s),"
        f" {len(topology.queues)} queues, {len(topology.bindings)} bindings"
    )


@topology_app.command("lint")
def lint_command(context: typer.Context) -> None:
    """Look for mistakes that the broker would accept without a word; exit 1 if there are any.

    Example: delivery topology lint
    """
    problems = _offline(context).problems()
    for problem in problems:
        typer.echo(str(problem))
    if not problems:
        typer.echo("no problem found")
    raise typer.Exit(1 if problems else 0)


@topology_app.command()
def diagram(context: typer.Context) -> None:
    """Draw the topology as a Mermaid flowchart.

    Example: delivery topology diagram > topology.mmd
    """
    from delivery.diagram import mermaid

    typer.echo(mermaid(_offline(context).topology()), nl=False)


@topology_app.command()
def asyncapi(context: typer.Context) -> None:
    """Print the AsyncAPI 3 document of the exchange.

    Example: delivery topology asyncapi > data/asyncapi.json
    """
    from delivery.asyncapi import document

    show_json(document(_offline(context).topology()))


def _offline(context: typer.Context) -> Config:
    """Return the settings without looking for a broker: a picture needs none."""
    from delivery.config import Config, retries_of
    from delivery.connection import BrokerSettings

    terminal: Terminal = context.obj
    return Config(
        broker=BrokerSettings(url=""),
        stores=terminal.stores,
        namespace=terminal.namespace,
        retries_ms=retries_of(terminal.retries_ms),
        shape=terminal.shape,
    )
