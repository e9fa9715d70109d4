"""Catch what no queue wants, and keep the urgent apart from the bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from delivery.errors import DeliveryError
from delivery.routes import Route, topology_of
from delivery.stopping import Stop
from delivery.topology import Binding, Exchange, Queue, Topology

__all__ = [
    "Lane",
    "lane_route",
    "lane_topology",
    "parking_topology",
    "run_lanes",
    "unrouted_queue",
    "with_alternate",
]


def unrouted_queue(exchange: str) -> str:
    """Return the name of the queue, and of the fanout, that keep what *exchange* can't route."""
    return f"{exchange}.unrouted"


def parking_topology(exchange: str) -> Topology:
    """Return the parking queue of *exchange*, behind a fanout: that is, for every routing key.

    A queue alone will not do: RabbitMQ's alternate for an exchange is an exchange.
    """
    name = unrouted_queue(exchange)
    return Topology((Exchange(name, "fanout"),), (Queue(name),), (Binding(name, name, ""),))


def with_alternate(topology: Topology, exchange: str) -> Topology:
    """Return *topology*, in which what no queue of *exchange* wants goes to a parking queue.

    From then on the broker counts such a message as routed: a publisher gets no return any more,
    but CONFIRMED. So somebody must look at the parking queue. Raises DeliveryError if *topology*
    has no such exchange.
    """
    if exchange not in {each.name for each in topology.exchanges}:
        raise DeliveryError(f"there is no exchange {exchange!r} to give an alternate to")
    named = {"alternate-exchange": unrouted_queue(exchange)}
    exchanges = tuple(
        replace(each, arguments={**each.arguments, **named}) if each.name == exchange else each
        for each in topology.exchanges
    )
    return replace(topology, exchanges=exchanges) + parking_topology(exchange)


@dataclass(frozen=True)
class Lane:
    """One kind of a recipient's traffic: the routing keys, and who works on it.

    *workers* take from the lane's own queue, each at most *prefetch* unsettled messages; no other
    lane can use them up.
    """

    name: str
    pattern: str
    workers: int = 1
    prefetch: int = 10


def lane_route(route: Route, lane: Lane) -> Route:
    """Return *lane*'s own route, to which retry and dead queues can be added as to any other.

    Its receipts are still the recipient's: ``once(route, ...)`` with the recipient's own route, so
    that a message which comes by two lanes has one effect.
    """
    return replace(route, recipient=f"{route.recipient}.{lane.name}", pattern=lane.pattern)


def lane_topology(route: Route, lanes: Iterable[Lane]) -> Topology:
    """Return a queue and a binding for each of *lanes* of one recipient."""
    return topology_of(lane_route(route, lane) for lane in lanes)


def run_lanes(lanes: Iterable[Lane], work: Callable[[Lane], None], stop: Stop) -> None:
    """Run *work* in a thread of its own for each worker of each lane, until all have ended.

    *work* opens its own connections. The first error ends the others by *stop*, and is raised.
    """
    crew = [lane for lane in lanes for _ in range(lane.workers)]
    with ThreadPoolExecutor(len(crew), thread_name_prefix="lane") as threads:
        jobs = [threads.submit(work, lane) for lane in crew]
        done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        if any(job.exception() for job in done):
            stop.request()
    for job in jobs:
        job.result()
