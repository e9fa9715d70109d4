"""The commands that act on dead messages: replay and drop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from delivery.terminal import Terminal, operator, show_json_list

if TYPE_CHECKING:
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
    return Desk(terminal.config(), recipient)


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
    from delivery.plan import Result

    with _desk(context, recipient) as desk:
        keys = desk.choose(ids or [], every=every, group=group)
        results = desk.replay(
            keys, reason=reason, operator=operator(), force=force, seconds=wait, rate=rate
        )
        said = {planned.message.key: result.value for planned, result in results}
        vanished = {key: desk.absence(key) for key in sorted(keys - said.keys())}
    _report(said, vanished, as_json=as_json)
    good = (Result.APPLIED, Result.ALREADY_APPLIED, Result.STALE)
    done = not vanished and all(result in good for _, result in results)
    raise typer.Exit(0 if done else 1)


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
    with _desk(context, recipient) as desk:
        keys = desk.choose(ids or [], every=every, group=group)
        dropped = set(desk.drop(keys, reason=reason, operator=operator()))
        vanished = {key: desk.absence(key) for key in sorted(keys - dropped)}
    _report(dict.fromkeys(sorted(dropped), "dropped"), vanished, as_json=as_json)
    raise typer.Exit(1 if vanished else 0)


def _report(said: dict[str, str], vanished: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        both = (said | vanished).items()
        show_json_list({"id": key, "result": result} for key, result in both)
        return
    for key, result in said.items():
        typer.echo(f"{key}  {result}")
    for sentence in vanished.values():
        typer.echo(sentence)
