"""The diagram shows what the topology says, and nothing else."""

from __future__ import annotations

from delivery.dead import dead_topology
from delivery.diagram import mermaid
from delivery.retry import retry_topology
from delivery.routes import Route, topology_of
from delivery.topology import Topology

ROUTE = Route("catalog", "ns")


def test_the_diagram_shows_exchange_queues_binding_and_the_way_back_from_retry() -> None:
    """One node for each thing, a solid arrow for a binding, a dotted one for the TTL's way back."""
    topology = topology_of([ROUTE]) + retry_topology([ROUTE], [500]) + dead_topology([ROUTE])

    assert mermaid(topology).splitlines() == [
        "flowchart LR",
        '    x0{{"ns.events<br/>topic exchange"}}',
        '    q1[("ns.catalog")]',
        '    q2[("ns.catalog.retry.1")]',
        '    q3[("ns.catalog.dead")]',
        '    x0 -- "material.published.*" --> q1',
        '    q2 -. "after 500 ms" .-> q1',
    ]


def test_an_empty_topology_is_an_empty_diagram() -> None:
    """Nothing is invented."""
    assert mermaid(Topology()) == "flowchart LR\n"
