"""A child that keeps the audit log as the service does: inbox, retry, dead queue, strikes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delivery.connection import BrokerSettings
from delivery.dead import park
from delivery.inbox import once
from delivery.pipeline import ConfirmedChannel
from delivery.retry import retry_later
from delivery.routes import Route
from delivery.strikes import limit_deaths
from support.child_reader import read
from support.children import arguments


def consume(*, url: str, namespace: str, delays_ms: Sequence[int] = (), **more: Any) -> None:
    route = Route("audit", namespace)
    with ConfirmedChannel(BrokerSettings(url=url)) as copies:
        read(
            url=url,
            namespace=namespace,
            around=lambda handle: once(route, handle),
            on_failure=retry_later(copies, route, delays_ms, exhausted=park(copies, route)),
            guard=limit_deaths(3),
            meanwhile=copies.serve,
            **more,
        )


if __name__ == "__main__":
    consume(**arguments())
