"""What the commands share that run a process: their options, and how it is set up and watched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from delivery.config import Config
    from delivery.health import Health
    from delivery.meter import Meter
    from delivery.terminal import Terminal

__all__ = [
    "Batch",
    "Host",
    "KeepDays",
    "LogJson",
    "LogLevel",
    "MetricsHost",
    "MetricsPort",
    "Port",
    "Prefetch",
    "Recipient",
    "Telling",
    "watched_process",
]

Host = Annotated[str, typer.Option(help="A loopback address: the API has no login.")]
Port = Annotated[int, typer.Option(min=0, max=65535)]
Recipient = Annotated[str, typer.Argument(help="catalog or audit")]
Batch = Annotated[int, typer.Option(min=1, max=65535, help="Most messages in one transaction.")]
Prefetch = Annotated[int, typer.Option(min=1, max=65535, help="Most unsettled messages.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Serve /metrics, /healthz, /readyz here; 0: a free one."),
]
MetricsHost = Annotated[str, typer.Option(help="The address to serve them on.")]
KeepDays = Annotated[
    float, typer.Option(min=1.0, help="Days after which what is settled is removed.")
]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], typer.Option()]
LogJson = Annotated[bool, typer.Option("--log-json", help="One JSON object a line.")]


@dataclass(frozen=True)
class Telling:
    """How a process tells of itself: its log, and where its metrics and its health are served."""

    log_level: str
    log_json: bool
    metrics_host: str
    metrics_port: int | None


@contextlib.contextmanager
def watched_process(
    terminal: Terminal, name: str, meter: Meter, telling: Telling
) -> Iterator[tuple[Config, Health]]:
    """Give the settings and the health of the process *name*, with its log, broker and spans.

    A broker is started if there is none. Raises DeliveryError.
    """
    from delivery.logs import log_to_stderr
    from delivery.otel import export_spans
    from delivery.watched import watched

    log_to_stderr(telling.log_level, as_json=telling.log_json)
    config = terminal.config(start_broker=True)
    export_spans(name, terminal.environ)
    host, port = telling.metrics_host, telling.metrics_port
    with watched(name, config.stores.data, meter, host=host, port=port) as health:
        yield config, health
