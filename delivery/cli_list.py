"""The commands that list dead messages: list and plan."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated

import typer

from delivery.listing import ROWS
from delivery.terminal import Terminal, console, say, show_json_list

if TYPE_CHECKING:
    from delivery.sheet import Sheet

__all__ = ["list_command", "plan"]

Recipient = Annotated[str, typer.Argument(help="catalog or audit")]
Group = Annotated[str, typer.Option(help="Only what is dead for this reason.")]
Limit = Annotated[int, typer.Option(min=1, max=ROWS, help="The oldest so many.")]
Every = Annotated[bool, typer.Option("--all", help="Every one, a line each.")]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]


def list_command(
    context: typer.Context,
    recipient: Recipient,
    group: Group = "",
    limit: Limit = ROWS,
    every: Every = False,
    as_json: Json = False,
) -> None:
    """List a recipient's dead messages, oldest first.

    Example: delivery dead list catalog
    """
    from delivery.listing import lines, rest
    from delivery.sheet import Sheet
    from delivery.tables import DEAD_COLUMNS, dead_cells, dead_fields, dead_table

    with closing(Sheet()) as sheet:
        _write(sheet, context, recipient, group)
        title = f"dead messages of {recipient}: {len(sheet)}"
        if as_json:
            show_json_list(map(dead_fields, sheet.messages()))
        elif every:
            _echo(chain([title], lines(DEAD_COLUMNS, map(dead_cells, sheet.messages()))))
        else:
            console().print(dead_table(title, islice(sheet.messages(), limit)))
            _echo(rest(limit, sheet.reasons()))


def plan(
    context: typer.Context,
    recipient: Recipient,
    group: Group = "",
    limit: Limit = ROWS,
    every: Every = False,
    as_json: Json = False,
) -> None:
    """Say for each dead message what a replay would do. Nothing is changed.

    Example: delivery dead plan catalog
    """
    from delivery.listing import lines, rest
    from delivery.sheet import Sheet
    from delivery.tables import PLAN_COLUMNS, plan_cells, plan_fields, plan_table

    with closing(Sheet()) as sheet:
        _write(sheet, context, recipient, group, planned=True)
        title = f"replay plan for {recipient} (nothing was changed): {len(sheet)}"
        if as_json:
            show_json_list(map(plan_fields, sheet.planned()))
        elif every:
            _echo(chain([title], lines(PLAN_COLUMNS, map(plan_cells, sheet.planned()))))
        else:
            console().print(plan_table(title, islice(sheet.planned(), limit)))
            _echo(rest(limit, {each.value: n for each, n in sheet.prospects().items()}))


def _write(
    sheet: Sheet, context: typer.Context, recipient: str, group: str, *, planned: bool = False
) -> None:
    """Write the dead messages down, and let go of them: whoever reads what is shown may be slow."""
    from delivery.lookout import Lookout
    from delivery.progress import ticker, told

    terminal: Terminal = context.obj
    with Lookout(terminal.config(), recipient, sides=terminal.sides) as lookout:
        dead = told(lookout.each(), ticker(say, "read"))
        sheet.write(each for each in dead if group in ("", each.reason))
        if planned:
            sheet.plan(lookout.plan)


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)
