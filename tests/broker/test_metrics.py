"""What Prometheus gets from real processes, and that alerts and dashboard ask for nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from support.exchange import Exchange, exchange_on
from support.waiting import wait_for
from typer.testing import CliRunner

from delivery.broker import Broker
from delivery.cli import app
from delivery.connection import connect
from delivery.process import free_ports

MONITORING = Path(__file__).resolve().parents[2] / "data/monitoring"
LABELS = {"last_outcome", "outcome", "recipient", "effect", "retry", "reason", "process", "le"}
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace, retries_ms=(50,)) as opened:
        yield opened


def start(exchange: Exchange, name: str, *more: str) -> None:
    words = ["relay"] if name == "relay" else ["receive", name]
    exchange.cast.start(name, [*words, "--metrics-port", "0", *more])
    exchange.cast[name].await_event("metrics.ready")


def port(exchange: Exchange, name: str) -> str:
    return exchange.cast[name].await_event("metrics.ready").rpartition("url=")[2].strip()


def start_silent(exchange: Exchange, name: str) -> str:
    """Start a process that logs errors only, and return its address."""
    words = ["relay"] if name == "relay" else ["receive", name]
    (free,) = free_ports(1)
    url = f"http://127.0.0.1:{free}"
    exchange.cast.start(name, [*words, "--metrics-port", str(free), "--log-level", "error"])
    wait_for(lambda: answers(url), f"{name} answers")
    return url


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def families(url: str) -> list[Metric]:
    answer = httpx.get(f"{url}/metrics", trust_env=False)
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return list(text_string_to_metric_families(answer.text))


def value(url: str, name: str, **labels: str) -> float | None:
    for family in families(url):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return None


def test_a_recipients_figures(exchange: Exchange) -> None:
    """Deliveries, effects by kind, handler time, retries, dead by reason; also at log level error.

    Every effect and outcome exists at 0 before it happens: else its first one is no increase.
    """
    relay, catalog = (start_silent(exchange, name) for name in ("relay", "catalog"))
    for effect in ("applied", "duplicate", "stale", "failed"):
        assert value(catalog, "delivery_effects_total", effect=effect) == 0
    for outcome in ("confirmed", "returned", "refused", "unknown"):
        assert value(relay, "delivery_publish_outcomes_total", outcome=outcome) == 0

    with exchange.refusing("m-1"):
        exchange.accept("m-1", "m-2", "m-3")
        exchange.put("catalog", b"no event", "bad")
        exchange.await_dead("catalog", 2)
    wait_for(lambda: value(catalog, "delivery_deliveries_total") == 5, "all is settled")
    assert value(catalog, "delivery_effects_total", effect="applied", recipient="catalog") == 2
    assert value(catalog, "delivery_effects_total", effect="failed") == 3
    # Bytes that are no event reach no handler.
    assert value(catalog, "delivery_handler_seconds_count") == 4
    assert value(catalog, "delivery_handler_seconds_sum") > 0  # type: ignore[operator]
    assert value(catalog, "delivery_retries_total", retry="1") == 1
    assert value(catalog, "delivery_dead_total", reason="exhausted") == 1
    assert value(catalog, "delivery_dead_total", reason="incompatible") == 1

    assert value(relay, "delivery_publish_outcomes_total", outcome="confirmed") == 3
    assert value(relay, "delivery_confirm_seconds_count") == 3
    assert exchange.cast["catalog"].log() == exchange.cast["relay"].log() == ""


def test_an_attempt_that_is_not_confirmed_is_counted_as_what_it_was(exchange: Exchange) -> None:
    """Returned: no queue is bound any more."""
    start(exchange, "relay")
    exchange.cast["relay"].await_event("relay.ready")
    with connect(exchange.config.broker) as connection:
        for recipient in ("catalog", "audit"):
            route = exchange.config.route(recipient)
            connection.channel().queue_unbind(route.queue, route.exchange, route.pattern)
    exchange.accept("m-1")
    relay, outcomes = port(exchange, "relay"), "delivery_publish_outcomes_total"
    wait_for(lambda: value(relay, outcomes, outcome="returned"), "it came back")
    assert value(relay, outcomes, outcome="confirmed") == 0


def test_a_lost_connection_is_counted_and_so_is_the_way_back(exchange: Exchange) -> None:
    """The broker's operator closes it."""
    start(exchange, "relay")
    exchange.cast["relay"].await_event("relay.ready")
    relay, mine = port(exchange, "relay"), f"{exchange.config.namespace} relay"
    assert value(relay, "delivery_reconnects_total", process="relay") == 0
    wait_for(lambda: close_connections(exchange, mine), "the plugin lists the connection")
    wait_for(lambda: value(relay, "delivery_reconnects_total", process="relay") == 1, "it is back")
    assert value(relay, "delivery_connections_lost_total") == 1
    assert value(relay, "delivery_connection_blocked") == 0


