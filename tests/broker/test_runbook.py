"""The runbook's commands, each while events are published; the ledger has the last word."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.exchange import Exchange, exchange_on
from support.guarded import Guarded, guarded_exchange
from support.publishing import publishing
from support.waiting import wait_for

from delivery import cli, rotation, users
from delivery.broker import Broker
from delivery.changing import change_queues, plan_change
from delivery.confirms import Outcome
from delivery.connection import AccessRefused, connect
from delivery.errors import DeliveryError
from delivery.lanes import unrouted_queue
from delivery.limits import Refuse, Shed
from delivery.moving import move_to_quorum
from delivery.observe import depth
from delivery.passwords import file_for
from delivery.pipeline import ConfirmedChannel
from delivery.policies import limit_queue, unlimit_queue
from delivery.publisher import Message, envelope
from delivery.quorum import as_quorum
from delivery.relocation import InUse, aside
from delivery.retry import retry_queue
from delivery.services import prepare
from delivery.stores import PUBLISHER
from delivery.topology import Queue, Topology, declare

LATER = ("--retries", "700,300")


@pytest.fixture
def guarded(breakable_broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Guarded]:
    with guarded_exchange(breakable_broker, tmp_path, namespace) as opened:
        prepare(opened.config("declare"), "declare")
        yield opened


@pytest.fixture
def exchange(broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Exchange]:
    with exchange_on(broker, tmp_path, namespace) as opened:
        yield opened


def well(exchange: Exchange, *arguments: str) -> str:
    """Run one command that must end well; return what it said."""
    ended = exchange.run(*arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


# -- the whole runbook of one broker, in one exchange


def test_each_step_of_the_runbook_under_traffic_and_the_sum_is_right(guarded: Guarded) -> None:
    """Events are accepted all the time: difference 0, one given up, none applied twice."""
    exchange = guarded.exchange
    guarded.start("relay", "catalog", "audit")
    with publishing(exchange):
        given_up, sent_again = two_dead(exchange)
        clean_the_dead_queue(exchange, given_up)
        replay_from_dead(exchange, sent_again)
        replay_from_parking(guarded)
        rotate_a_password(guarded)
        bound_a_queue(exchange)
        change_an_argument(guarded)

    balances(exchange, given_up)


def two_dead(exchange: Exchange) -> tuple[str, str]:
    with exchange.refusing("m-bad"):
        first, second = exchange.accept("m-bad", "m-bad")
        exchange.await_dead("catalog", 2)
    return first, second


def clean_the_dead_queue(exchange: Exchange, event_id: str) -> None:
    """The one whose material was withdrawn is given up, with a reason."""
    groups = json.loads(well(exchange, "dead", "groups", "catalog", "--json"))
    assert [(each["reason"], each["count"]) for each in groups] == [("exhausted", 2)]
    well(exchange, "dead", "show", "catalog", event_id)
    well(exchange, "dead", "drop", "catalog", "--id", event_id, "--reason", "withdrawn")
    (act,) = json.loads(well(exchange, "dead", "trail", "catalog", "--json"))
    assert (act["action"], act["reason"], act["result"]) == ("drop", "withdrawn", "dropped")


def replay_from_dead(exchange: Exchange, event_id: str) -> None:
    """The other one goes to the catalog's queue alone: audit, which had it, sees no second copy."""
    (planned,) = json.loads(well(exchange, "dead", "plan", "catalog", "--json"))
    assert (planned["id"], planned["prospect"]) == (event_id, "effect")
    well(exchange, "dead", "replay", "catalog", "--group", "exhausted", "--reason", "healed")
    assert exchange.await_receipt("audit", event_id).duplicates == 0
    assert exchange.await_receipt("catalog", event_id).duplicates == 0


