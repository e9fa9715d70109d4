"""The command ``delivery``: its options, its groups, and how an error ends it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated

import typer

from delivery import __version__
from delivery.cli_broker import broker_app, doctor
from delivery.cli_course import demo, lesson, stage
from delivery.cli_dead import dead_app
from delivery.cli_health import health
from delivery.cli_look import ledger, status
from delivery.cli_reconcile import reconcile
from delivery.cli_run import api, publish, receive, relay
from delivery.cli_topology import topology_app
from delivery.cli_trace import trace
from delivery.command_group import CommandGroup
from delivery.errors import DeliveryError
from delivery.points import arm_from
from delivery.terminal import Terminal

__all__ = ["app", "main"]

app = typer.Typer(
    cls=CommandGroup,
    name="delivery",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
for command in (
    demo,
    api,
    relay,
    receive,
    publish,
    status,
    trace,
    ledger,
    reconcile,
    health,
    doctor,
    lesson,
    stage,
):
    app.command()(command)
app.add_typer(dead_app, name="dead")
app.add_typer(topology_app, name="topology")
app.add_typer(broker_app, name="broker")
# What later lessons bring can't be named here: a module commands_* registers what it has.
for found in iter_modules([str(Path(__file__).parent)]):
    if found.name.startswith("commands_"):
        import_module(f"delivery.{found.name}").register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"delivery {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    data: Annotated[
        Path, typer.Option(envvar="DELIVERY_DATA", help="Folder of the SQLite files and sandbox.")
    ] = Path(".delivery"),
    namespace: Annotated[
        str, typer.Option(envvar="DELIVERY_NAMESPACE", help="Prefix of every name on the broker.")
    ] = "delivery",
    retries: Annotated[
        str, typer.Option(envvar="DELIVERY_RETRIES_MS", help="Delay before each retry, in ms.")
    ] = "1000,10000,60000",
    queues: Annotated[
        str, typer.Option(envvar="DELIVERY_QUEUES", help="Kind of the queues: classic, quorum.")
    ] = "classic",
    _version_: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Carry facts about published materials to recipients that succeed or fail alone.

    Try it: delivery demo. Piece by piece, each in a terminal of its own:
    delivery api | delivery relay | delivery receive catalog | delivery receive audit,
    then: delivery publish data/materials.jsonl && delivery ledger
    """
    arm_from(os.environ)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", namespace):
        raise DeliveryError(
            f"{namespace!r} is no namespace: use letters, digits, and . _ - after one"
        )
    context.obj = Terminal(os.environ, data, namespace, retries, queues)


def main() -> None:
    """Run the command line; an error is one sentence on standard error, and exit code 1."""
    try:
        _refuse_unreadable(sys.argv[1:], os.environ)
        app()
    except SystemExit:
        raise  # the usual end: not a reason to import pika, as the last clause does
    except KeyboardInterrupt:  # before the command itself began
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads any more
        sys.exit(1)
    except _known_errors() as error:
        from delivery.connection import describe

        print(f"error: {describe(error)}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


def _refuse_unreadable(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    # What is not UTF-8 can be put into no store, no message and no URL. It may be a password.
    given = {f"argument {number}": each for number, each in enumerate(arguments, 1)}
    given |= {name: each for name, each in environ.items() if name.startswith("DELIVERY_")}
    for name, text in given.items():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DeliveryError(f"{name} is not UTF-8") from None


def _known_errors() -> tuple[type[Exception], ...]:
    # Asked only when something was raised: help must not wait for pika.
    import sqlite3

    from pika.exceptions import AMQPError

    # An OSError names its file or its address.
    return (DeliveryError, AMQPError, OSError, sqlite3.Error)
