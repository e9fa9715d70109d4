"""While what all messages need is away, nothing is settled; one at a time is tried."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.events import event
from support.recipients import effects, store_at
from support.waiting import wait_for
from support.world import World

from delivery import audit
from delivery.breaker import Breaker, BreakerOpen, Position, consume_guarded
from delivery.connection import connect
from delivery.consumer import consume
from delivery.contract import Event
from delivery.dead import dead_queue, park
from delivery.errors import PermanentError
from delivery.handling import Effect
from delivery.health import Health
from delivery.inbox import once
from delivery.pipeline import ConfirmedChannel
from delivery.recovery import Backoff, keep_connected
from delivery.retry import ATTEMPT_HEADER, retry_later, retry_queue
from delivery.stopping import Stop
from delivery.store import transaction
from delivery.vitals import State

LATER = [60_000, 60_000]  # milliseconds: what is retried stays away for the whole test
QUICK = Backoff(first=0.01, most=0.05)


class Service:
    """What every handler needs: it can be away, and one event it never takes."""

    def __init__(self, *, poison: str = "") -> None:
        self.away = True
        self.poison = poison
        self.calls: list[str] = []

    def __call__(self, of: Event, tx: Any) -> Effect:
        self.calls.append(of.id)
        if self.away or of.id == self.poison:
            raise TimeoutError("the search index does not answer")
        return audit.append(of, tx)


def work(
    world: World,
    breaker: Breaker,
    service: Callable[[Event, Any], Effect],
    *,
    stop: Stop | None = None,
    delays_ms: list[int] = LATER,
    batch: int = 1,
    idle: float | None = 0.4,
) -> None:
    """Run the audit log as a process would, once."""
    route, stop = world.audit, Stop() if stop is None else stop
    with (
        closing(store_at(world.store_path(route))) as store,
        connect(world.settings) as inbound,
        ConfirmedChannel(world.settings) as copies,
    ):
        policy = retry_later(copies, route, delays_ms, exhausted=park(copies, route))
        take = partial(
            consume,
            inbound.channel(),
            route.queue,
            store,
            once(route, breaker.watched(service)),
            on_failure=breaker.holding(copies, policy),
            idle=idle,
        )
        consume_guarded(
            breaker, take, stop=stop, batch=batch, prefetch=10, meanwhile=lambda: copies.serve()
        )


def published(world: World, count: int) -> list[str]:
    world.declare(*LATER, routes=[world.audit])
    events = [event(title=f"{n}") for n in range(count)]
    world.publish(*events)
    return [each.id for each in events]


def opened(world: World, breaker: Breaker, service: Service, **options: Any) -> None:
    with pytest.raises(BreakerOpen, match="failed in a row"):
        work(world, breaker, service, **options)
    wait_for(lambda: world.consumers(world.audit.queue) == 0, "nobody consumes")


def test_it_opens_after_so_many_different_messages_and_settles_nothing_more(world: World) -> None:
    """The third failure of six opens it: two were retried, four are back, as they came."""
    ids = published(world, 6)
    breaker, service = Breaker(after=3), Service()

    opened(world, breaker, service)

    assert service.calls == ids[:3]
    assert breaker.position is Position.OPEN
    back = world.take(world.audit.queue)
    assert [properties.message_id for properties, _ in back] == ids[2:]
    assert [ATTEMPT_HEADER in (properties.headers or {}) for properties, _ in back] == [False] * 4
    assert world.ready(retry_queue(world.audit, 1)) == 2
    assert world.ready(dead_queue(world.audit)) == 0


def test_in_a_batch_too(world: World) -> None:
    """One transaction for all six: the first two are retried, the other four are back."""
    ids = published(world, 6)

    opened(world, Breaker(after=3), Service(), batch=10)

    back = [properties.message_id for properties, _ in world.take(world.audit.queue)]
    retried = world.ready(retry_queue(world.audit, 1))
    assert (len(back) + retried, back[-1]) == (6, ids[-1])
    assert retried == 2


def test_one_message_that_fails_again_and_again_never_opens_it(world: World) -> None:
    """It goes the way of retry and dead, and the others are applied."""
    world.declare(10, 10, 10, routes=[world.audit])
    poison, good = event(), event()
    world.publish(poison, good)
    breaker, service = Breaker(after=2), Service(poison=poison.id)
    service.away = False

    work(world, breaker, service, delays_ms=[10, 10, 10])

    assert service.calls.count(poison.id) == 4
    assert breaker.position is Position.CLOSED
    ((headers, _),) = world.dead(world.audit)
    assert headers["x-delivery-reason"] == "exhausted"


def test_alone_it_does_not_open_it_either(world: World) -> None:
    """Four failures in a row, but of one message."""
    world.declare(10, 10, 10, routes=[world.audit])
    world.publish(event())
    breaker = Breaker(after=2)

    work(world, breaker, Service(), delays_ms=[10, 10, 10])

    assert breaker.position is Position.CLOSED
    assert world.ready(dead_queue(world.audit)) == 1


@pytest.mark.parametrize("batch", [1, 10])
def test_a_success_between_failures_ends_the_row(world: World, batch: int) -> None:
    """Four of eight fail, each after one that does not; in one transaction, too."""
    published(world, 8)
    seen: list[str] = []

    def every_second(of: Event, tx: Any) -> Effect:
        seen.append(of.id)
        if len(seen) % 2 == 0:
            raise TimeoutError("away for a moment")
        return audit.append(of, tx)

    breaker = Breaker(after=2)
    work(world, breaker, every_second, batch=batch)

    assert breaker.position is Position.CLOSED
    assert world.ready(retry_queue(world.audit, 1)) == 4


def test_what_is_the_messages_own_fault_does_not_count(world: World) -> None:
    """A permanent error says nothing about the service."""
    published(world, 4)

    def refuse(of: Event, tx: Any) -> Effect:
        raise PermanentError("not this one")

    breaker = Breaker(after=2)
    work(world, breaker, refuse)

    assert breaker.position is Position.CLOSED
    assert world.ready(dead_queue(world.audit)) == 4


def test_a_probe_is_one_message_which_spends_no_attempt(world: World) -> None:
    """It goes to the end as it is; the next probe is another one's turn."""
    ids = published(world, 5)
    breaker, service = Breaker(after=3), Service()
    opened(world, breaker, service)
    del service.calls[:]

    for _ in range(2):
        with pytest.raises(BreakerOpen, match="tried failed, too"):
            work(world, breaker, service)

    assert service.calls == ids[2:4]
    assert world.ready(retry_queue(world.audit, 1)) == 2
    wait_for(lambda: world.ready(world.audit.queue) == 3, "all are back")
    back = world.take(world.audit.queue)
    assert [properties.message_id for properties, _ in back] == [ids[4], ids[2], ids[3]]
    assert not any(ATTEMPT_HEADER in (properties.headers or {}) for properties, _ in back)