def replay_from_parking(guarded: Guarded) -> None:
    """A missing binding parks what is published; the replay makes it again, and sends all."""
    exchange, config = guarded.exchange, guarded.exchange.config
    well(exchange, "unrouted", "declare")
    assert exchange.cast.stop("relay") == 0  # no event between the two unbinds
    topology = config.topology()
    with connect(config.broker) as connection:
        channel = connection.channel()
        for each in topology.bindings:
            channel.queue_unbind(each.queue, each.exchange, each.key)
    guarded.start("relay")
    parked = unrouted_queue(config.exchange)
    wait_for(lambda: depth_of(exchange, parked) > 0, "some are parked")
    assert exchange.run("unrouted", "list", "--check").returncode == 1
    assert exchange.cast.stop("relay") == 0  # nor between the two that come back
    well(exchange, "unrouted", "replay", "--all", "--reason", "bound again")
    assert depth_of(exchange, parked) == 0
    guarded.start("relay")
    forget_parking(exchange)


def forget_parking(exchange: Exchange) -> None:
    name, management = unrouted_queue(exchange.config.exchange), exchange.config.management
    assert management is not None
    management.delete(f"/api/policies/%2F/{name}")
    with connect(exchange.config.broker) as connection:
        connection.channel().queue_delete(name)
        connection.channel().exchange_delete(name)


def rotate_a_password(guarded: Guarded) -> None:
    """The relay goes on with its open connection; after its restart the old password is no use."""
    exchange, kept = guarded.exchange, ("--passwords", str(guarded.folder))
    old = guarded.config("relay").broker
    said = well(exchange, "access", "rotate", "relay", *kept)
    assert "restart relay now" in said
    assert oct(file_for(guarded.folder, "relay").stat().st_mode & 0o777) == "0o600"
    before = sent(exchange)
    wait_for(lambda: sent(exchange) > before, "the open connection goes on")
    with pytest.raises(AccessRefused):
        connect(old)
    assert exchange.cast.stop("relay") == 0
    guarded.start("relay")
    assert "no other" in well(exchange, "access", "check", *kept)
    wait_for(lambda: is_listed(guarded, guarded.users["relay"].user), "the plugin lists it")
    assert "0 connections" not in well(exchange, "access", "disconnect", "relay")
    exchange.cast["relay"].await_event("relay.ready", times=2)


def is_listed(guarded: Guarded, user: str) -> bool:
    """The plugin hears of a connection some seconds late."""
    return any(each.get("user") == user for each in guarded.management.get("/api/connections")[0])


def sent(exchange: Exchange) -> int:
    (count,) = exchange.select(PUBLISHER, "SELECT count(confirmed_at) FROM outbox")
    return int(count)


def bound_a_queue(exchange: Exchange) -> None:
    """By a policy: nobody stops, no declaration changes."""
    queue = exchange.config.route("audit").queue
    length = ("--length", "100000", "--into", f"{queue}.dead")
    assert "at most 100000" in well(exchange, "queues", "limit", queue, *length)
    assert policy_of(exchange, queue) == f"{queue}.limit"
    assert "is gone" in well(exchange, "queues", "unlimit", queue)


def policy_of(exchange: Exchange, queue: str) -> str:
    management = exchange.config.management
    assert management is not None
    return str(management.get(f"/api/queues/%2F/{quote(queue)}")[0].get("policy") or "")


def change_an_argument(guarded: Guarded) -> None:
    """A longer delay before the first retry: the recipients are stopped, the relay goes on."""
    exchange = guarded.exchange
    queues = [retry_queue(exchange.config.route(name), 1) for name in ("catalog", "audit")]
    for name in ("catalog", "audit"):
        assert exchange.cast.stop(name) == 0
    plan = well(exchange, *LATER, "queues", "plan")
    assert f"{queues[0]}: x-message-ttl is 150, wanted 700" in plan
    assert "2 queues changed" in exchange.run(*LATER, "queues", "change", *queues).stderr
    exchange.options += LATER  # the last one is meant
    exchange.config = replace(exchange.config, retries_ms=(700, 300))
    guarded.start("catalog", "audit")
    assert plan_change(exchange.config) == []


