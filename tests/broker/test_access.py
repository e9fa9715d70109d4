"""Each role can do its work, and the broker refuses it everything else."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker
from support.exchange import delivery, exchange_on
from support.guarded import Guarded, guarded_exchange
from support.waiting import wait_for

from delivery.access import accesses
from delivery.broker import Broker
from delivery.confirms import Outcome
from delivery.connection import AccessRefused, connect
from delivery.parking import parked
from delivery.passwords import file_for
from delivery.pipeline import ConfirmedChannel
from delivery.postgres_relay import run_postgres_relay
from delivery.publisher import Message
from delivery.retention import oldest_dead
from delivery.routes import routes_of
from delivery.services import prepare
from delivery.stopping import Stop
from delivery.topology import Exchange, Queue, Topology
from delivery.unrouted import parking_of
from delivery.users import remove
from delivery.verify import verify
from delivery.vitals import healths

ROLES = ("declare", "relay", "catalog", "audit", "operator", "reconcile", "watch")
EVENTS, DEFAULT = "events", "amq.default"
QUEUES = tuple(
    f"{recipient}{suffix}"
    for recipient in ("catalog", "audit")
    for suffix in ("", ".retry.1", ".retry.2", ".dead")
)
RETRY = tuple(queue for queue in QUEUES if ".retry." in queue)
LOCKS = ("catalog.dead.desk", "audit.dead.desk")
PARKED = ("events.unrouted", "events.unrouted.desk")
# By hand, and not from the code: what each role may (names without their namespace).
MAY: dict[str, dict[str, set[str]]] = {
    "declare": {
        "configure": {EVENTS, *QUEUES},
        "write": {DEFAULT, "catalog", "audit"},
        "read": {EVENTS, *RETRY},
    },
    "relay": {"write": {EVENTS}},
    "catalog": {
        "configure": {"catalog.dead.desk"},
        "write": {DEFAULT, "catalog.retry.1", "catalog.retry.2", "catalog.dead"},
        "read": {"catalog", "catalog.dead"},
    },
    "audit": {
        "configure": {"audit.dead.desk"},
        "write": {DEFAULT, "audit.retry.1", "audit.retry.2", "audit.dead"},
        "read": {"audit", "audit.dead"},
    },
    "operator": {
        "configure": {*LOCKS, "events.unrouted.desk"},
        "write": {DEFAULT, EVENTS, *QUEUES},
        "read": {"catalog.dead", "audit.dead", "events.unrouted"},
    },
    "reconcile": {
        "configure": {*LOCKS, "events.unrouted.desk"},
        "write": {DEFAULT},
        "read": {"catalog.dead", "audit.dead", "events.unrouted"},
    },
    "watch": {"write": {*QUEUES, *LOCKS, *PARKED}},
}


@pytest.fixture
def guarded(breakable_broker: Broker, tmp_path: Path, namespace: str) -> Iterator[Guarded]:
    with guarded_exchange(breakable_broker, tmp_path, namespace) as opened:
        yield opened


@pytest.fixture
def declared(guarded: Guarded) -> Guarded:
    prepare(guarded.config("declare"), "declare")
    return guarded


@pytest.fixture(scope="module")
def at_rest(
    breakable_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    """One for all the tests that only ask for rights."""
    folder, namespace = tmp_path_factory.mktemp("rights"), f"t{uuid.uuid4().hex[:10]}"
    with guarded_exchange(breakable_broker, folder, namespace) as opened:
        prepare(opened.config("declare"), "declare")
        yield opened


# -- what each must be able to do


def test_the_whole_exchange_works_with_a_user_for_each_process(declared: Guarded) -> None:
    """Publish, relay, receive, retry, die, replay, lose, reconcile, watch: the sum is right."""
    exchange = declared.exchange
    declared.start("relay", "catalog", "audit")
    with exchange.refusing("m-1"):  # two retries, then dead
        (event_id,) = exchange.accept("m-1")
        exchange.await_dead("catalog")
    replay = ("dead", "replay", "catalog", "--id", event_id, "--reason", "healed")
    replayed = exchange.run(*replay, **declared.environ("operator"))
    assert (replayed.returncode, replayed.stdout) == (0, f"{event_id}  applied\n"), replayed

    exchange.cast.stop("audit")
    (lost,) = exchange.accept("m-2")
    exchange.await_receipt("catalog", lost)
    assert exchange.purge("audit") == 1  # the broker loses it
    declared.start("audit")
    sent = exchange.run(
        *("reconcile", "audit", "--grace", "0", "--apply"), **declared.environ("reconcile")
    )
    assert (sent.returncode, sent.stdout) == (0, f"{lost}\n"), sent
    exchange.await_receipt("audit", lost)

    shown = exchange.run("status", "--json", **declared.environ("watch"))
    assert "error" not in json.loads(shown.stdout)
    assert json.loads(shown.stdout)["parked"] is None  # it may look, and there is none
    assert json.loads(shown.stdout)["listeners"] == {"shown": [], "more": 0}
    assert [each["dead"] for each in json.loads(shown.stdout)["recipients"]] == [0, 0]
    ledger = exchange.run("ledger", **declared.environ("operator"))
    assert ledger.returncode == 0, ledger.stdout + ledger.stderr
    exchange.assert_all_applied()


def test_the_rest_of_each_roles_work(declared: Guarded) -> None:
    """A receiver looks for its oldest dead message; an operator looks, drops and reads the plan."""
    exchange = declared.exchange
    with connect(declared.config("catalog").broker) as connection:
        assert oldest_dead(connection, exchange.config.route("catalog")) is None
    declared.start("relay", "catalog", "audit")
    with exchange.refusing("m-1"):
        (event_id,) = exchange.accept("m-1")
        exchange.await_dead("catalog")
    operator = declared.environ("operator")
    for words in (("dead", "list", "catalog"), ("dead", "plan", "catalog"), ("dead", "groups")):
        assert exchange.run(*words, **operator).returncode == 0
    assert exchange.run("status", **operator).returncode == 0
    dropped = exchange.run(
        *("dead", "drop", "catalog", "--id", event_id, "--reason", "a test's"), **operator
    )
    assert dropped.stdout == f"{event_id}  dropped\n"
    exchange.start("api", **declared.environ("watch"))
    with httpx.Client(trust_env=False) as client:
        answer = client.get(f"{exchange.url}/status").json()
    assert answer


def test_the_operator_looks_at_what_is_parked_and_sends_it_again(declared: Guarded) -> None:
    """With no more than that: not to make the place, to fill it, or to take it away."""
    exchange, operator = declared.exchange, declared.environ("operator")
    place = parking_of(exchange.config.exchange).queue
    unrouted = partial(exchange.run, "unrouted")
    refused = unrouted("declare", **operator)
    assert (refused.returncode, "ACCESS_REFUSED" in refused.stderr) == (1, True), refused
    assert unrouted("declare").returncode == 0
    bindings = exchange.config.topology().bindings
    try:
        with connect(exchange.config.broker) as connection:
            channel = connection.channel()
            for each in bindings:
                channel.queue_unbind(each.queue, each.exchange, each.key)
            declared.start("relay")  # it may publish to what now has an alternate
            (event_id,) = exchange.accept("m-1")
            exchange.await_sent()
            assert [_ids(unrouted("list", "--json", **operator))] == [[event_id]]
            reconcile = ("reconcile", "catalog", "--grace", "0", "--json")
            told = exchange.run(*reconcile, **declared.environ("reconcile"))
            assert (told.returncode, told.stderr) == (0, ""), told
            assert (json.loads(told.stdout)["missing"], json.loads(told.stdout)["parked"]) == (
                [],
                1,
            )
            # Rights from before there was a parking queue: not only that access is refused.
            declared.allow("reconcile", configure="[.]dead[.]desk$", read="[.]dead$")
            refused = exchange.run(*reconcile, **declared.environ("reconcile"))
            assert (refused.returncode, refused.stdout) == (1, ""), refused
            assert f"this user may not look into {place!r}" in refused.stderr
            assert refused.stderr.rstrip().endswith("delivery access apply")
            # A binding is nothing that a user may ask for: the copy is parked once more.
            again = ("replay", "--all", "--reason", "too early", "--json")
            assert _ids(unrouted(*again, **operator)) == [event_id]
            for each in bindings:
                channel.queue_bind(each.queue, each.exchange, each.key)
        sent = unrouted("replay", "--all", "--reason", "bound again", "--json", **operator)
        assert _ids(sent) == [event_id]
        assert _ids(unrouted("list", "--json", **operator)) == []
        assert exchange.place("catalog").ready == exchange.place("audit").ready == 1
        shown = json.loads(exchange.run("status", "--json", **operator).stdout)["parked"]
        assert (shown["ready"], shown["why"]) == (0, "")
        acts: dict[str, Callable[[BlockingChannel], object]] = {
            "configure": lambda channel: channel.queue_delete(place),
            "write": lambda channel: channel.queue_bind(place, exchange.config.exchange, "#"),
        }
        for right, act in acts.items():
            with connect(declared.config("operator").broker) as connection:
                said = answer_to(partial(act, connection.channel()))
            assert re.search(refusal(right, "queue", place, declared.users["operator"].user), said)
        with connect(declared.config("operator").broker) as connection:
            channel = connection.channel()  # the exchange in front of it has the same name
            channel.queue_bind(exchange.dead_queue("audit"), place)
        for role in ("relay", "catalog", "watch"):
            looked = unrouted("list", **declared.environ(role))
            assert (looked.returncode, "ACCESS_REFUSED" in looked.stderr) == (1, True), looked
    finally:
        declared.management.delete(f"/api/policies/%2F/{place}")
        exchange.delete_queue(place)
        with connect(exchange.config.broker) as connection:
            connection.channel().exchange_delete(place)


def _ids(ended: subprocess.CompletedProcess[str]) -> list[str]:
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return [each["key"] for each in json.loads(ended.stdout)]


def test_the_one_user_of_a_sandbox_still_declares_for_itself(
    broker: Broker, tmp_path: Path, namespace: str
) -> None:
    """Nothing declared, no users: a relay that may declare does so."""
    with exchange_on(broker, tmp_path, namespace, declared=False) as exchange:
        exchange.start("relay", "catalog", "audit")
        (event_id,) = exchange.accept("m-1")
        exchange.await_receipt("audit", event_id)


def test_a_relay_on_postgres_needs_no_more_than_any_other(declared: Guarded, database: str) -> None:
    """It may not declare either, and finds that all it uses is there."""
    stop, turned = Stop(), []

    def beat() -> None:
        turned.append(True)
        stop.request()

    late = threading.Timer(20, stop.request)
    late.start()
    run_postgres_relay(declared.config("relay"), database, stop, beat=beat)
    late.cancel()
    assert turned, "refused again and again"


# -- what each must not be able to do


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_exactly_its_rights(at_rest: Guarded, role: str) -> None:
    """Every right on every name is tried on the broker, and each refusal is the broker's own."""
    namespace = at_rest.exchange.config.namespace
    user, may = at_rest.users[role].user, MAY[role]
    wrong = []
    with connect(at_rest.config(role).broker) as connection:
        acts = Acts(connection, at_rest.exchange.config.topology(), namespace)
        for short in (EVENTS, DEFAULT, *QUEUES, *LOCKS, *PARKED, "somebody-elses"):
            name = short if short == DEFAULT else f"{namespace}.{short}"
            kind = "exchange" if short in (EVENTS, DEFAULT) else "queue"
            for right, act in acts.of(kind).items():
                if short == DEFAULT and right != "write":
                    continue  # nobody can: the broker keeps it
                answer = answer_to(partial(act, name))
                if answer == "not asked":
                    continue
                refused = refusal(right, kind, name, user)
                if (re.search(refused, answer) is None) != (short in may.get(right, ())):
                    wrong.append((right, short, answer))
    assert wrong == []


