"""Record OpenTelemetry spans of the way of an event, where its SDK is installed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from delivery.confirms import Answer, Outcome
from delivery.contract import Event
from delivery.handling import Effect, Tx
from delivery.otel import attributes, context_of, installed, traceparent_of, tracer
from delivery.outbox import Batch, Outbox
from delivery.publisher import Message
from delivery.traceparent import TRACEPARENT, continued

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["begin_request", "spanned_handler", "spanned_outbox"]

MOST = 10_000  # handled events whose settlement is awaited; a lost connection leaves some behind


def begin_request() -> Callable[[str | None], AbstractContextManager[str]]:
    """Return what gives a request its traceparent: with the SDK, a span's."""
    if not installed():
        return continued

    @contextmanager
    def begin(traceparent: str | None) -> Iterator[str]:
        from opentelemetry.trace import SpanKind

        parent = context_of(traceparent)
        with (
            tracer().start_as_current_span(
                "accept", parent, SpanKind.SERVER, record_exception=False
            ) as span,
            continued(traceparent) as otherwise,
        ):
            yield traceparent_of(span) or otherwise  # a sampler may have left this one out

    return begin


def spanned_outbox(outbox: Outbox) -> Outbox:
    """Wrap *outbox*: a span from hand-over to answer for each message, which then carries it."""
    return _SpannedOutbox(outbox) if installed() else outbox


def spanned_handler(
    handle: Callable[[Event, Tx], Effect], queue: str
) -> Callable[[Event, Tx], Effect]:
    """Wrap *handle*; when its delivery from *queue* is settled, a span tells its time and effect.

    The span is made from the log record of the settlement (level info), which knows the message's
    trace: a handler sees the event only.
    """
    if not installed():
        return handle
    follower = _Follower(queue)
    consumer = logging.getLogger("delivery.consumer")
    consumer.setLevel(logging.DEBUG)  # a line, and so a span, for each delivery of a batch, too
    consumer.addHandler(follower)
    return follower.handler(handle)


class _SpannedOutbox:
    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    @contextmanager
    def batch(self, limit: int) -> Iterator[Batch]:
        with self._outbox.batch(limit) as batch:
            spanned = _SpannedBatch(batch)
            try:
                yield spanned
            finally:
                spanned.end()


class _SpannedBatch:
    def __init__(self, batch: Batch) -> None:
        from opentelemetry.trace import SpanKind

        self._batch = batch
        self._spans: list[Span] = []
        self.messages = []
        for message in batch.messages:
            headers = dict(message.properties.headers or {})
            fields = attributes(message.properties.message_id, message.exchange)
            span = tracer().start_span(
                f"publish {message.exchange}",
                context_of(headers.get(TRACEPARENT)),
                SpanKind.PRODUCER,
                fields,
            )
            self._spans.append(span)
            self.messages.append(_carrying(message, headers, traceparent_of(span)))

    def record(self, answers: Sequence[Answer]) -> None:
        from opentelemetry.trace import StatusCode

        for span, answer in zip(self._spans, answers, strict=False):
            span.set_attribute("delivery.outcome", answer.outcome.value)
            if answer.outcome is not Outcome.CONFIRMED:
                span.set_status(StatusCode.ERROR, answer.detail)
        self._batch.record(answers)

    def end(self) -> None:
        for span in self._spans:
            span.end()


class _Follower(logging.Handler):
    def __init__(self, queue: str) -> None:
        super().__init__()
        self._queue = queue
        self._handled: dict[str, tuple[int, int]] = {}

    def handler(self, handle: Callable[[Event, Tx], Effect]) -> Callable[[Event, Tx], Effect]:
        def timed(event: Event, tx: Tx) -> Effect:
            begun = time.time_ns()
            try:
                return handle(event, tx)
            finally:
                while len(self._handled) >= MOST:
                    del self._handled[next(iter(self._handled))]
                self._handled[event.id] = (begun, time.time_ns())

        return timed

    def emit(self, record: logging.LogRecord) -> None:
        from opentelemetry.trace import SpanKind, StatusCode

        fields = vars(record)
        if record.getMessage() != "delivery.settled" or fields["queue"] != self._queue:
            return
        now = int(record.created * 1e9)
        begun, ended = self._handled.pop(fields["message_id"], (now, now))
        span = tracer().start_span(
            f"process {fields['queue']}",
            context_of(fields.get("traceparent")),
            SpanKind.CONSUMER,
            attributes(fields["message_id"], fields["queue"])
            | {"delivery.effect": fields["effect"]},
            start_time=begun,
        )
        if fields["effect"] == "failed":
            span.set_status(StatusCode.ERROR, fields["error"])
        span.end(ended)


def _carrying(message: Message, headers: dict[str, Any], traceparent: str) -> Message:
    if not traceparent:
        return message
    properties = copy(message.properties)
    properties.headers = {**headers, TRACEPARENT: traceparent}
    return replace(message, properties=properties)
