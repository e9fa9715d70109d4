"""The world of a test with recipients: a store for each, and a consumer to run."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier
from typing import Any

from delivery.connection import connect
from delivery.consumer import FailurePolicy, Settlement, consume, requeue
from delivery.contract import Event
from delivery.handling import Delivery, Handler
from delivery.routes import Route
from delivery.stopping import Stop
from support import queues
from support.recipients import store_at

DEADLINE = 60.0  # seconds: for what comes at once, if nobody keeps the machine busy


@dataclass
class Seen:
    """What a consumer of the test went through."""

    events: list[Event] = field(default_factory=list)
    failures: list[tuple[Delivery, Exception]] = field(default_factory=list)


class World(queues.World):
    """A namespace on the broker, and the files of its recipients."""

    def store_path(self, route: Route) -> Path:
        return self.folder / f"{route.recipient}.db"

    def consume(
        self,
        route: Route,
        handle: Handler,
        *,
        on_failure: FailurePolicy = requeue,
        until: Callable[[Seen], bool] | None = None,
        together: Barrier | None = None,
        serve: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> Seen:
        """Consume until *until* holds, or nothing came for 0.4 s.

        The connection and the store are this consumer's own; with *together* it begins when the
        other consumers are as far.
        """
        seen, stop, end = Seen(), Stop(), time.monotonic() + DEADLINE

        def noting(event: Event, tx: Any) -> Any:
            seen.events.append(event)
            return handle(event, tx)

        def meanwhile() -> None:
            serve()
            assert time.monotonic() < end, f"not within {DEADLINE} s: {seen}"
            if until is not None and until(seen):
                stop.request()

        with closing(store_at(self.store_path(route))) as store, connect(self.settings) as own:
            if together is not None:
                together.wait()
            consume(
                own.channel(),
                route.queue,
                store,
                noting,
                on_failure=noted(seen, on_failure),
                idle=0.4 if until is None else None,
                stop=stop,
                meanwhile=meanwhile,
                **options,
            )
        return seen


def noted(seen: Seen, policy: FailurePolicy) -> FailurePolicy:
    def note(delivery: Delivery, error: Exception) -> Settlement:
        seen.failures.append((delivery, error))
        return policy(delivery, error)

    return note
