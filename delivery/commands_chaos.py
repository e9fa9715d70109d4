"""The command that attacks the exchange: chaos."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delivery.errors import DeliveryError
from delivery.terminal import Terminal, say, show_json

if TYPE_CHECKING:
    from delivery.chaos import Load, Run
    from delivery.faults import Fault, Ground
    from delivery.schedule import Planned

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
    rate: Annotated[float, typer.Option(min=0.1, max=10_000, help="Publications a second.")] = 40.0,
    batch: Annotated[
        int, typer.Option(min=1, max=65535, help="Deliveries in one commit at most.")
    ] = 1,
    nodes: Annotated[
        int, typer.Option(help="1: one broker; 3: a cluster with quorum queues, nodes are hit.")
    ] = 1,
    postgres: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Hit three relays on one outbox in this database."),
    ] = None,
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
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Attack the whole exchange with named faults on a broker of its own; exit 1 on any difference.

    It starts API, relay, catalog and audit, publishes, injects faults, lets everything heal, and
    compares what clients were promised with what the recipients have. Three grounds, each with
    faults of its own (see --list): one broker; a cluster of three nodes (--nodes 3), where every
    process knows all three; three relays on one PostgreSQL outbox (--postgres URL), in a schema
    that is dropped afterwards.

    Example: delivery chaos --seed 7 --faults 50 --report /tmp/chaos
    Example: delivery chaos --nodes 3 --only kill-node --only partition
    """
    from delivery.chaos import Load
    from delivery.reporting import as_data, summary, write_report
    from delivery.schedule import KINDS, chosen_kinds, schedule

    if every:
        _explain([KINDS[kind] for kind in chosen_kinds(only or (), without or ())], as_json=as_json)
        return
    if postgres is not None and batch > 1:
        raise DeliveryError("--batch is for the other campaigns: with --postgres each has a commit")
    kinds = chosen_kinds(only or (), without or (), _ground(nodes, postgres))
    planned = schedule(seed, faults or len(kinds), kinds)
    if plan and as_json:
        show_json(planned)
        return
    if plan:
        for each in planned:
            typer.echo(f"{each.number:4}  {each.kind:18} {' '.join(each.target)}")
        return
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)  # not after minutes
    load = Load(rate=rate, events=events, seed=seed)
    run = _attack(context.obj, planned, load, nodes, postgres, batch)
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


def _explain(faults: Sequence[Fault], *, as_json: bool) -> None:
    names = ("does", "then", "may be lost, and is reconciled", "on")
    told = {each.name: (each.what, each.end, each.limit.value, str(each.ground)) for each in faults}
    if as_json:
        show_json(
            [{"kind": kind, **dict(zip(names, said, strict=True))} for kind, said in told.items()]
        )
        return
    for kind, said in told.items():
        typer.echo(kind)
        for name, text in zip(names, said, strict=True):
            typer.echo(f"    {name}: {text}")


def _ground(nodes: int, postgres: str | None) -> Ground:
    from delivery.faults import Ground

    if nodes not in (1, 3):
        raise DeliveryError("--nodes can be 1 (one broker) or 3 (a cluster)")
    if postgres is None:
        return Ground.CLUSTER if nodes == 3 else Ground.BROKER
    if nodes == 3:
        raise DeliveryError("--nodes 3 and --postgres are two campaigns: run one after the other")
    if find_spec("psycopg") is None:
        raise DeliveryError("psycopg is missing: pip install 'psycopg[binary]'")
    return Ground.RELAYS


def _attack(
    terminal: Terminal,
    planned: Sequence[Planned],
    load: Load,
    nodes: int,
    postgres: str | None,
    batch: int,
) -> Run:
    from delivery.chaos import attack
    from delivery.cluster import three_nodes
    from delivery.sandbox import disposable_broker
    from delivery.stopping import stop_on_signals
    from delivery.system import ours

    environ, stop = terminal.environ, stop_on_signals()
    with contextlib.ExitStack() as stack:
        if postgres is not None:
            from delivery.three_relays import attack_relays

            broker = stack.enter_context(disposable_broker(environ, say))
            return attack_relays(environ, broker, postgres, planned, load, say=say, stop=stop)
        cluster = stack.enter_context(three_nodes(environ, say)) if nodes == 3 else None
        system = ours(batch)
        return attack(environ, planned, load, say=say, stop=stop, system=system, cluster=cluster)