def balances(exchange: Exchange, given_up: str) -> None:
    """Everything accepted was applied once by each, but for the one that was given up."""
    ended = exchange.run("ledger", "--within", "30")
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.splitlines()[-1].split() == ["difference", "0", "0"]  # as the notes say
    events = set(exchange.select(PUBLISHER, "SELECT event_id FROM outbox"))
    accounts = exchange.accounts()
    for name, dropped in (("catalog", 1), ("audit", 0)):
        account = accounts[name]
        assert (account.difference, account.dead, account.dropped) == (0, 0, dropped), account
        assert account.applied + account.stale + dropped == account.accepted == len(events)
    assert exchange.receipt("catalog", given_up) is not None
    audited = exchange.select("audit", "SELECT event_id FROM audit")
    assert len(audited) == len(set(audited))
    assert set(audited) == events


# -- what the steps refuse


def test_a_queue_whose_recipient_runs_is_not_changed(exchange: Exchange) -> None:
    """It would declare its retry queue as it was, in the middle of the move."""
    exchange.start("catalog")
    later = replace(exchange.config, retries_ms=(700, 300))
    queue = retry_queue(later.route("catalog"), 1)

    with pytest.raises(InUse, match="stop the recipients first"):
        change_queues(later, [queue])

    assert [move.queue for move in plan_change(later, [queue])] == [queue]
    prepare(exchange.config, "test")


def test_a_queue_is_changed_by_its_name_only(exchange: Exchange) -> None:
    """The others stay as they are, also those that differ.

    An unknown name is an error, and so is what no service would declare.
    """
    later = replace(exchange.config, retries_ms=(700, 900))
    first, second = (retry_queue(later.route("audit"), number) for number in (1, 2))
    exchange.put("audit", b"{}", "e-1", queue=first)

    assert [move.queue for move in change_queues(later, [first])] == [first]

    left = {move.queue for move in plan_change(later)}
    assert first not in left
    assert second in left
    with pytest.raises(DeliveryError, match="has no queue 'other'"):
        change_queues(later, ["other"])

    # Found before anything: half way, with the queue gone, it would be too late.
    for delay in (2**32, 10**20):
        broken = replace(later, retries_ms=(delay, 900))
        with pytest.raises(DeliveryError, match="the topology has mistakes"):
            change_queues(broken, [first])
    assert first not in {move.queue for move in plan_change(later)}

    exchange.delete_queue(second)
    assert (second, "missing") in {(move.queue, move.kind) for move in plan_change(later)}
    with pytest.raises(DeliveryError, match=f"no queue '{second}' yet"):
        change_queues(later, [second])


def test_a_quorum_queue_gets_other_arguments_too(exchange: Exchange) -> None:
    """The broker deletes it on no condition: it is looked at first. Its kind may change as well."""
    config = replace(exchange.config, shape=as_quorum)
    queue = retry_queue(config.route("catalog"), 2)
    assert len(change_queues(config, [queue])) == 1
    exchange.put("catalog", b"{}", "e-1", queue=queue)
    later = replace(config, retries_ms=(150, 60_000))

    (move,) = change_queues(later, [queue])

    assert move.kind == "x-message-ttl is 300, wanted 60000"
    with connect(config.broker) as connection:
        there = depth(connection, queue)
        assert depth(connection, aside(queue)) is None
    own = depth_of(exchange, config.route("catalog").queue)
    assert (there.ready if there else 0) + own == 1  # it may have expired in time


def depth_of(exchange: Exchange, queue: str) -> int:
    with connect(exchange.config.broker) as connection:
        found = depth(connection, queue)
    return found.ready if found else 0


def test_a_policy_makes_a_declared_delay_shorter_and_not_longer(exchange: Exchange) -> None:
    """Which is why a longer one needs a move."""
    config, management = exchange.config, exchange.config.management
    assert management is not None
    route = config.route("catalog")
    for ttl, policy in ((60_000, 100), (100, 60_000)):
        queue = Queue(f"{route.queue}.retry.3", {"x-message-ttl": ttl, **back(route.queue)})
        path = f"/api/policies/%2F/{queue.name}"
        rule = {"pattern": f"^{queue.name}$", "definition": {"message-ttl": policy}}
        management.put(path, rule)
        try:
            with connect(config.broker) as connection:
                declare(connection, Topology(queues=(queue,)))
            before = depth_of(exchange, route.queue)
            exchange.put("catalog", b"{}", f"e-{ttl}", queue=queue.name)
            wait_for(lambda: depth_of(exchange, route.queue) == before + 1, "it expires")  # noqa: B023
        finally:
            exchange.delete_queue(queue.name)
            management.delete(path)


