"""The commands that run the exchange on PostgreSQL: api, relay and receive (one of several)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

import typer

from delivery.cli_process import (
    Batch,
    Host,
    KeepDays,
    LogJson,
    LogLevel,
    MetricsHost,
    MetricsPort,
    Port,
    Prefetch,
    Recipient,
    Telling,
    watched_process,
)
from delivery.command_group import CommandGroup
from delivery.terminal import Terminal

__all__ = ["Inboxes", "Url", "inboxes_of", "need_psycopg", "postgres_app", "register"]

postgres_app = typer.Typer(
    cls=CommandGroup,
    help="The exchange on PostgreSQL: its processes, any number of them, and what you ask of it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Url = Annotated[
    str,
    typer.Option(envvar="DELIVERY_POSTGRES_URL", help="postgresql://user:password@host/database"),
]

Inboxes = Annotated[
    list[str] | None,
    typer.Option(
        "--inbox",
        metavar="RECIPIENT=URL",
        envvar="DELIVERY_POSTGRES_INBOXES",
        help="A recipient in PostgreSQL, and where; repeat it. Others: SQLite.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the group to *app*."""
    app.add_typer(postgres_app, name="postgres")


@postgres_app.command("api")
def api_command(
    context: typer.Context,
    url: Url,
    inbox: Inboxes = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Serve the HTTP API and the live page on PostgreSQL.

    Example: delivery postgres api --url postgresql://delivery@db/delivery
    """
    need_psycopg()
    from contextlib import closing
    from dataclasses import replace

    from delivery.api import create_app
    from delivery.doorkeeper import check_loopback
    from delivery.live import Onlooker
    from delivery.live_page import install_page
    from delivery.logs import log_to_stderr
    from delivery.otel import export_spans
    from delivery.postgres_counts import counting
    from delivery.postgres_publisher import PostgresPublisher
    from delivery.postgres_sides import postgres_sides
    from delivery.routes import RECIPIENTS
    from delivery.serving import serve_app
    from delivery.spans import begin_request
    from delivery.stopping import Stop

    terminal: Terminal = context.obj
    check_loopback(host)
    log_to_stderr(log_level, as_json=log_json)
    export_spans("api", terminal.environ)
    inboxes, stores, leaving = inboxes_of(inbox), terminal.stores, Stop()
    sides = postgres_sides(url, inboxes, terminal.sides)
    terminal = replace(terminal, elsewhere=sides)  # its page names the commands on PostgreSQL
    lookout = Onlooker(stores, terminal.config, counting(url, inboxes, stores))

    def standings(event_id: str) -> dict[str, Any]:
        return {name: sides.standings(name, [event_id])[0] for name in RECIPIENTS}

    with closing(PostgresPublisher(url, standings)) as publisher:
        app = create_app(publisher, begin=begin_request())
        more = {"mode": "read-only"}
        install_page(app, lookout, stopping=lambda: bool(leaving), more=lambda: more)
        serve_app(app, host, port, leaving)


@postgres_app.command("relay")
def relay_command(
    context: typer.Context,
    url: Url,
    batch: Annotated[
        int, typer.Option(min=1, max=65535, help="Most messages taken at once.")
    ] = 100,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    keep_days: KeepDays = 30.0,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Send what a PostgreSQL outbox holds to the broker, beside any number of other relays.

    Example: delivery postgres relay --url postgresql://delivery@db/delivery
    """
    need_psycopg()
    from delivery.postgres_relay import run_postgres_relay
    from delivery.relay_meter import RelayMeter
    from delivery.spans import spanned_outbox
    from delivery.stopping import stop_on_signals

    meter = RelayMeter()
    telling = Telling(log_level, log_json, metrics_host, metrics_port)
    with watched_process(context.obj, "relay", meter, telling) as (config, health):
        run_postgres_relay(
            config,
            url,
            stop_on_signals(),
            batch=batch,
            keep_days=keep_days,
            wrap=lambda outbox: meter.outbox(spanned_outbox(outbox)),
            beat=health.beat,
        )


@postgres_app.command("receive")
def receive_command(  # noqa: PLR0917 - typer calls it
    context: typer.Context,
    recipient: Recipient,
    url: Url,
    batch: Batch = 1,
    prefetch: Prefetch = 50,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    keep_days: KeepDays = 30.0,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Apply what arrives for a recipient to its PostgreSQL, beside any number of others.

    Example: delivery postgres receive catalog --url postgresql://delivery@db/catalog
    """
    need_psycopg()
    from delivery.meter import ReceiverMeter
    from delivery.postgres_receiver import run_postgres_receiver
    from delivery.routes import check_recipient
    from delivery.spans import spanned_handler
    from delivery.stopping import stop_on_signals

    check_recipient(recipient)  # before a broker is looked for, or even started
    meter = ReceiverMeter(recipient)
    telling = Telling(log_level, log_json, metrics_host, metrics_port)
    with watched_process(context.obj, recipient, meter, telling) as (config, health):
        queue = config.route(recipient).queue
        run_postgres_receiver(
            config,
            recipient,
            url,
            stop_on_signals(),
            batch=batch,
            prefetch=prefetch,
            keep_days=keep_days,
            wrap=lambda handle: meter.handler(spanned_handler(handle, queue)),
            tell=meter.failed,
            beat=health.beat,
        )


def inboxes_of(given: list[str] | None) -> dict[str, str]:
    """Read RECIPIENT=URL. Raises DeliveryError for a recipient that does not exist."""
    from delivery.routes import check_recipient

    found = {}
    for each in given or ():
        recipient, _, url = each.partition("=")
        check_recipient(recipient)
        found[recipient] = url
    return found


def need_psycopg() -> None:
    """Raise DeliveryError if the driver is not installed."""
    if find_spec("psycopg") is None:
        from delivery.errors import DeliveryError

        raise DeliveryError("psycopg is missing: pip install 'psycopg[binary]'")
