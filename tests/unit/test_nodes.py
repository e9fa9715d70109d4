"""Which node may go is read off what the management plugin tells of queues and nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from support.exchange import delivery, environment

from delivery.errors import DeliveryError
from delivery.management import Management
from delivery.nodes import node_states, trouble

NODES = ("one", "two", "three")


@dataclass
class Told:
    """What the plugin would answer."""

    queues: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    vhost: str = "ours"

    def get(self, path: str) -> tuple[list[dict[str, Any]], None]:
        ours = [each for each in self.queues if each.get("vhost", "ours") == self.vhost]
        answers = {"/api/queues": self.queues, "/api/queues/ours": ours, "/api/nodes": self.nodes}
        return answers[path], None


def against(*queues: dict[str, Any], **nodes: dict[str, Any]) -> list[str]:
    told = [{"name": name, "running": True, **nodes.get(name, {})} for name in NODES]
    return trouble(node_states(cast(Management, Told([*queues], told)), "d."))


def quorum(members: tuple[str, ...], online: tuple[str, ...], name: str = "d.q") -> dict[str, Any]:
    return {"name": name, "type": "quorum", "leader": "one", "members": members, "online": online}


def classic(node: str, **more: Any) -> dict[str, Any]:
    return {"name": "d.c", "type": "classic", "node": node, **more}


@pytest.mark.parametrize(
    ("members", "online", "needed"),
    [
        (NODES, NODES, []),
        (NODES, ("one", "two"), ["one", "two"]),
        (("one", "two"), ("one", "two"), ["one", "two"]),
        (("one",), ("one",), ["one"]),
        ((*NODES, "four", "five"), ("one", "two", "three", "four"), []),
    ],
    ids=["three", "one of three is away", "two are no more than one", "one", "one of five is away"],
)
def test_a_node_is_needed_if_no_majority_is_left_without_it(
    members: tuple[str, ...], online: tuple[str, ...], needed: list[str]
) -> None:
    """More than half of the members must be there, and not of those that happen to be online."""
    said = against(quorum(members, online))
    assert said == [f"d.q would stop without {node}" for node in needed]


def test_a_classic_queue_goes_with_its_node() -> None:
    """But for a lock, which goes with its connection, and for what is not this exchange's."""
    assert against(classic("two")) == ["d.c lives on two alone"]
    assert against(quorum(NODES, NODES), classic("two", exclusive=True)) == []
    assert against(quorum(NODES, NODES), quorum(("one",), ("one",), name="other.q")) == []


def test_a_queue_of_the_same_name_in_another_virtual_host_is_another_exchange_s() -> None:
    """It speaks neither against a node nor for it."""
    strange = classic("two", vhost="theirs")
    assert against(quorum(NODES, NODES), strange) == []
    with pytest.raises(DeliveryError, match=r"no queue whose name begins with 'd\.'"):
        against(strange)


def test_a_node_that_is_stopped_or_drained_is_named() -> None:
    """No other may go as long as it is so."""
    nodes = {"two": {"running": False}, "three": {"being_drained": True}}
    said = against(quorum(NODES, NODES), **nodes)
    assert said == ["two is not running", "three is drained: rabbitmq-upgrade revive"]


def test_nothing_to_miss_is_no_leave_to_go() -> None:
    """A wrong --namespace, or nothing declared yet: nobody knows what would miss a node."""
    with pytest.raises(DeliveryError, match=r"no queue whose name begins with 'd\.'"):
        against(quorum(NODES, NODES, name="other.q"))


@pytest.mark.parametrize(
    ("command", "begins"),
    [
        ("cluster check", "this is done through"),
        ("access check", "users are created through"),
        ("unrouted declare", "the policy needs"),
        ("queues limit delivery.audit --length 9 --into delivery.audit.dead", "a policy needs"),
    ],
)
def test_a_command_that_needs_the_plugin_says_so(command: str, begins: str, tmp_path: Path) -> None:
    """Its address is not guessed, and nothing was asked: nobody listens at this broker's."""
    nobody = environment(DELIVERY_AMQP_URL="amqp://guest:guest@127.0.0.1:9/%2F")
    nobody.pop("DELIVERY_MANAGEMENT_URL", None)
    ended = delivery("--data", str(tmp_path), *command.split(), environ=nobody)
    said = f"error: {begins} the management plugin: set DELIVERY_MANAGEMENT_URL\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", said)
