"""Reach OpenTelemetry's SDK where it is installed, and say where its spans go."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from delivery import __version__
from delivery.errors import DeliveryError
from delivery.traceparent import TRACEPARENT

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

__all__ = ["attributes", "context_of", "export_spans", "installed", "traceparent_of", "tracer"]


def export_spans(process: str, environ: Mapping[str, str]) -> None:
    """Export spans as OTEL_TRACES_EXPORTER says: ``console``, ``otlp``, or (not set) not at all.

    A provider that somebody else has set up (opentelemetry-instrument, a test) is left alone.
    Raises DeliveryError for an exporter that is not installed.
    """
    wanted = environ.get("OTEL_TRACES_EXPORTER", "none")
    if wanted == "none" or not installed():
        return
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return
    name = environ.get("OTEL_SERVICE_NAME", f"delivery-{process}")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    exporter = _exporter(wanted)
    at_once = wanted == "console"
    provider.add_span_processor((SimpleSpanProcessor if at_once else BatchSpanProcessor)(exporter))
    trace.set_tracer_provider(provider)


def _exporter(wanted: str) -> Any:
    if wanted == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)  # standard output is for results
    if wanted == "otlp":
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # type: ignore[import-not-found,unused-ignore]
                OTLPSpanExporter,
            )
        except ImportError as error:
            raise DeliveryError(
                "OTEL_TRACES_EXPORTER is otlp: install opentelemetry-exporter-otlp-proto-http"
            ) from error
        return OTLPSpanExporter()
    raise DeliveryError(f"OTEL_TRACES_EXPORTER is {wanted!r}; expected console, otlp or none")


def attributes(message_id: str | None, destination: str) -> dict[str, str]:
    """Return what a span says about a message."""
    # OpenTelemetry's semantic conventions for messaging.
    return {
        "messaging.system": "rabbitmq",
        "messaging.destination.name": destination,
        "messaging.message.id": message_id or "",
    }


def context_of(traceparent: object) -> Context:
    """Return the context that *traceparent* names; an empty one if it names none."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {TRACEPARENT: traceparent} if isinstance(traceparent, str) else {}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def traceparent_of(span: Span) -> str:
    """Return the span's traceparent; empty if nobody records spans."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not span.is_recording():
        return ""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    return carrier.get(TRACEPARENT, "")


def tracer() -> Tracer:
    """Return the package's tracer, of the provider that is set up now."""
    from opentelemetry import trace

    return trace.get_tracer("delivery", __version__)


def installed() -> bool:
    """Say whether spans can be recorded at all."""
    try:
        return find_spec("opentelemetry.sdk") is not None
    except (ImportError, ValueError):
        return False