def close_connections(exchange: Exchange, name: str) -> bool:
    """Close the connections of that name, as an operator would; say whether there was one."""
    management = exchange.config.management
    assert management is not None
    found, _ = management.get("/api/connections")
    names = [
        each["name"]
        for each in found
        if each.get("client_properties", {}).get("connection_name") == name
    ]
    user = exchange.config.broker.parameters().credentials
    for each in names:
        httpx.delete(
            f"{management.url}/api/connections/{each}",
            auth=(user.username, user.password),
            trust_env=False,
        )
    return bool(names)


def test_the_names_obey_the_rules_and_nothing_else_is_asked_for(exchange: Exchange) -> None:
    """Every metric of alerts and dashboard is exported; counters end in _total, times are seconds.

    And every exported metric is on the dashboard: what nobody looks at need not be counted.
    """
    exchange.start("api")
    start(exchange, "relay")
    start(exchange, "catalog")
    exported: set[str] = set()
    for url in (exchange.url, port(exchange, "relay"), port(exchange, "catalog")):
        for family in families(url):
            assert re.fullmatch(r"delivery_[a-z][a-z_]*[a-z]", family.name)
            assert family.documentation
            assert not re.search(r"_(ms|milliseconds|minutes|count|total)$", family.name)
            exported |= {family.name + suffix for suffix in SUFFIXES[family.type]}
            for sample in family.samples:
                assert set(sample.labels) <= LABELS, sample  # no ids: a label value costs memory

    alerts = (MONITORING / "alerts.yml").read_text(encoding="utf-8")
    dashboard = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))
    shown = "\n".join(
        target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
    )
    for text in (alerts, shown):
        assert set(re.findall(r"\bdelivery_\w+", text)) <= exported
    kinds = r"_(total|bucket|sum|count)$"
    on_dashboard = {re.sub(kinds, "", name) for name in re.findall(r"delivery_\w+", shown)}
    assert {re.sub(kinds, "", name) for name in exported} == on_dashboard
    for text in (alerts, shown):
        used = set(re.findall(r"[{,](\w+)[!=]", text)) | set(re.findall(r"labels\.(\w+)", text))
        for group in re.findall(r"by \(([\w, ]+)\)", text):
            used |= set(group.split(", "))
        assert used <= LABELS


def closed(text: str) -> bool:
    """Say whether each bracket of *text* is closed, in order; a hole in a quoted text is none."""
    left = re.sub(r'"[^"]*"', "", text)
    left = re.sub(r"[^][(){}]", "", left)
    while (fewer := re.sub(r"\(\)|\[\]|\{\}", "", left)) != left:
        left = fewer
    return not left and text.count('"') % 2 == 0


def test_the_alerts_are_a_file_of_rules() -> None:
    """Every rule has what Prometheus and who is woken up need; its command exists."""
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    assert group["name"] == "delivery"
    for rule in group["rules"]:
        assert {*rule} - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"Delivery[A-Za-z]+", rule["alert"])
        assert closed(rule["expr"]), rule["expr"]
        assert re.fullmatch(r".+ (>|==) [0-9.]+", rule["expr"], re.S)
        assert re.fullmatch(r"[1-9][0-9]*[sm]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("page", "ticket")
        told = rule["annotations"]
        assert {*told} == {"summary", "description"}
        for text in told.values():
            assert closed(text), text
            for hole in re.findall(r"{{(.*?)}}", text):
                assert re.fullmatch(r" \$(labels\.\w+|value( \| humanize\w*)?) ", hole), text
        for words in re.findall(r"\bdelivery ([a-z ]+[a-z])", told["description"]):
            asked = [*words.split(), "--help"]
            assert CliRunner().invoke(app, asked).exit_code == 0, words
    names = [rule["alert"] for rule in group["rules"]]
    assert len({*names}) == len(names)


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    """Panels with numbers and places of their own, from the data source that is chosen there."""
    dashboard = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))
    assert {"title", "uid", "schemaVersion", "panels"} <= {*dashboard}
    (chosen,) = dashboard["templating"]["list"]
    source = {"type": chosen["query"], "uid": f"${{{chosen['name']}}}"}
    assert source["type"] == "prometheus"
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["type"] == "timeseries"
        assert panel["title"]
        assert panel["datasource"] == source
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24  # Grafana's columns
        columns, lines = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        place = {(column, line) for column in columns for line in lines}
        assert not place & taken, panel["title"]
        taken |= place
        references = [target["refId"] for target in panel["targets"]]
        assert len({*references}) == len(references)
        for target in panel["targets"]:
            assert closed(target["expr"]), target["expr"]
            assert target["legendFormat"]
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len({*numbers}) == len(numbers)


def test_a_taken_port_is_said_in_one_sentence(exchange: Exchange) -> None:
    """Before anything is relayed; and the option it is about is named."""
    start(exchange, "relay")
    taken = port(exchange, "relay").rpartition(":")[2]
    ended = exchange.run("receive", "catalog", "--metrics-port", taken)
    assert ended.returncode == 1
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert "--metrics-port" in line