@pytest.mark.parametrize(("kind", "refused"), [("classic", 5), ("quorum", 0)])
def test_a_policy_overrules_what_a_quorum_queue_does_beyond_its_length(
    exchange: Exchange, kind: str, refused: int
) -> None:
    """Which would end what at-least-once needs: so `queues limit` does not shed there."""
    config, management = exchange.config, exchange.config.management
    assert management is not None
    name = f"{config.namespace}.bounded"
    path, rule = f"/api/policies/%2F/{name}", {"max-length": 5, "overflow": "drop-head"}
    management.put(path, {"pattern": f"^{name}$", "definition": rule})
    try:
        with connect(config.broker) as connection:
            declare(
                connection, Topology(queues=(Queue(name, {"x-overflow": "reject-publish"}, kind),))
            )
        with ConfirmedChannel(config.broker) as channel:
            about = (envelope(f"e-{n}", "x", timestamp=1) for n in range(10))
            said = [channel.send(Message("", name, each, b"{}")).outcome for each in about]
        assert said.count(Outcome.REFUSED) == refused
    finally:
        exchange.delete_queue(name)
        management.delete(path)


def back(queue: str) -> dict[str, object]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def test_a_limit_that_would_lose_messages_is_refused(exchange: Exchange) -> None:
    """As in the declaration: dead is not bounded, and what waits for a retry has no publisher."""
    config = exchange.config
    queue, dead = config.route("audit").queue, exchange.dead_queue("audit")
    with pytest.raises(DeliveryError, match="can't be bounded so"):
        limit_queue(config, dead, Shed(10, None, queue))
    with pytest.raises(DeliveryError, match="can't be bounded so"):
        limit_queue(config, queue, Refuse(10))
    with pytest.raises(DeliveryError, match="is another recipient's"):
        limit_queue(config, queue, Shed(10, None, exchange.dead_queue("catalog")))
    quorum = replace(config, shape=as_quorum)  # it refuses beyond a length, and would go on to
    with pytest.raises(DeliveryError, match="x-overflow = reject-publish: a policy must not"):
        limit_queue(quorum, queue, Shed(10, None, dead))
    assert not unlimit_queue(config, queue)


def test_a_queue_with_another_policy_gets_no_second_one(exchange: Exchange) -> None:
    """Only one holds: ours would be of no effect, or end the other's."""
    config, management = exchange.config, exchange.config.management
    assert management is not None
    queue = config.route("audit").queue
    path = f"/api/policies/%2F/{queue}.other"
    management.put(path, {"pattern": f"^{queue}$", "definition": {"max-length": 9_000}})
    try:
        wait_for(lambda: policy_of(exchange, queue) == f"{queue}.other", "the other holds")
        with pytest.raises(DeliveryError, match="only one holds"):
            limit_queue(config, queue, Shed(10, None, f"{queue}.dead"))
    finally:
        management.delete(path)


def test_a_queue_with_a_limit_that_sheds_is_not_made_a_quorum_queue(exchange: Exchange) -> None:
    """The policy would go on to hold there, and end what at-least-once needs; nothing is begun."""
    config = exchange.config
    quorum = replace(config, shape=as_quorum)
    queue = config.route("audit").queue
    limit_queue(config, queue, Shed(10, None, exchange.dead_queue("audit")))
    refused = rf"{queue} has the policy .* would overrule .* queues unlimit {queue}\)"
    try:
        with pytest.raises(DeliveryError, match=refused):
            change_queues(quorum, [queue])
        with pytest.raises(DeliveryError, match=refused):
            move_to_quorum(config)
        with connect(config.broker) as connection:
            assert [depth(connection, aside(each.name)) for each in config.topology().queues] == [
                None
            ] * len(config.topology().queues)
    finally:
        assert unlimit_queue(config, queue)
    wait_for(lambda: not policy_of(exchange, queue), "the limit is gone")
    assert [move.queue for move in change_queues(quorum, [queue])] == [queue]