def test_a_probe_that_succeeds_closes_it(world: World) -> None:
    """And consuming goes on with what is there, all at once."""
    ids = published(world, 6)
    breaker, service = Breaker(after=3), Service()
    opened(world, breaker, service)
    service.away = False

    work(world, breaker, service)

    assert breaker.position is Position.CLOSED
    assert service.calls[3:] == ids[2:]
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == 4


def test_a_poison_message_that_is_tried_first_does_not_keep_the_rest_waiting(world: World) -> None:
    """The service is back, but the first probe is the one message that it never takes."""
    ids = published(world, 6)
    breaker, service = Breaker(after=3), Service(poison=ids[2])
    opened(world, breaker, service)
    service.away = False

    with pytest.raises(BreakerOpen):
        work(world, breaker, service)
    work(world, breaker, service)

    assert breaker.position is Position.CLOSED
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == 3


def test_a_duplicate_proves_nothing(world: World) -> None:
    """Its receipt answers for it: the service is not asked, and the breaker stays open."""
    published(world, 5)
    breaker, service = Breaker(after=3), Service()
    opened(world, breaker, service)
    known = event()
    with closing(store_at(world.store_path(world.audit))) as store, transaction(store) as tx:
        once(world.audit, audit.append)(known, tx)
    world.take(world.audit.queue)
    world.publish(known)
    service.away = False
    del service.calls[:]

    work(world, breaker, service)

    assert service.calls == []
    assert world.ready(world.audit.queue) == 0
    assert breaker.position is Position.OPEN


def test_it_can_be_stopped_while_it_waits_for_a_message_to_try(world: World) -> None:
    """An empty queue, and SIGTERM: it ends, and is still open."""
    published(world, 3)
    breaker, stop = Breaker(after=3), Stop()
    opened(world, breaker, Service())
    world.take(world.audit.queue)
    thread = threading.Thread(
        target=work, args=(world, breaker, Service()), kwargs={"stop": stop, "idle": None}
    )

    thread.start()
    wait_for(lambda: world.consumers(world.audit.queue) == 1, "it waits")
    stop.request()
    thread.join(10)

    assert not thread.is_alive()
    assert breaker.position is Position.OPEN


def test_a_service_that_is_away_for_a_while_costs_no_message(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """keep_connected pauses and tries; the log and the health file say so; nothing is dead."""
    ids = published(world, 20)
    breaker, service, stop = Breaker(after=3), Service(), Stop()
    health = Health("audit", tmp_path / "health")
    logger = logging.getLogger("delivery")
    logger.addHandler(health)
    thread = threading.Thread(
        target=keep_connected,
        args=(lambda: work(world, breaker, service, stop=stop, idle=None),),
        kwargs={"stop": stop, "backoff": QUICK},
    )
    try:
        with caplog.at_level(logging.INFO, logger="delivery"):
            thread.start()
            wait_for(lambda: len(service.calls) >= 3 + 4, "four were tried")
            wait_for(lambda: health.vital.state is State.PAUSED, "it says that it is paused")
            service.away = False
            with closing(store_at(world.store_path(world.audit))) as store:
                wait_for(lambda: effects(store) == len(ids) - 2, "all but the retried are applied")
    finally:
        stop.request()
        thread.join(20)
        logger.removeHandler(health)
        health.close()
    names = [record.getMessage() for record in caplog.records]
    assert names.count("breaker.opened") == names.count("breaker.resumed") == 1
    assert names.count("breaker.paused") >= 4
    assert health.vital.state is State.READY
    assert world.ready(dead_queue(world.audit)) == 0
    assert world.ready(retry_queue(world.audit, 1)) == 2
