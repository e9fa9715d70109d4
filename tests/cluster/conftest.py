"""One cluster of three nodes for the whole run; each test finds it whole, and names of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from delivery.cluster import Cluster, three_nodes


@pytest.fixture(scope="session")
def three() -> Iterator[Cluster]:
    """In Docker, or as three processes of this machine's rabbitmq-server: never skipped."""
    with three_nodes(os.environ, print) as cluster:
        yield cluster


@pytest.fixture
def cluster(three: Cluster) -> Iterator[Cluster]:
    """The cluster with all of its nodes; those that the test killed are back afterwards."""
    yield three
    for node in three.nodes:
        machine = node.machine
        assert machine is not None
        if not machine.running():
            machine.start()
    for node in three.nodes:
        node.start()  # returns when it is ready
    three.await_formed()
