"""``--queues quorum`` is known to every command, and another word is refused with the choice."""

from __future__ import annotations

import json

import typer
from support.exchange import delivery

from delivery.commands_cluster import cluster_app, register
from delivery.quorum import as_quorum
from delivery.terminal import SHAPES


def test_the_topology_can_be_looked_at_as_quorum_queues() -> None:
    """Lint and the picture are of the shape that was asked for."""
    assert delivery("--queues", "quorum", "topology", "lint").returncode == 0
    assert "past its delivery limit" not in delivery("topology", "diagram").stdout
    picture = delivery("--queues", "quorum", "topology", "diagram").stdout
    assert "past its delivery limit" in picture


def test_an_unknown_kind_is_refused() -> None:
    """The error names the kinds that there are."""
    refused = delivery("--queues", "mirrored", "topology", "lint")
    assert refused.returncode == 1
    assert "there are no 'mirrored' queues: classic or quorum" in refused.stderr


def test_the_command_registers_itself() -> None:
    """The command line imports every module commands_*, and knows its kind of queues then."""
    app = typer.Typer()
    register(app)
    assert SHAPES["quorum"]() is as_quorum
    assert [group.typer_instance for group in app.registered_groups] == [cluster_app]
    assert "move" in delivery("cluster", "--help").stdout


def test_who_declares_quorum_queues_may_say_where_they_lead_on_to() -> None:
    """A recipient's queue has a way to dead then, and the broker asks for read to take that."""
    planned = delivery("--queues", "quorum", "access", "plan", "--json")
    (declare,) = (each for each in json.loads(planned.stdout) if each["role"] == "declare")
    assert "delivery.catalog" in declare["read"]
