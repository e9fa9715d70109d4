"""Lesson 04: what a route takes."""

from __future__ import annotations

from delivery.routes import routes_of, topology_of
from delivery.routing import routed


def test_a_route_takes_every_version_of_the_fact() -> None:
    """A version that the recipient cannot read must arrive and be seen, not pass it by."""
    topology = topology_of(routes_of("ns"))

    assert routed(topology, "ns.events", "material.published.v1")
    assert routed(topology, "ns.events", "material.published.v2")
    assert not routed(topology, "ns.events", "material.withdrawn.v1")
