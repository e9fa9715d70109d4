"""Attach meter, health and their port to a process, from outside, for as long as it runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import disable_created_metrics

from delivery.health import Health
from delivery.meter import Meter
from delivery.port import serving_port

__all__ = ["watched"]


@contextlib.contextmanager
def watched(
    process: str, folder: Path, meter: Meter, *, host: str, port: int | None
) -> Iterator[Health]:
    """Follow the package's log until the block ends; without *port*, nothing is served.

    The health file is kept in *folder* in any case. Raises DeliveryError if the port is taken.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for each counter, which nobody asks for
    health = Health(process, folder)
    logger = logging.getLogger("delivery")
    with contextlib.ExitStack() as stack:
        stack.callback(health.close)
        for handler in (health, meter):
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
        if port is not None:
            stack.enter_context(serving_port(host, port, meter.registry, health))
        yield health
