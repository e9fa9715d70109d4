"""The commands about PostgreSQL: relay (one of several), copy (from SQLite)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from delivery.cli_run import KeepDays, LogJson, LogLevel, MetricsHost, MetricsPort
from delivery.terminal import Terminal

__all__ = ["postgres_app", "register"]

postgres_app = typer.Typer(
    help="An outbox in PostgreSQL, for several relays.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Url = Annotated[
    str,
    typer.Option(envvar="DELIVERY_POSTGRES_URL", help="postgresql://user:password@host/database"),
]


def register(app: typer.Typer) -> None:
    """Add the group to *app*."""
    app.add_typer(postgres_app, name="postgres")


@postgres_app.command("relay")
def relay_command(
    context: typer.Context,
    url: Url,
    batch: Annotated[int, typer.Option(min=1, help="Most messages taken at once.")] = 100,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    keep_days: KeepDays = 30.0,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Send what a PostgreSQL outbox holds to the broker, beside any number of other relays.

    Example: delivery postgres relay --url postgresql://delivery@db/delivery
    """
    _need_psycopg()
    from delivery.logs import log_to_stderr
    from delivery.otel import export_spans
    from delivery.postgres_relay import run_postgres_relay
    from delivery.relay_meter import RelayMeter
    from delivery.spans import spanned_outbox
    from delivery.stopping import stop_on_signals
    from delivery.watched import watched

    terminal: Terminal = context.obj
    log_to_stderr(log_level, as_json=log_json)
    config = terminal.config(start_broker=True)
    export_spans("relay", terminal.environ)
    meter, data = RelayMeter(), config.stores.data
    with watched("relay", data, meter, host=metrics_host, port=metrics_port) as health:
        run_postgres_relay(
            config,
            url,
            stop_on_signals(),
            batch=batch,
            keep_days=keep_days,
            wrap=lambda outbox: meter.outbox(spanned_outbox(outbox)),
            beat=health.beat,
        )


@postgres_app.command("copy")
def copy_command(
    context: typer.Context,
    url: Url,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; otherwise only say what.")] = False,
) -> None:
    """Plan the copy of the SQLite outbox into PostgreSQL; with --apply, copy it.

    The SQLite relay must be stopped, and stay so. Repeat it as often as you like.

    Example: delivery postgres copy --url postgresql://delivery@db/delivery --apply
    """
    _need_psycopg()
    from contextlib import closing

    from delivery.errors import DeliveryError
    from delivery.postgres import open_postgres
    from delivery.postgres_copy import copy_outbox
    from delivery.postgres_outbox import SCHEMA
    from delivery.relay import only_relay
    from delivery.stores import PUBLISHER

    terminal: Terminal = context.obj
    path = terminal.stores.path(PUBLISHER)
    if not path.exists():
        raise DeliveryError(f"there is no publisher's file {path}")
    with (
        only_relay(path),
        closing(terminal.stores.open(PUBLISHER)) as source,
        closing(open_postgres(url, SCHEMA, name="delivery copy")) as target,
    ):
        found = copy_outbox(source, target, apply=apply)
    said = (
        f"{found.pending} pending and {found.confirmed} confirmed rows to add, {found.marked} to"
        f" mark as confirmed; {found.known} are there already"
    )
    if found.overtaken:
        said += (
            f"; REFUSED for {found.overtaken} that a newer event of their material has overtaken"
        )
    typer.echo(f"copied: {said}" if apply else f"plan: {said}; nothing is changed without --apply")


def _need_psycopg() -> None:
    if find_spec("psycopg") is None:
        from delivery.errors import DeliveryError

        raise DeliveryError("psycopg is missing: pip install 'psycopg[binary]'")