def test_a_password_that_is_kept_elsewhere_is_not_made_up(guarded: Guarded) -> None:
    """Nor is a role that there is not; nothing is changed then."""
    kept = ("--passwords", str(guarded.folder))
    file_for(guarded.folder, "watch").rename(guarded.folder / "elsewhere")
    refused = guarded.exchange.run("access", "rotate", "watch", *kept)
    assert refused.returncode == 1
    assert "change it where it is kept" in refused.stderr
    unknown = guarded.exchange.run("access", "rotate", "guest", *kept)
    assert "there is no role 'guest'; there are: declare, relay" in unknown.stderr
    (guarded.folder / "elsewhere").rename(file_for(guarded.folder, "watch"))
    assert guarded.differences() == []


def test_who_may_not_rotate_changes_no_file(guarded: Guarded) -> None:
    """The service would be refused at its next start. Nor does one who finds no broker."""
    folder, kept = guarded.folder, ("--passwords", str(guarded.folder))
    before = file_for(folder, "catalog").read_text()
    plugin = guarded.environ("relay")["DELIVERY_MANAGEMENT_URL"].removeprefix("http://")
    for environ, said in (
        (guarded.environ("relay"), "answers 401 to this login"),
        ({"DELIVERY_MANAGEMENT_URL": "http://127.0.0.1:9"}, "no management API at 127.0.0.1:9: "),
    ):
        given = {"DELIVERY_AMQP_URL": guarded.exchange.config.broker.url, **environ}
        refused = guarded.exchange.run("access", "rotate", "catalog", *kept, **given)
        assert (refused.returncode, said in refused.stderr) == (1, True), refused.stderr
        assert file_for(folder, "catalog").read_text() == before
    # It is shown its own connections, and no other's: none was closed.
    ended = guarded.exchange.run("access", "disconnect", "relay", **guarded.environ("operator"))
    assert (ended.returncode, ended.stdout) == (1, ""), ended
    assert "needs an administrator" in ended.stderr
    asked = guarded.exchange.run("cluster", "check", **guarded.environ("relay"))
    assert f"Unauthorized (the management API at {plugin}, to user " in asked.stderr
    dead = guarded.exchange.run("dead", "groups", **guarded.environ("relay"))
    assert "refused for user" in dead.stderr
    assert "create it" not in dead.stderr  # it is there


def test_two_who_rotate_at_once_leave_one_password(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file would have one's, and the broker the other's."""
    management, second = guarded.management, threading.Event()
    apply = rotation.apply

    def slow(*arguments: Any) -> None:
        if not second.is_set():
            second.set()
            other.start()
            other.join(1.0)  # it has overtaken by then, unless it waits
        apply(*arguments)

    monkeypatch.setattr(rotation, "apply", slow)
    about = (management, "/", guarded.users["audit"], guarded.folder)
    other = threading.Thread(target=rotation.rotate, args=about)
    rotation.rotate(*about)
    other.join(20)

    assert guarded.differences() == []


def test_who_rotates_waits_for_who_applies(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the old password, and would put it on the broker after the new one."""
    about = (guarded.management, "/", guarded.users["audit"], guarded.folder)
    other = threading.Thread(target=rotation.rotate, args=about)

    def slow(*arguments: Any) -> None:
        other.start()
        other.join(1.0)  # it has overtaken by then, unless it waits
        apply(*arguments)

    apply = users.apply
    monkeypatch.setattr(users, "apply", slow)
    for name, value in guarded.exchange.environ.items():
        monkeypatch.setenv(name, value)
    command = ("access", "apply", "--passwords", str(guarded.folder))
    cli.app([*guarded.exchange.options, *command], standalone_mode=False)
    other.join(20)

    assert guarded.differences() == []
