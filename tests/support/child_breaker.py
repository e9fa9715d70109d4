"""A child whose breaker is open from the start, and whose probe fails; killed where it is told."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from delivery.breaker import Breaker, Position, consume_guarded
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import Event
from delivery.handling import Effect
from delivery.pipeline import ConfirmedChannel
from delivery.points import arm_from
from delivery.retry import retry_later
from delivery.routes import Route
from delivery.stopping import Stop
from support.recipients import store_at


def away(of: Event, tx: Any) -> Effect:
    raise TimeoutError("the search index does not answer")


def main(url: str, namespace: str, store: str) -> None:
    arm_from(os.environ)
    route, breaker, settings = Route("audit", namespace), Breaker(), BrokerSettings(url=url)
    breaker.position = Position.OPEN
    with (
        closing(store_at(Path(store))) as opened,
        connect(settings) as connection,
        ConfirmedChannel(settings) as copies,
    ):
        policy = breaker.holding(copies, retry_later(copies, route, [], exhausted=never))
        channel, handle = connection.channel(), breaker.watched(away)
        take = partial(consume, channel, route.queue, opened, handle, on_failure=policy)
        consume_guarded(breaker, take, stop=Stop())


def never(delivery: object, error: Exception) -> Any:
    raise error


if __name__ == "__main__":
    main(*sys.argv[1:])
