"""Lanes and alternates are functions on a topology; workers are threads that end together."""

from __future__ import annotations

import threading

import pytest
from support.waiting import wait_for

from delivery.dead import dead_topology
from delivery.diagram import mermaid
from delivery.errors import DeliveryError
from delivery.lanes import Lane, lane_route, lane_topology, run_lanes, with_alternate
from delivery.lint import lint
from delivery.routes import Route, topology_of
from delivery.routing import routed
from delivery.stopping import Stop
from delivery.topology import Binding

ROUTE = Route("catalog", "ns")
LANES = (Lane("critical", "material.#"), Lane("background", "bulk.#", workers=2))


def test_an_alternate_is_a_fanout_with_a_queue_and_lint_is_content() -> None:
    """The three parts come together; every other declaration is as it was."""
    before = topology_of([ROUTE])
    topology = with_alternate(before, ROUTE.exchange)

    assert topology.exchanges[0].arguments == {"alternate-exchange": "ns.events.unrouted"}
    assert (topology.exchanges[1].name, topology.exchanges[1].kind) == (
        "ns.events.unrouted",
        "fanout",
    )
    assert topology.queues[:-1] == before.queues
    assert topology.bindings[-1] == Binding("ns.events.unrouted", "ns.events.unrouted", "")
    assert lint(topology) == []


def test_an_alternate_for_an_exchange_that_is_not_there_is_refused() -> None:
    """A misspelt name would leave the exchange without its net."""
    with pytest.raises(DeliveryError, match=r"no exchange 'ns\.evnets'"):
        with_alternate(topology_of([ROUTE]), "ns.evnets")


def test_each_lane_has_a_queue_for_its_own_keys() -> None:
    """And is a route like any other: dead queues can be added."""
    topology = lane_topology(ROUTE, LANES)
    routes = [lane_route(ROUTE, lane) for lane in LANES]

    assert [queue.name for queue in topology.queues] == [
        "ns.catalog.critical",
        "ns.catalog.background",
    ]
    assert [binding.key for binding in topology.bindings] == ["material.#", "bulk.#"]
    assert routed(topology, ROUTE.exchange, "bulk.material.published.v1")
    assert lint(topology + dead_topology(routes)) == []


def test_every_worker_of_every_lane_runs_at_once() -> None:
    """Three threads for one and two workers: each waits for all the others."""
    together = threading.Barrier(3)
    worked: list[str] = []

    def work(lane: Lane) -> None:
        together.wait(10)
        worked.append(lane.name)

    run_lanes(LANES, work, Stop())

    assert sorted(worked) == ["background", "background", "critical"]


def test_a_worker_that_fails_ends_the_others_and_is_heard() -> None:
    """Half a recipient that seems to work would be noticed by nobody."""
    stop = Stop()

    def work(lane: Lane) -> None:
        if lane.name == "critical":
            raise DeliveryError("no store")
        wait_for(lambda: stop, "the others are asked to stop")

    with pytest.raises(DeliveryError, match="no store"):
        run_lanes(LANES, work, stop)


def test_the_diagram_shows_where_what_no_queue_wants_goes() -> None:
    """A dotted arrow to the alternate, which takes every key."""
    lines = mermaid(with_alternate(topology_of([ROUTE]), ROUTE.exchange)).splitlines()

    assert '    x0 -. "no queue wants it" .-> x1' in lines
    assert '    x1 -- "every key" --> q3' in lines
