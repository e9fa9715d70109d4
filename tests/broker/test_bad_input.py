"""Bytes of strangers through the real consumer: each ends dead with a reason, or is an event."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings
from pika import BasicProperties
from support.events import event
from support.strange import UGLY, Strange, as_read, raw_tables, strange_messages
from support.world import World

from delivery.codec import ContractError, decode, encode
from delivery.confirms import Answer, Outcome
from delivery.connection import connect
from delivery.contract import Event
from delivery.dead import ERROR, REASON, dead_queue
from delivery.handling import Effect
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import Message, properties_of
from delivery.retry import retry_queue
from delivery.routes import Route
from delivery.services import handler_of
from delivery.strikes import limit_deaths

# More, or others: DELIVERY_FUZZ_CASES=100000 DELIVERY_FUZZ_SEED=7 make test T=tests/broker ARGS=...
SEED = int(os.environ.get("DELIVERY_FUZZ_SEED", "20260131"))
CASES = int(os.environ.get("DELIVERY_FUZZ_CASES", "10000"))
ROUND = 500  # messages that are published, handled and judged together
AGAIN = 20  # of these come redelivered: two commits more for each
DELAYS_MS = (100,)
LONGEST = 5.0  # seconds of work for one message alone
CARRIED = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "message_id"),
    *("timestamp", "type", "app_id", "cluster_id", "priority"),
)


@dataclass
class Expected:
    """What a recipient must do with each message: the contract's word, and a model of its store."""

    route: Route
    receipts: set[str] = field(default_factory=set)
    latest: dict[str, Event] = field(default_factory=dict)

    def end_of(self, message: Strange) -> str:
        try:
            found = decode(message.body)
        except ContractError:
            return "incompatible"
        if as_read(message.properties.get("message_id")) != found.id:
            return "incompatible"
        if found.id in self.receipts:
            return "duplicate"
        known = self.latest.get(found.subject)
        if self.route.recipient == "catalog" and known is not None:
            if known.data.revision == found.data.revision and known.data != found.data:
                return "conflict"
            if known.data.revision >= found.data.revision:
                self.receipts.add(found.id)
                return "stale"
        self.receipts.add(found.id)
        self.latest[found.subject] = found
        return "applied"


def test_whatever_bytes_come_each_message_ends_dead_with_a_reason_or_is_an_event(
    world: World,
) -> None:
    """The consumer lives, nothing is left behind, and a dead copy is the original byte for byte."""
    print(f"seed {SEED}, {CASES} cases")
    world.declare(*DELAYS_MS)
    recipients = Expected(world.catalog), Expected(world.audit)
    ended: Counter[str] = Counter()
    for n, messages in enumerate(drawn(CASES)):
        try:
            ended += judged(world, recipients[n % 2], messages[AGAIN:])
            ended += judged(world, recipients[n % 2 - 1], messages[:AGAIN], redelivered=True)
        except BaseException:
            print(f"round {n} of seed {SEED}; the fewest that fail: {fewest(world, messages)}")
            raise
    print(dict(ended))
    assert ended.total() == CASES
    kinds = {"incompatible", "conflict", "applied", "duplicate", "stale"}
    assert ended.keys() >= kinds or CASES < 10_000


@pytest.mark.parametrize("message", UGLY.values(), ids=UGLY)
def test_one_ugly_message_keeps_nobody_waiting(world: World, message: Strange) -> None:
    """However it is built, it is parked in seconds: heartbeats are not served meanwhile."""
    world.declare(*DELAYS_MS, routes=[world.catalog])
    begun = time.process_time()  # the consumer is in this process; others keep the machine busy
    judged(world, Expected(world.catalog), [message], redelivered=True)
    assert time.process_time() - begun < LONGEST


