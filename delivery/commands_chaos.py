"""The command that attacks the exchange: chaos."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from delivery.terminal import Terminal, say, show_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to *app*."""
    app.command("chaos")(chaos_command)


def chaos_command(  # noqa: PLR0917 - typer calls it
    context: typer.Context,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same schedule.")] = 1,
    faults: Annotated[
        int | None, typer.Option(min=1, help="How many; without it: one of each kind.")
    ] = None,
    events: Annotated[int, typer.Option(min=0, help="Publish at least so many.")] = 0,
    rate: Annotated[float, typer.Option(min=0.1, help="Publications a second.")] = 40.0,
    only: Annotated[list[str] | None, typer.Option(help="Only this kind (repeatable).")] = None,
    without: Annotated[list[str] | None, typer.Option(help="Not this kind (repeatable).")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for report.json and report.html.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 also if a fault did not bite.")
    ] = False,
    every: Annotated[bool, typer.Option("--list", help="Explain each kind of fault.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show the schedule, do nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report on standard output.")] = False,
) -> None:
    """Attack the whole exchange with named faults on a broker of its own; exit 1 on any difference.

    It starts API, relay, catalog and audit, publishes, injects faults, lets everything heal, and
    compares what clients were promised with what the recipients have.

    Example: delivery chaos --seed 7 --faults 50 --report /tmp/chaos
    """
    from delivery import chaos as campaign
    from delivery.reporting import as_data, summary, write_report
    from delivery.schedule import KINDS, chosen_kinds, schedule
    from delivery.stopping import stop_on_signals

    terminal: Terminal = context.obj
    kinds = chosen_kinds(only or (), without or ())
    if every:
        for kind in kinds:
            fault = KINDS[kind]
            typer.echo(f"{kind}\n    does: {fault.what}\n    then: {fault.end}")
            typer.echo(f"    may be lost, and is reconciled: {fault.limit.value}")
        return
    planned = schedule(seed, faults or len(kinds), kinds)
    if plan:
        for each in planned:
            typer.echo(f"{each.number:4}  {each.kind:18} {' '.join(each.target)}")
        return
    load = campaign.Load(rate=rate, events=events, seed=seed)
    run = campaign.attack(terminal.environ, planned, load, say=say, stop=stop_on_signals())
    if report is not None:
        for path in write_report(run, seed, report):
            say(f"written: {path}")
    if as_json:
        show_json(as_data(run, seed))
    else:
        for line in summary(run):
            typer.echo(line)
    toothless = strict and any(bit < injected for injected, bit in run.bites.values())
    raise typer.Exit(1 if run.differences or toothless else 0)
