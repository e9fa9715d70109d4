"""The commands that act on dead messages: replay and drop."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from delivery.terminal import Terminal, operator, say, show_json_list

if TYPE_CHECKING:
    from delivery.acts import Acts
    from delivery.desk import Desk

__all__ = ["drop", "replay"]

Recipient = Annotated[str, typer.Argument(help="catalog or audit")]
Ids = Annotated[
    list[str] | None, typer.Option("--id", help="A message, or how its id begins; repeatable.")
]
Group = Annotated[str, typer.Option(help="Every one that is dead for this reason.")]
All = Annotated[bool, typer.Option("--all", help="Every dead message of the recipient.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept with your name.")]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]


def _desk(context: typer.Context, recipient: str) -> Desk:
    from delivery.desk import Desk

    terminal: Terminal = context.obj
    return Desk(terminal.config(), recipient, sides=terminal.sides, say=say)


def replay(
    context: typer.Context,
    recipient: Recipient,
    *,
    reason: Reason,
    ids: Ids = None,
    group: Group = "",
    every: All = False,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="At most so many messages a second.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even where a receipt may have been pruned.")
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the results.")] = 15.0,
    as_json: Json = False,
) -> None:
    """Send dead messages to their own recipient again, and say what became of each.

    Look at the plan first. Exit 1 unless each was applied, or was settled before.

    Example: delivery dead replay catalog --group exhausted --rate 50 --reason "index is back"
    """
    from delivery.acts import Acts
    from delivery.plan import Result

    with closing(Acts()) as sheet:
        with _desk(context, recipient) as desk:
            desk.choose_on(sheet, ids or [], every=every, group=group)
            desk.replay_all(
                sheet, reason=reason, operator=operator(), force=force, seconds=wait, rate=rate
            )
        _report(recipient, sheet, as_json=as_json)
        good = {each.value for each in (Result.APPLIED, Result.ALREADY_APPLIED, Result.STALE)}
        raise typer.Exit(0 if sheet.outcomes() <= good else 1)


def drop(
    context: typer.Context,
    recipient: Recipient,
    *,
    reason: Reason,
    ids: Ids = None,
    group: Group = "",
    every: All = False,
    as_json: Json = False,
) -> None:
    """Give dead messages up for good. The ledger counts them as dropped.

    Example: delivery dead drop catalog --id 0f8e --reason "test data"
    """
    from delivery.acts import Acts
    from delivery.desk import DROPPED

    with closing(Acts()) as sheet:
        with _desk(context, recipient) as desk:
            desk.choose_on(sheet, ids or [], every=every, group=group)
            desk.drop_all(sheet, reason=reason, operator=operator())
        _report(recipient, sheet, as_json=as_json)
        raise typer.Exit(0 if sheet.outcomes() <= {DROPPED} else 1)


def _report(recipient: str, sheet: Acts, *, as_json: bool) -> None:
    if as_json:
        show_json_list({"id": key, "result": result} for key, result in sheet.said())
        return
    if not sheet:
        say(f"{recipient}: nothing is dead")
    for key, result in sheet.said():
        # Why it is not there begins with its key.
        typer.echo(result if result.startswith(f"{key} ") else f"{key}  {result}")