def drawn(cases: int) -> Iterator[list[Strange]]:
    """Draw the messages of this seed, all different, a round at a time."""
    known: set[str] = set()
    waiting: list[Strange] = []
    for run in count():

        @seed(f"{SEED}-{run}")
        @hypothesis_settings(
            max_examples=150,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(strange_messages())
        def collect(messages: list[Strange]) -> None:
            new = {each.digest: each for each in messages if each.digest not in known}
            known.update(new)
            waiting.extend(new.values())

        collect()
        while len(waiting) >= min(ROUND, cases):
            size = min(ROUND, cases)
            yield waiting[:size]
            del waiting[:size]
            cases -= size
            if not cases:
                return


# -- one round


def judged(
    world: World, recipient: Expected, messages: Sequence[Strange], *, redelivered: bool = False
) -> Counter[str]:
    """Send *messages* and a good event through the consumer; return how many ended how.

    With *redelivered* the broker says so of each, and each is handled alone, under the guard.
    """
    good = event(f"good-{len(recipient.receipts)}")
    sent = [*messages, Strange(encode(good), vars(properties_of(good)))]
    route = recipient.route
    put(world, route, sent)
    if redelivered:
        hand_out_and_take_back(world, route, len(sent))
    ends = [recipient.end_of(message) for message in sent]
    effects = consumed(world, route, len(sent))

    assert effects == [end for end in ends if end in ("applied", "duplicate", "stale")]
    dead = zip(
        [pair for pair in zip(sent, ends, strict=True) if pair[1] in ("incompatible", "conflict")],
        taken(world, dead_queue(route)),
        strict=True,
    )
    for (message, end), (properties, body) in dead:
        assert body == message.body, message
        assert properties.headers[REASON] == end, message
        assert properties.headers[ERROR].strip(), message
        assert (properties.delivery_mode, properties.expiration) == (2, None), message
        for name in CARRIED:
            assert getattr(properties, name) == as_read(message.properties.get(name)), message
    assert [world.ready(queue) for queue in (route.queue, retry_queue(route, 1))] == [0, 0]
    return Counter(ends[:-1])


def put(world: World, route: Route, messages: Sequence[Strange]) -> None:
    """Publish all at once, straight into the queue, and see that the broker took every one."""
    with raw_tables(), ConfirmedChannel(world.settings) as channel:
        answers = channel.send_all(
            [Message("", route.queue, BasicProperties(**m.properties), m.body) for m in messages]
        )
    assert answers == [Answer(Outcome.CONFIRMED)] * len(messages)


def hand_out_and_take_back(world: World, route: Route, sent: int) -> None:
    with connect(world.settings) as connection:
        channel = connection.channel()
        got: list[bytes] = []
        channel.basic_consume(route.queue, lambda *delivered: got.append(delivered[-1]))
        while len(got) < sent:
            connection.process_data_events(time_limit=1)
        channel.close()


def consumed(world: World, route: Route, sent: int) -> list[str]:
    """Let the recipient, as the package composes it, handle *sent*; return its effects."""
    effects: list[str] = []
    handle = handler_of(route)

    def noting(event_: Event, tx: Any) -> Effect:
        effect = handle(event_, tx)
        effects.append(effect.value)
        return effect

    world.consume(
        route,
        noting,
        delays_ms=DELAYS_MS,
        guard=limit_deaths(),
        batch=50,
        prefetch=200,
        until=lambda seen: len(effects) + len(seen.failures) >= sent,
    )
    return effects


def taken(world: World, queue: str) -> list[tuple[BasicProperties, bytes]]:
    """Take every message out of *queue*, in order."""
    ready = world.ready(queue)
    found: list[tuple[BasicProperties, bytes]] = []
    if ready:
        for _, properties, body in world.channel.consume(queue, auto_ack=True):
            found.append((properties, body))
            if len(found) == ready:
                break
        world.channel.cancel()
    return found


# -- when a round fails


def fewest(world: World, messages: Sequence[Strange]) -> Sequence[Strange]:
    """Halve *messages* for as long as one of the halves fails alone, each in a place of its own."""
    while len(messages) > 1:
        middle = len(messages) // 2
        halves = messages[:middle], messages[middle:]
        failing = next((half for half in halves if fails(world, half)), None)
        if failing is None:
            break
        messages = failing
    return messages


def fails(world: World, messages: Sequence[Strange]) -> bool:
    name = hashlib.sha256("".join(each.digest for each in messages).encode()).hexdigest()[:8]
    (folder := world.folder / name).mkdir(exist_ok=True)
    with connect(world.settings) as connection:
        alone = World(connection, world.settings, f"{world.namespace}.{name}", folder)
        alone.declare(*DELAYS_MS)
        try:
            for route in (alone.catalog, alone.audit):
                judged(alone, Expected(route), messages, redelivered=route is alone.audit)
        except Exception:  # noqa: BLE001 - whatever it is, it is why the round failed
            return True
        else:
            return False
        finally:
            alone.remove()
