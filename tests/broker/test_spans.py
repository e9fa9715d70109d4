"""A trace from the request to each recipient: in headers, in logs, and as spans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for

from delivery.broker import Broker
from delivery.contract import PublishMaterial
from delivery.feed import read_page
from delivery.materials import accept
from delivery.reconcile import missing
from delivery.services import run_receiver, run_relay
from delivery.spans import begin_request, spanned_handler, spanned_outbox
from delivery.stopping import Stop
from delivery.stores import PUBLISHER

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{SPAN}-01"
BODY = {"title": "Title", "slug": "a-title", "author": "An Author"}


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace, retries_ms=(50,)) as opened:
        yield opened


def post(exchange: Exchange, material: str, **headers: str) -> str:
    answer = httpx.post(
        f"{exchange.url}/materials/{material}/publish",
        json=BODY,
        headers={"Idempotency-Key": material, **headers},
        trust_env=False,
    )
    assert answer.status_code == 202, answer.text
    return str(answer.json()["event_id"])


def logged(exchange: Exchange, process: str, event: str) -> list[dict[str, Any]]:
    """The JSON records of that event."""
    lines = exchange.cast[process].log().splitlines()
    return [found for line in lines if (found := json.loads(line))["event"] == event]


def test_a_trace_reaches_every_recipients_log_also_after_a_retry(exchange: Exchange) -> None:
    """Request, outbox row, message, the copy that waits, and the log, as JSON, of each process."""
    exchange.cast.start("api", ["api", "--port", "0", "--log-json"])
    wait_for(lambda: "api.ready" in exchange.cast["api"].log(), "the API is ready")
    (ready,) = logged(exchange, "api", "api.ready")
    assert {"time", "level", "logger", "event", "url"} == ready.keys()
    for name, words in (("relay", ["relay"]), ("catalog", ["receive", "catalog"])):
        exchange.cast.start(name, [*words, "--log-json"])
    exchange.cast.start("audit", ["receive", "audit", "--log-json"])
    headers = {"Idempotency-Key": "r-1", "traceparent": GIVEN}
    with exchange.refusing("m-1"):
        answer = httpx.post(
            f"{ready['url']}/materials/m-1/publish", json=BODY, headers=headers, trust_env=False
        )
        event_id = answer.json()["event_id"]
        exchange.await_dead("catalog")
    exchange.await_receipt("audit", event_id)

    (carried,) = exchange.select(PUBLISHER, "SELECT traceparent FROM outbox")
    assert carried.split("-")[1] == TRACE
    assert SPAN not in carried
    (accepted,) = logged(exchange, "api", "publication.accepted")
    assert (accepted["event_id"], accepted["traceparent"]) == (event_id, carried)
    wait_for(lambda: len(logged(exchange, "catalog", "delivery.settled")) == 2, "both attempts")
    wait_for(lambda: logged(exchange, "audit", "delivery.settled"), "audit says so")
    for process in ("catalog", "audit"):
        for settled in logged(exchange, process, "delivery.settled"):
            assert settled["traceparent"] == carried
    with exchange.desk("catalog") as desk:
        (dead,) = desk.find(event_id)
        assert dead.delivery.traceparent == carried
        desk.replay({event_id}, reason="r", operator="o")
    settled = logged(exchange, "catalog", "delivery.settled")
    assert [each["effect"] for each in settled] == ["failed", "failed", "applied"]
    assert settled[-1]["traceparent"] == carried


def test_without_a_traceparent_one_is_made_and_a_broken_one_is_not_passed_on(
    exchange: Exchange,
) -> None:
    """Each request its own trace; and what reconcile sends again is still of it."""
    exchange.start("api")
    post(exchange, "m-1")
    post(exchange, "m-2", traceparent="broken")
    one, two = exchange.select(PUBLISHER, "SELECT traceparent FROM outbox ORDER BY position")
    assert one.split("-")[1] != two.split("-")[1]
    assert "broken" not in two
    exchange.execute(PUBLISHER, "UPDATE outbox SET confirmed_at = 1")
    with (
        closing(exchange.config.stores.open(PUBLISHER)) as publisher,
        closing(exchange.config.stores.open("catalog")) as inbox,
    ):
        page = read_page(publisher)
        found = missing(page, inbox, exchange.config.route("catalog"), dead=(), grace=0)
    assert [each.traceparent for each in found] == [one, two]


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """A process has one provider, for good."""
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    return memory


def test_spans_form_one_trace_from_request_to_recipients(
    exchange: Exchange, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """accept > publish > process for each recipient; a failure is an error, with its time."""
    caplog.set_level("INFO", "delivery")
    exporter.clear()
    with (
        closing(exchange.config.stores.open(PUBLISHER)) as store,
        begin_request()(GIVEN) as current,
    ):
        answer, _ = accept(store, "m-1", PublishMaterial(**BODY), key="k", traceparent=current)
    event_id = answer.event_id
    with exchange.refusing("m-1"), running(exchange, "catalog", "audit"):
        exchange.await_dead("catalog")
        exchange.await_receipt("audit", event_id)
        wait_for(lambda: len(exporter.get_finished_spans()) == 5, "every span has ended")

    spans = exporter.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}  # type: ignore[union-attr]
    (request,) = named(spans, "accept")
    assert (request.kind, f"{request.parent.span_id:016x}") == (SpanKind.SERVER, SPAN)
    (published,) = named(spans, f"publish {exchange.config.exchange}")
    assert published.kind is SpanKind.PRODUCER
    assert published.parent.span_id == request.context.span_id
    assert published.attributes["delivery.outcome"] == "confirmed"
    processed = named(spans, f"process {exchange.config.route('audit').queue}")
    failed = named(spans, f"process {exchange.config.route('catalog').queue}")
    for span in (*processed, *failed):
        assert span.kind is SpanKind.CONSUMER
        assert span.parent.span_id == published.context.span_id
        assert span.attributes["messaging.message.id"] == event_id
        assert span.end_time > span.start_time
    assert [span.attributes["delivery.effect"] for span in processed] == ["applied"]
    assert [span.attributes["delivery.effect"] for span in failed] == ["failed", "failed"]
    assert {span.status.status_code for span in failed} == {StatusCode.ERROR}
    assert "not ready" in failed[0].status.description


def test_a_delivery_has_one_span_also_after_a_connection_was_lost(
    exchange: Exchange, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler is wrapped once for the whole process, not anew for each connection."""
    caplog.set_level("INFO", "delivery")
    exporter.clear()
    queue = exchange.config.route("audit").queue
    with running(exchange, "audit"):
        (first,) = exchange.accept("m-1")
        exchange.await_receipt("audit", first)
        exchange.delete_queue(queue)
        wait_for(lambda: caplog.messages.count("audit.ready") == 2, "it is there again")
        (second,) = exchange.accept("m-2")
        exchange.await_receipt("audit", second)

    processed = named(exporter.get_finished_spans(), f"process {queue}")
    assert [span.attributes["messaging.message.id"] for span in processed] == [first, second]


