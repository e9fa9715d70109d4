"""The commands about the broker and this machine: broker up, down, status; doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from delivery.command_group import CommandGroup
from delivery.terminal import Terminal, console, say, show_json

__all__ = ["broker_app", "doctor"]

broker_app = typer.Typer(
    cls=CommandGroup,
    help="Find a broker, or start one that is ours to break.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Json = Annotated[bool, typer.Option("--json", help="For machines.")]


@broker_app.command()
def up(context: typer.Context) -> None:
    """Start the sandbox broker (or find the one that runs), and say how to reach it.

    Example: delivery broker up
    """
    from delivery.address import masked
    from delivery.sandbox import find_broker

    terminal: Terminal = context.obj
    broker = find_broker(terminal.environ, terminal.data, say)
    if broker.ours:
        typer.echo(f"export DELIVERY_AMQP_URL={broker.amqp_url}")
    else:  # whose password it is, knows it
        typer.echo(f"the broker of DELIVERY_AMQP_URL is ready: {masked(broker.amqp_url)}")


@broker_app.command()
def down(context: typer.Context) -> None:
    """Remove the sandbox broker and all that is in it. The SQLite files stay.

    Example: delivery broker down
    """
    from delivery.sandbox import broker_down

    terminal: Terminal = context.obj
    broker_down(terminal.environ, terminal.data, say)


@broker_app.command("status")
def broker_status_command(context: typer.Context, as_json: Json = False) -> None:
    """Say which broker would be used, and whether it answers; exit 1 if not.

    Example: delivery broker status --json
    """
    from delivery.address import masked
    from delivery.sandbox import broker_status

    terminal: Terminal = context.obj
    broker = broker_status(terminal.environ, terminal.data)
    running = broker is not None and broker.version != "unknown"
    urls = (broker.amqp_url, broker.management_url or "") if broker else ("", "")
    amqp, management = map(masked, urls)
    if as_json:
        fields: dict[str, object] = {"running": running}
        if broker is not None:
            fields |= {
                "kind": broker.kind.value,
                "version": broker.version,
                "amqp_url": amqp,
                "management_url": management or None,
                "ours": broker.ours,
            }
        show_json(fields)
    elif broker is None:
        typer.echo("no broker; start one with: delivery broker up")
    else:
        state = f"RabbitMQ {broker.version}" if running else "does not answer"
        typer.echo(f"{broker.kind.value}: {state}, {amqp}")
        typer.echo(f"management: {management or 'not known'}")
    raise typer.Exit(0 if running else 1)


def doctor(context: typer.Context, as_json: Json = False) -> None:
    """Say what this machine has, and one fix for each thing it lacks; exit 1 if something fails.

    Example: delivery doctor
    """
    from rich.table import Table

    from delivery.doctor import Verdict, diagnose

    terminal: Terminal = context.obj
    checks = diagnose(terminal.environ, terminal.data)
    if as_json:
        show_json(checks)
    else:
        table = Table("check", "", "seen", "fix", box=None, pad_edge=False)
        for check in checks:
            table.add_row(check.name, check.verdict.value, check.seen, check.fix)
        console().print(table)
    raise typer.Exit(1 if any(check.verdict is Verdict.FAIL for check in checks) else 0)
