"""A recipient's figures are the same whether its deliveries settle alone or as a batch."""

from __future__ import annotations

import logging

from delivery.meter import ReceiverMeter


def record(event: str, **fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": event, "levelno": logging.INFO})
    vars(made).update(fields)
    return made


def test_a_batch_counts_each_of_its_deliveries() -> None:
    """Three handled, told in one line; the failure beside them has a line of its own."""
    meter = ReceiverMeter("catalog")
    meter.emit(record("delivery.settled", effect="failed"))
    meter.emit(record("batch.settled", queue="q", applied=2, duplicate=1))
    meter.emit(record("delivery.settled", effect="applied"))

    def figure(name: str, **labels: str) -> float | None:
        return meter.registry.get_sample_value(name, {"recipient": "catalog", **labels})

    assert figure("delivery_deliveries_total") == 5
    effects = {
        effect: figure("delivery_effects_total", effect=effect)
        for effect in ("applied", "duplicate", "stale", "failed")
    }
    assert effects == {"applied": 3, "duplicate": 1, "stale": 0, "failed": 1}


def test_a_refused_login_is_a_connection_that_was_not_made() -> None:
    """Whoever is alerted by that figure hears of it, too."""
    meter = ReceiverMeter("catalog")
    meter.emit(record("connection.lost"))
    meter.emit(record("access.refused"))
    labels = {"process": "catalog"}
    assert meter.registry.get_sample_value("delivery_connections_lost_total", labels) == 2