def test_who_may_not_publish_is_told_when_it_starts(at_rest: Guarded) -> None:
    """A right is looked at before any message needs it; who has it hears nothing."""
    config = at_rest.exchange.config
    for role, exchange in (("watch", config.exchange), ("watch", ""), ("relay", "")):
        with (
            connect(at_rest.config(role).broker) as connection,
            pytest.raises(ChannelClosedByBroker, match="ACCESS_REFUSED"),
        ):
            verify(connection, Topology(), publishes_to=exchange)
    for role, exchange in (("relay", config.exchange), ("catalog", ""), ("declare", "")):
        with connect(at_rest.config(role).broker) as connection:
            verify(connection, Topology(), publishes_to=exchange)


def test_who_may_not_look_into_the_parking_queue_is_told_so(
    at_rest: Guarded, breakable_broker: Broker
) -> None:
    """Neither 0 nor "there is none": RabbitMQ 4.3 does not say which. 3.10 lets everybody look."""
    place = parking_of(at_rest.exchange.config.exchange)
    with connect(at_rest.config("watch").broker) as connection:
        assert parked(connection, place) is None
    with connect(at_rest.config("relay").broker) as connection:
        found = parked(connection, place)
    if breakable_broker.version.startswith("3.10."):
        assert found is None
    else:
        assert found is not None
        assert (found.ready, found.why) == (None, "this user may not look into it")


