"""Show the outbox to Prometheus, counted when it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

__all__ = ["OutboxCollector"]


class OutboxCollector(Collector):
    """Counts that survive a restart, because *summary* reads them from the store."""

    def __init__(self, summary: Callable[[], dict[str, Any]]) -> None:
        self._summary = summary

    def collect(self) -> Iterable[Metric]:
        """Return the samples of this instant."""
        summary = self._summary()
        accepted = "Publications accepted since the store was made"
        yield CounterMetricFamily(
            "delivery_publications_accepted", accepted, value=summary["accepted"]
        )
        yield CounterMetricFamily(
            "delivery_publications_confirmed",
            "Publications that the broker has confirmed",
            value=summary["confirmed"],
        )
        pending = GaugeMetricFamily(
            "delivery_outbox_pending",
            "Publications not confirmed yet, by the outcome of the last attempt",
            labels=["last_outcome"],
        )
        for outcome, count in summary["pending"].items():
            pending.add_metric([outcome], count)
        yield pending
        yield GaugeMetricFamily(
            "delivery_outbox_oldest_pending_age_seconds",
            "Age of the oldest publication that is not confirmed; 0 if there is none",
            value=summary["oldest_pending_seconds"],
        )