def named(spans: tuple[ReadableSpan, ...], name: str) -> list[Any]:
    return [span for span in spans if span.name == name]


def running(exchange: Exchange, *recipients: str) -> ExitStack:
    """Run relay and recipients in threads of this process: its exporter must see their spans."""
    stop, stack = Stop(), ExitStack()
    work = [lambda: run_relay(exchange.config, stop, wrap=spanned_outbox)]
    for name in recipients:
        queue = exchange.config.route(name).queue
        wrap = partial(spanned_handler, queue=queue)
        work.append(partial(run_receiver, exchange.config, name, stop, wrap=wrap))
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
        stack.callback(thread.join, 20)
    stack.callback(stop.request)
    return stack


def test_spans_are_exported_by_a_process_that_is_asked_to(exchange: Exchange) -> None:
    """OTEL_TRACES_EXPORTER=console: on standard error, under the process's name."""
    (actor,) = exchange.start("relay", OTEL_TRACES_EXPORTER="console")
    exchange.accept("m-1")
    wait_for(lambda: '"delivery.outcome": "confirmed"' in actor.log(), "the span is there")
    assert '"service.name": "delivery-relay"' in actor.log()
    ended = exchange.run("receive", "catalog", OTEL_TRACES_EXPORTER="smoke")
    assert ended.returncode == 1
    assert "OTEL_TRACES_EXPORTER is 'smoke'; expected console, otlp or none" in ended.stderr


def test_without_the_sdk_everything_works_and_nothing_is_recorded() -> None:
    """It is an extra: the wrappers give back what they got."""
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from delivery.otel import export_spans
from delivery.spans import begin_request, spanned_handler, spanned_outbox
from delivery.traceparent import continued
mark = object()
assert spanned_handler(mark, 'q') is mark and spanned_outbox(mark) is mark
assert begin_request() is continued
export_spans("relay", {"OTEL_TRACES_EXPORTER": "console"})
print("fine")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ)
    )
    assert (ended.stdout, ended.stderr) == ("fine\n", "")