def refusal(right: str, kind: str, name: str, user: str) -> str:
    """The broker's words; RabbitMQ 3.10 does not say which kind of access."""
    return (
        rf"^403 ACCESS_REFUSED - ({right} )?access to {kind} '{re.escape(name)}'"
        rf" in vhost '/' refused for user '{re.escape(user)}'$"
    )


def answer_to(act: Callable[[], object]) -> str:
    """Do it; return the broker's refusal, or "done"."""
    try:
        return str(act() or "done")
    except ChannelClosedByBroker as answer:
        return f"{answer.reply_code} {answer.reply_text}"


@dataclass
class Acts:
    """One act for each right on each kind of thing, which nothing but that right decides."""

    connection: BlockingConnection
    topology: Topology
    namespace: str

    def of(self, kind: str) -> dict[str, Callable[[str], object]]:
        if kind == "exchange":
            return {
                "configure": self.declare,
                "write": self.publish,
                "read": self.bind_from,
            }
        return {"configure": self.declare, "write": self.bind_to, "read": self.get}

    def declare(self, name: str) -> None:
        """An equal declare changes nothing, and needs the right all the same."""
        channel = self.connection.channel()
        for item in self.topology.exchanges + self.topology.queues:
            if item.name == name:
                item.declare(channel)
                return
        channel.queue_declare(name, exclusive=True)  # a desk's lock
        channel.queue_delete(name)

    def publish(self, name: str) -> None:
        channel = self.connection.channel()
        channel.confirm_delivery()
        channel.basic_publish(name, "no.such.key", b"forged", BasicProperties())

    def bind_from(self, name: str) -> str:
        """With a queue that the user may write to: the broker looks at the queue first."""
        for short in ("catalog", "audit.dead", "catalog.dead"):
            queue, channel = f"{self.namespace}.{short}", self.connection.channel()
            try:
                channel.queue_bind(queue, name, "no.such.key")
            except ChannelClosedByBroker as answer:
                if "to queue" in answer.reply_text:
                    continue
                raise
            channel.queue_unbind(queue, name, "no.such.key")
            return "done"
        return "not asked"

    def bind_to(self, name: str) -> None:
        channel, exchange = self.connection.channel(), f"{self.namespace}.events"
        channel.queue_bind(name, exchange, "no.such.key")
        channel.queue_unbind(name, exchange, "no.such.key")

    def get(self, name: str) -> None:
        self.connection.channel().basic_get(name)


