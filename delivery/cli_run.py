"""The commands that run the exchange: api, relay, receive, publish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
from delivery.terminal import Terminal, say

__all__ = ["api", "publish", "receive", "relay"]


def api(
    context: typer.Context,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Serve the HTTP API that accepts publications, and the live page at its address.

    Example: delivery api --port 8080
    """
    from delivery.otel import export_spans
    from delivery.serving import serve

    terminal: Terminal = context.obj
    export_spans("api", terminal.environ)
    serve(terminal.stores, host, port, log_level, log_json=log_json, find=terminal.config)


def relay(
    context: typer.Context,
    batch: Annotated[
        int, typer.Option(min=1, max=65535, help="Most messages in flight at once.")
    ] = 500,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    keep_days: KeepDays = 30.0,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Send what the API accepted to the broker, until it is stopped (Ctrl-C, SIGTERM).

    Example: delivery relay
    """
    from delivery.relay_meter import RelayMeter
    from delivery.services import run_relay
    from delivery.spans import spanned_outbox
    from delivery.stopping import stop_on_signals

    meter = RelayMeter()
    telling = Telling(log_level, log_json, metrics_host, metrics_port)
    with watched_process(context.obj, "relay", meter, telling) as (config, health):
        run_relay(
            config,
            stop_on_signals(),
            batch=batch,
            keep_days=keep_days,
            wrap=lambda outbox: meter.outbox(spanned_outbox(outbox)),
            beat=health.beat,
        )


def receive(  # noqa: PLR0917 - typer calls it
    context: typer.Context,
    recipient: Recipient,
    batch: Batch = 1,
    prefetch: Prefetch = 50,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    keep_days: KeepDays = 30.0,
    log_level: LogLevel = "info",
    log_json: LogJson = False,
) -> None:
    """Apply what arrives for a recipient, until it is stopped (Ctrl-C, SIGTERM).

    Example: delivery receive catalog
    """
    from delivery.meter import ReceiverMeter
    from delivery.routes import check_recipient
    from delivery.services import run_receiver
    from delivery.spans import spanned_handler
    from delivery.stopping import stop_on_signals

    check_recipient(recipient)  # before a broker is looked for, or even started
    meter = ReceiverMeter(recipient)
    telling = Telling(log_level, log_json, metrics_host, metrics_port)
    with watched_process(context.obj, recipient, meter, telling) as (config, health):
        queue = config.route(recipient).queue
        run_receiver(
            config,
            recipient,
            stop_on_signals(),
            batch=batch,
            prefetch=prefetch,
            keep_days=keep_days,
            wrap=lambda handle: meter.handler(spanned_handler(handle, queue)),
            tell=meter.failed,
            beat=health.beat,
        )


def publish(
    file: Annotated[Path, typer.Argument(help="One publication a line, as JSON.")],
    url: Annotated[str, typer.Option(help="Where the API listens.")] = "http://127.0.0.1:8080",
) -> None:
    """Publish every line of a file over HTTP; a second run repeats the requests and adds nothing.

    Example: delivery publish data/materials.jsonl
    """
    from delivery.client import publish_file

    summary = publish_file(file, url, say)
    typer.echo(f"accepted {summary.accepted}, repeated {summary.repeated}, of {summary.lines}")
