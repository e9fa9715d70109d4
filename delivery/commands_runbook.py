"""What the runbook adds to groups that there are: access rotate and disconnect, cluster check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delivery.commands_access import access_app
from delivery.commands_cluster import cluster_app
from delivery.terminal import Terminal, show_json

if TYPE_CHECKING:
    from delivery.access import Access
    from delivery.config import Config
    from delivery.management import Management
    from delivery.nodes import NodeState

__all__ = ["register"]

Role = Annotated[str, typer.Argument(help="relay, catalog, audit, ...: delivery access plan")]


def register(app: typer.Typer) -> None:
    """Add nothing of its own: the commands are in groups that other modules register."""


@access_app.command("rotate")
def rotate_command(
    context: typer.Context,
    role: Role,
    passwords: Annotated[
        Path | None,
        typer.Option(help="Folder of the password files; default: access in the data folder."),
    ] = None,
) -> None:
    """Give a role's user a new password: into its file, then onto the broker.

    What is connected goes on. Restart the service now, then: delivery access disconnect ROLE.
    Needs an administrator's login.

    Example: delivery access rotate relay
    """
    from delivery.rotation import rotate
    from delivery.users import vhost_of

    config, management, access = _role(context, role)
    folder = passwords or config.stores.data / "access"
    rotate(management, vhost_of(config.broker.url), access, folder)
    typer.echo(f"{access.user} has a new password: restart {role} now")


@access_app.command("disconnect")
def disconnect_command(context: typer.Context, role: Role) -> None:
    """Close every connection of a role's user: who knows the old password only stays out.

    The service comes back by itself. Needs an administrator's login.

    Example: delivery access disconnect relay
    """
    from delivery.rotation import disconnect

    _, management, access = _role(context, role)
    typer.echo(f"{access.user}: {disconnect(management, access.user)} connections closed")


@cluster_app.command()
def check(
    context: typer.Context,
    within: Annotated[float, typer.Option(help="Seconds to wait until it is so.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say whether any one node could go now: exit 1 if a queue of this exchange would miss it.

    Ask before a node is drained, and after it is back.

    Example: delivery cluster check --within 120
    """
    import time

    from delivery.nodes import trouble

    config, management = _broker(context)
    end = time.monotonic() + within
    while (against := trouble(states := _look(config, management))) and time.monotonic() < end:
        time.sleep(0.5)
    if as_json:
        show_json({"nodes": states, "against": against})
    else:
        for each in states:
            typer.echo(f"{each.name}: leads {each.leads} queues")
        for sentence in against or ["any one node may go"]:
            typer.echo(sentence)
    raise typer.Exit(1 if against else 0)


def _look(config: Config, management: Management) -> list[NodeState]:
    from delivery.nodes import node_states

    return node_states(management, f"{config.namespace}.")


def _role(context: typer.Context, role: str) -> tuple[Config, Management, Access]:
    from delivery.access import accesses
    from delivery.errors import DeliveryError
    from delivery.routes import routes_of

    config, management = _broker(context)
    planned = accesses(config.namespace, config.topology(), routes_of(config.namespace))
    for access in planned:
        if access.role == role:
            return config, management, access
    have = ", ".join(each.role for each in planned)
    raise DeliveryError(f"there is no role {role!r}; there are: {have}")


def _broker(context: typer.Context) -> tuple[Config, Management]:
    terminal: Terminal = context.obj
    config = terminal.config()
    return config, config.need_management("this is done through")