# -- the plan on the broker, and what differs from it


def test_a_right_too_many_or_too_few_is_found(declared: Guarded) -> None:
    """Rights, tags, a password, a user that is not there."""
    assert declared.differences() == []
    relay, audit = declared.users["relay"], declared.users["audit"]
    declared.allow("relay", read=".*")
    assert declared.differences() == [f"{relay.user}: read is .*, planned ^$"]
    declared.allow("relay", write="^$")
    planned = relay.patterns["write"]
    assert declared.differences() == [f"{relay.user}: write is ^$, planned {planned}"]
    declared.allow("relay")
    user = f"/api/users/{audit.user}"
    declared.management.put(user, {"password": "another", "tags": "administrator"})
    assert declared.differences() == [
        f"{audit.user}: tags are ['administrator'], planned []",
        f"{audit.user}: another password",
    ]
    declared.management.delete(user)
    assert declared.differences() == [f"{audit.user}: no such user"]


def test_the_commands_apply_and_check(guarded: Guarded) -> None:
    """From nothing to everybody's password in a file; exit code 1 as long as something differs."""
    remove(guarded.management, guarded.users.values())
    kept = ("--passwords", str(guarded.folder / "new"))
    missing = guarded.exchange.run("access", "check", *kept, "--json")
    assert missing.returncode == 1
    assert len(json.loads(missing.stdout)["differences"]) == len(ROLES)
    unasked = guarded.exchange.run("access", "apply", *kept)
    assert (unasked.returncode, unasked.stdout) == (1, "")
    assert "DELIVERY_AMQP_PASSWORD_DECLARE" in unasked.stderr
    made = guarded.exchange.run("access", "apply", *kept, "--generate")
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("may do its work on 127.0.0.1:") == len(ROLES)
    checked = guarded.exchange.run("access", "check", *kept)
    assert (checked.returncode, checked.stdout) == (
        0,
        "every user has the planned rights, and no other\n",
    )


