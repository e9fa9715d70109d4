"""The command that says how a relay or a recipient is: health."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import typer

from delivery.terminal import Terminal, show_json

__all__ = ["health"]


def health(
    context: typer.Context,
    process: Annotated[Literal["relay", "catalog", "audit"], typer.Argument()],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say whether a process on this machine is ready, or why not; exit 1 unless it is.

    For health checks of containers: it reads a file of the data folder and asks no broker. Of
    several such processes, all must be ready.

    Example: delivery health relay
    """
    from delivery.visible import visible
    from delivery.vitals import State, healths

    terminal: Terminal = context.obj
    found = healths(terminal.data, process)
    if as_json:
        show_json(found)
    else:
        for each in found:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.since))
            reason = f": {visible(each.reason)}" if each.reason else ""
            typer.echo(f"{process} {each.state.value} since {since}, process {each.pid}{reason}")
        if not found:
            typer.echo(f"{process} not running: no such process uses {terminal.data}")
    ready = bool(found) and all(each.state is State.READY for each in found)
    raise typer.Exit(0 if ready else 1)
