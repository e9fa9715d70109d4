"""The operator's commands on an exchange in PostgreSQL: those for SQLite, with another store."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import typer

from delivery.cli_dead import dead_app
from delivery.cli_look import status
from delivery.cli_reconcile import reconcile
from delivery.cli_trace import trace
from delivery.command_group import CommandGroup
from delivery.commands_lanes import unrouted_app
from delivery.commands_postgres import Inboxes, Url, inboxes_of, need_psycopg, postgres_app
from delivery.terminal import Terminal

__all__ = ["register"]

URL = "postgresql://delivery@db/delivery"
EXAMPLE = re.compile("Example: delivery (.*)")
OWN = {"url": (Url, inspect.Parameter.empty), "inbox": (Inboxes, None)}


def register(app: typer.Typer) -> None:
    """Add the commands to the group that is in *app* already."""
    for command in (status, trace, reconcile):
        postgres_app.command(command.__name__)(_on_postgres(command))
    for name, group in (("dead", dead_app), ("unrouted", unrouted_app)):
        on_postgres = typer.Typer(
            cls=CommandGroup, help=group.info.help, no_args_is_help=True, rich_markup_mode=None
        )
        for each in group.registered_commands:
            if each.callback and each.name != "declare":  # that asks no store
                on_postgres.command(each.name)(_on_postgres(each.callback))
        postgres_app.add_typer(on_postgres, name=name)


def _on_postgres(command: Callable[..., Any]) -> Callable[..., None]:
    """Return *command* with --url and --inbox besides its own options."""

    def run(context: typer.Context, url: str, inbox: list[str] | None, **given: Any) -> None:
        need_psycopg()
        from delivery.postgres_sides import postgres_sides

        terminal: Terminal = context.obj
        sides = postgres_sides(url, inboxes_of(inbox), terminal.sides)
        context.obj = replace(terminal, elsewhere=sides)
        command(context, **given)

    # Typer reads a command's options from its signature, and calls it by their names.
    of_command = inspect.signature(command, eval_str=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(name, kind, annotation=annotation, default=default)
        for name, (annotation, default) in OWN.items()
    ]
    every = [*(each.replace(kind=kind) for each in of_command.parameters.values()), *more]
    run.__signature__ = of_command.replace(parameters=every)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in every}
    run.__name__ = command.__name__
    run.__doc__ = EXAMPLE.sub(rf"Example: delivery postgres \1 --url {URL}", command.__doc__ or "")
    return run