def test_rights_in_another_virtual_host_are_too_many(declared: Guarded) -> None:
    """A user of one exchange has no business in another."""
    other, relay = declared.exchange.config.namespace, declared.users["relay"].user
    declared.management.put(f"/api/vhosts/{other}", {})
    try:
        rights = {"configure": "", "write": ".*", "read": ""}
        declared.management.put(f"/api/permissions/{other}/{relay}", rights)
        assert declared.differences() == [f"{relay}: rights in '{other}', too"]
    finally:
        declared.management.delete(f"/api/vhosts/{other}")


def test_a_definitions_file_makes_the_same_users(guarded: Guarded) -> None:
    """Imported by RabbitMQ itself; it holds hashes, and the passwords open the door."""
    remove(guarded.management, guarded.users.values())
    ended = guarded.exchange.run("access", "definitions", "--passwords", str(guarded.folder))
    password = file_for(guarded.folder, "relay").read_text().strip()
    assert password not in ended.stdout
    plugin = guarded.exchange.config.management_url
    users = json.loads(ended.stdout)
    answer = httpx.post(f"{plugin}/api/definitions", json=users, trust_env=False)
    assert answer.status_code in (200, 204), answer.text
    assert guarded.differences() == []
    connect(guarded.config("relay").broker).close()


def test_only_an_administrator_makes_users(declared: Guarded) -> None:
    """A service that reaches the plugin is told in one sentence."""
    ended = declared.exchange.run(
        *("access", "apply", "--passwords", str(declared.folder)), **declared.environ("watch")
    )
    assert ended.returncode == 1
    assert re.match("error: the management plugin answers 40[13] to this login", ended.stderr)


def test_the_plan_is_the_same_for_people_and_machines(tmp_path: Path) -> None:
    """It asks no broker, and its patterns match whole names only."""
    plan = delivery("--namespace", "my.shop", "access", "plan", "--json")
    users = {each["role"]: each for each in json.loads(plan.stdout)}
    assert tuple(users) == ROLES
    pattern = users["relay"]["patterns"]["write"]
    assert re.search(pattern, "my.shop.events")
    for other in ("my.shop.events2", "not.my.shop.events", "my-shop.events", "my.shop.eventsmy"):
        assert not re.search(pattern, other)
    said = delivery("--namespace", "my.shop", "access", "plan").stdout
    assert "my.shop.relay\n  configure nothing\n  write     my.shop.events\n" in said


def test_where_a_queue_leads_is_the_declarers_right() -> None:
    """Dead-letter and alternate exchanges are checked when they are declared."""
    topology = Topology(
        (Exchange("in", arguments={"alternate-exchange": "else"}),),
        (Queue("q", {"x-dead-letter-exchange": "over"}),),
    )
    declarer = accesses("n", topology, routes_of("n"))[0]
    assert declarer.write == ("over", "else")
    assert declarer.read == ("q", "in")


# -- no password is shown


def test_no_password_is_in_a_log_an_error_or_what_a_machine_reads(declared: Guarded) -> None:
    """Of the right one, and of a wrong one."""
    exchange, environ = declared.exchange, declared.environ("relay")
    password = Path(environ["DELIVERY_AMQP_PASSWORD_FILE"]).read_text().strip()
    declared.start("relay")
    wrong = {**environ, "DELIVERY_AMQP_PASSWORD_FILE": "", "DELIVERY_AMQP_PASSWORD": "s3cret"}
    exchange.cast.start("audit", ["receive", "audit"], **wrong).await_event("access.refused")
    shown = exchange.cast["relay"].log() + exchange.cast["audit"].log()
    for words in (
        *(("broker", "status", "--json"), ("broker", "up"), ("doctor", "--json")),
        *(("status", "--json"), ("health", "relay", "--json"), ("ledger",)),
    ):
        for each in (environ, wrong):
            ended = exchange.run(*words, **each)
            shown += ended.stdout + ended.stderr
    assert "refuses user" in shown
    assert password not in shown
    assert "s3cret" not in shown


def test_the_doctor_takes_a_service_for_a_service(declared: Guarded) -> None:
    """Its user may not do what the doctor tries; that is no reason to fail."""
    ended = declared.exchange.run("doctor", "--json", **declared.environ("relay"))
    found = {check["name"]: check for check in json.loads(ended.stdout)}["DELIVERY_AMQP_URL"]
    assert found["verdict"] == "ok"
    assert "ACCESS_REFUSED" in found["seen"]


# -- health tells the truth


def health(guarded: Guarded, process: str) -> tuple[str, str]:
    """What `delivery health` reads; "" as long as there is no such process."""
    found = healths(guarded.exchange.config.stores.data, process)
    return (found[0].state.value, found[0].reason) if found else ("", "")


def await_refused(guarded: Guarded, process: str, reason: str) -> None:
    wait_for(lambda: health(guarded, process)[0] == "refused", f"{process} is refused", 60)
    said = health(guarded, process)[1]
    assert re.search(reason, said), said


def start(guarded: Guarded, process: str, **environ: str) -> None:
    words = ["relay"] if process == "relay" else ["receive", process]
    guarded.exchange.cast.start(process, words, **guarded.environ(process) | environ)


def test_a_missing_right_is_named_before_any_message_meets_it(declared: Guarded) -> None:
    """Refused, with the broker's own words; ready as soon as the right is there."""
    missing = {
        "relay": ("write", "write access|access to exchange '.*events'"),
        "catalog": ("write", r"access to exchange 'amq\.default'"),
        "audit": ("read", r"access to queue '.*audit'"),
    }
    for process, (right, words) in missing.items():
        planned = declared.users[process].patterns[right]
        # Only what it is about: the rest is still needed to get so far.
        without = {"audit": "^$", "relay": "^$", "catalog": planned.replace(r"amq\.default|", "")}
        declared.allow(process, **{right: without[process]})
        if process == "audit":
            declared.allow(process, read="^$", write=planned_write_and_queue(declared))
        start(declared, process)
        await_refused(declared, process, words)
    for process in missing:
        declared.allow(process)
        wait_for(lambda: health(declared, process) == ("ready", ""), f"{process} is ready")  # noqa: B023


def planned_write_and_queue(declared: Guarded) -> str:
    """Audit sees its queue, so it gets as far as to read it."""
    queue = declared.exchange.config.route("audit").queue
    return declared.users["audit"].patterns["write"].replace("(", f"({re.escape(queue)}|", 1)


def test_a_wrong_password_and_a_missing_topology_are_told_apart(guarded: Guarded) -> None:
    """Both must be mended by somebody; the reason says what."""
    start(guarded, "relay")
    await_refused(guarded, "relay", r"no exchange .* delivery topology declare")
    start(guarded, "audit", DELIVERY_AMQP_PASSWORD_FILE="", DELIVERY_AMQP_PASSWORD="wrong")
    await_refused(guarded, "audit", r"refuses user '.*\.audit': unknown, or a wrong password")
    done = guarded.exchange.run("topology", "declare", **guarded.environ("declare"))
    assert done.returncode == 0
    wait_for(lambda: health(guarded, "relay") == ("ready", ""), "the relay finds its exchange")
    guarded.exchange.cast.stop("audit")


def test_a_right_that_is_taken_away_is_seen_at_the_next_connection(declared: Guarded) -> None:
    """An open channel may go on for a while; a new one does not get so far."""
    declared.start("relay")
    declared.allow("relay", write="^$")
    user = declared.users["relay"].user
    with pytest.raises(AccessRefused):
        denied(declared)
    close_connections(declared, user)
    await_refused(declared, "relay", "access to exchange")


def denied(declared: Guarded) -> None:
    with ConfirmedChannel(declared.config("relay").broker) as channel:
        exchange = declared.exchange.config.exchange
        answer = channel.send(Message(exchange, "k", BasicProperties(message_id="1"), b""))
        assert answer.outcome is Outcome.UNKNOWN
        assert "ACCESS_REFUSED" in answer.detail
        channel.serve()


def close_connections(guarded: Guarded, user: str) -> None:
    """As an operator does; the plugin hears of a connection some seconds late."""

    def closed() -> bool:
        connections, _ = guarded.management.get("/api/connections")
        own = [each["name"] for each in connections if each.get("user") == user]
        for name in own:
            guarded.management.delete(f"/api/connections/{quote(name, safe='')}")
        return bool(own)

    wait_for(closed, f"a connection of {user} is closed")
