"""The real exchange and a small model of it, driven side by side by hypothesis."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pika.adapters.blocking_connection import BlockingChannel

from delivery.books import accounts
from delivery.codec import decode
from delivery.config import Config
from delivery.confirms import Outcome
from delivery.connection import BrokerSettings, connect
from delivery.consumer import consume
from delivery.contract import Event, PublishMaterial
from delivery.dead import dead_queue, park
from delivery.desk import Desk
from delivery.errors import DeliveryError, PermanentError
from delivery.handling import Delivery, Effect, Handler
from delivery.inbox import prune
from delivery.materials import accept
from delivery.outbox import SqliteOutbox
from delivery.pipeline import ConfirmedChannel
from delivery.plan import Prospect
from delivery.points import arm
from delivery.publisher import properties_of
from delivery.relay import relay_once
from delivery.retry import retry_later, retry_queue
from delivery.routes import RECIPIENTS, Route
from delivery.services import handler_of, prepare
from delivery.stopping import Stop
from delivery.stores import PUBLISHER, Stores
from delivery.strikes import KillerMessage, limit_deaths
from support.exchange import remove
from support.model import Copy, Fact, Model
from support.waiting import wait_for

__all__ = ["OURS", "Code", "ExchangeMachine"]

RETRIES_MS = (20,)
DEATHS = 3
PUBLISH = PublishMaterial(title="Title", slug="a-title", author="An Author")
NOTHING_COMES = 3.0  # seconds after which a delivery that is due is called lost

T = TypeVar("T")
recipients = st.sampled_from(RECIPIENTS)
few = st.sampled_from([1, 1, 2, 3])
any_index = st.integers(0, 9)


@dataclass(frozen=True)
class Code:
    """The code under test; a mutant replaces a part of it."""

    handler_of: Callable[[Route], Handler] = handler_of
    relay_once: Callable[..., Counter[Outcome]] = relay_once
    consuming: Callable[[BlockingChannel], Any] = lambda channel: channel
    answers: bool = True  # False: judge by stores and queues only, not by what handlers answer


OURS = Code()


class Crash(BaseException):
    """The end of a process, at a named point; nothing in the package catches it."""


class ExchangeMachine(RuleBasedStateMachine):
    """Outbox and relay, a real broker, catalog and audit with their stores; and a model of all.

    No rule has a precondition: how many messages a batch found is not the same in every run, and
    hypothesis must draw the same whatever it was. What can't be done is passed over.
    """

    def __init__(
        self, settings: BrokerSettings, folder: Path, code: Code, seen: Counter[str]
    ) -> None:
        super().__init__()
        name = f"s{uuid.uuid4().hex[:10]}"
        self.code = code
        self.seen = seen  # how often what happened, in all histories of a run
        self.config = Config(
            broker=settings,
            stores=Stores(folder / name),
            namespace=name,
            retries_ms=RETRIES_MS,
        )
        self.clean = True
        self.facts: list[Fact] = []
        self.pending: list[Fact] = []
        self.sent: set[Fact] = set()
        self.models = {
            each: Model(keeps_latest=each == "catalog", attempts=len(RETRIES_MS) + 1)
            for each in RECIPIENTS
        }
        self.crashes: Counter[str] = Counter()

    @initialize()
    def open(self) -> None:
        """Begin with three messages in each queue: most histories are short."""
        prepare(self.config, "test")
        self.connection = connect(self.config.named("test"))
        self.channel = self.connection.channel()
        self.copies = ConfirmedChannel(self.config.named("copies"))
        self.stores = {each: self.config.stores.open(each) for each in (PUBLISHER, *RECIPIENTS)}
        self.publish(["m-1", "m-1", "m-2"])
        self.relay(limit=3, crash="")

    # -- the publisher and its relay

    @rule(materials=st.lists(st.sampled_from(["m-1", "m-1", "m-2"]), min_size=1, max_size=3))
    def publish(self, materials: list[str]) -> None:
        for material in materials if len(self.pending) < 4 else ():
            answer, _ = accept(self.stores[PUBLISHER], material, PUBLISH, key=uuid.uuid4().hex)
            fact = Fact(answer.event_id, material, answer.revision)
            self.facts.append(fact)
            self.pending.append(fact)

    @rule(
        limit=st.integers(1, 6), crash=st.sampled_from(["", "", "relay.confirmed", "relay.marked"])
    )
    def relay(self, limit: int, crash: str) -> None:
        """A crash between confirm and mark leaves the rows pending: they are sent again."""
        if not self.pending:
            return
        self.seen[crash or "relayed"] += 1
        with self.broken(), ending_at(crash):
            outbox = SqliteOutbox(self.stores[PUBLISHER], self.config.exchange)
            self.code.relay_once(outbox, self.copies, limit=limit)
        for fact in self.pending[:limit]:
            self.sent.add(fact)
            for model in self.models.values():
                model.queue.append(Copy(fact))
        if crash != "relay.confirmed":
            del self.pending[:limit]

    # -- what a broker, or a stranger, may do to the messages

    @rule(recipient=recipients, pick=any_index)
    def duplicate(self, recipient: str, pick: int) -> None:
        """The same message again; not of an event whose receipt was pruned (that has an age)."""
        forgotten = self.models[recipient].forgotten
        facts = [f for f in self.facts if f in self.sent and f.event_id not in forgotten]
        if not facts:
            return
        fact = facts[pick % len(facts)]
        query = "SELECT body FROM outbox WHERE event_id = ?"
        (body,) = self.stores[PUBLISHER].execute(query, (fact.event_id,)).fetchone()
        queue = self.config.route(recipient).queue
        self.copies.move(body, properties_of(decode(body)), to_queue=queue)
        self.models[recipient].queue.append(Copy(fact))

    @rule(pick=any_index)
    def reorder(self, pick: int) -> None:
        """The first two messages go to the end, the second one first."""
        if not self.busy(2):
            return
        recipient = chosen(self.busy(2), pick)
        model, queue = self.models[recipient], self.config.route(recipient).queue
        self.seen["reorder"] += 1
        taken = [self.channel.basic_get(queue) for _ in range(2)]
        for method, properties, body in reversed(taken):
            self.copies.move(body or b"", properties, to_queue=queue)
            self.channel.basic_ack(method.delivery_tag)
        model.queue = [*model.queue[2:], model.queue[1], model.queue[0]]

    # -- a recipient

    @rule(pick=any_index, count=few, batch=few)
    def deliver(self, pick: int, count: int, batch: int) -> None:
        """So many one by one, or all in batches (a batch takes what has arrived)."""
        if self.busy():
            recipient = chosen(self.busy(), pick)
            there = len(self.models[recipient].queue)
            self.handle(recipient, there if batch > 1 else min(count, there), batch=batch)

    @rule(
        pick=any_index,
        batch=few,
        point=st.sampled_from(["consumer.applied", "consumer.committed", "consumer.settled"]),
    )
    def crash(self, pick: int, batch: int, point: str) -> None:
        """The process dies with messages in its hands: before the commit, or after it."""
        if self.busy():
            self.handle(chosen(self.busy(), pick), 1, batch=batch, crash=point)

    @rule(
        pick=any_index,
        error=st.sampled_from([PermanentError, RuntimeError]),
        crash=st.sampled_from([False, False, True]),
    )
    def fail(self, pick: int, error: type[Exception], crash: bool) -> None:
        """The handler does its work and fails: retried or dead; or a crash after the copy."""
        if not self.busy():
            return
        recipient = chosen(self.busy(), pick)
        last = self.models[recipient].queue[0].attempt > len(RETRIES_MS)
        point = "park.copied" if last or error is PermanentError else "retry.copied"
        self.handle(recipient, 1, error=error, crash=point if crash else "")

    # -- the operator

    @rule(pick=any_index, decision=st.sampled_from(["replay", "replay", "drop"]))
    def decide(self, pick: int, decision: str) -> None:
        if not self.dead():
            return
        recipient, fact = chosen(self.dead(), pick)
        with Desk(self.config, recipient) as desk:
            if decision == "replay":
                self.replay(desk, self.models[recipient], fact)
            else:
                desk.drop([fact.event_id], reason="given up", operator="test")
                self.models[recipient].drop(fact.event_id)
                self.seen["drop"] += 1

    def replay(self, desk: Desk, model: Model, fact: Fact) -> None:
        """Whoever forgets --force where a receipt may have been pruned is refused."""
        assert fact.event_id not in model.forgotten, "pruned although it was dead"
        how: Any = {"reason": "healed", "operator": "test", "seconds": 0}
        found = {each.message.key: each.prospect for each in desk.plan()}[fact.event_id]
        assert (found is Prospect.DUPLICATE) == (fact.event_id in model.receipts)
        unsure = found is Prospect.UNSURE
        self.seen["forced replay" if unsure else "replay"] += 1
        if unsure:
            with pytest.raises(DeliveryError, match="force"):
                desk.replay([fact.event_id], **how)
        desk.replay([fact.event_id], force=unsure, **how)
        model.queue += [Copy(fact) for _ in model.take_dead(fact.event_id)]

    @rule(recipient=recipients)
    def prune(self, recipient: str) -> None:
        """When no copy is on its way: receipts must be older than any of these can be."""
        model, store = self.models[recipient], self.stores[recipient]
        if any(fact in self.sent for fact in self.pending):
            return
        self.handle(recipient, len(model.queue), batch=4)
        with Desk(self.config, recipient) as desk:
            oldest = min((each.sent_at for each in desk.browse()), default=None)
        prune(store, recipient, before=time.time(), oldest_dead=oldest)
        gone = model.receipts.keys() - {row[0] for row in store.execute(RECEIPTS)}
        assert not gone & {copy.fact.event_id for copy in model.dead}
        assert model.dead or gone == model.receipts.keys()
        self.seen["pruned"] += len(gone)
        model.forgotten |= gone
        for event_id in gone:
            del model.receipts[event_id]

    def busy(self, least: int = 1) -> list[str]:
        """The recipients with so many messages in their queue."""
        return [name for name, model in self.models.items() if len(model.queue) >= least]

    def dead(self) -> list[tuple[str, Fact]]:
        return [(name, copy.fact) for name, model in self.models.items() for copy in model.dead]

    # -- what holds after every step

    @invariant()
    def the_stores_hold_what_the_model_holds(self) -> None:
        if not self.clean or not hasattr(self, "stores"):
            return
        with self.broken():
            audited = Counter(row[0] for row in self.stores["audit"].execute(AUDITED))
            assert max(audited.values(), default=1) == 1, "an effect twice"
            assert audited == self.models["audit"].effects, "audit"
            cards = dict(
                self.stores["catalog"].execute("SELECT material_id, revision FROM catalog")
            )
            assert cards == self.models["catalog"].card, "catalog"
            for recipient, model in self.models.items():
                rows = self.stores[recipient].execute(RECEIPTS).fetchall()
                assert {row[0]: row[1:] for row in rows} == model.receipts, f"{recipient}'s inbox"

    @invariant()
    def the_queues_hold_what_the_model_holds(self) -> None:
        if not self.clean or not hasattr(self, "stores"):
            return
        with self.broken():
            self.copies.serve()
            for recipient, model in self.models.items():
                route = self.config.route(recipient)
                self.await_ready(route.queue, len(model.queue))
                self.await_ready(dead_queue(route), len(model.dead))

    def teardown(self) -> None:
        """Bring everything home, and let the ledger judge."""
        try:
            if self.clean and hasattr(self, "stores"):
                self.drain()
                self.judge()
        finally:
            if hasattr(self, "stores"):
                for store in self.stores.values():
                    store.close()
                self.copies.close()
                self.connection.close()
            remove(self.config)

    def drain(self) -> None:
        while self.pending:
            self.relay(limit=100, crash="")
        for recipient, model in self.models.items():
            self.handle(recipient, len(model.queue), batch=10)
        self.the_stores_hold_what_the_model_holds()
        self.the_queues_hold_what_the_model_holds()

    def judge(self) -> None:
        accepted = {fact.event_id for fact in self.facts}
        self.seen["accepted"] += len(accepted)
        for found in accounts(self.config, self.connection):
            model = self.models[found.recipient]
            kinds = Counter(effect for effect, _ in model.receipts.values())
            dead = {copy.fact.event_id for copy in model.dead} - model.receipts.keys()
            lost = accepted - model.receipts.keys() - dead - model.forgotten
            assert not lost, lost
            assert found.balanced, found
            assert (found.accepted, found.applied) == (len(accepted), kinds["applied"]), found
            assert (found.stale, found.dropped) == (kinds["stale"], kinds["dropped"]), found
            assert (found.dead, found.forgotten) == (len(dead), len(model.forgotten)), found
            assert found.pending == found.ready == found.retry == found.copies == 0, found
        self.judge_catalog()

    def judge_catalog(self) -> None:
        """The catalog shows the highest revision that was accepted and neither died nor dropped."""
        model = self.models["catalog"]
        highest: dict[str, int] = {}
        for fact in self.facts:
            if model.settled(fact.event_id) and fact.event_id not in model.given_up:
                highest[fact.material] = max(fact.revision, highest.get(fact.material, 0))
        rows = self.stores["catalog"].execute("SELECT material_id, revision FROM catalog")
        assert dict(rows.fetchall()) == highest

    # -- how a recipient is run

    def handle(
        self,
        recipient: str,
        count: int,
        *,
        batch: int = 1,
        error: type[Exception] | None = None,
        crash: str = "",
    ) -> None:
        """Let a new process of the recipient settle *count* deliveries, and the model the same."""
        if not count:
            return
        self.seen[crash or "handled"] += 1
        with self.broken():
            results = self.consumed(recipient, count, batch, error, crash)
            self.follow(recipient, results, error, crash)
            model = self.models[recipient]
            assert crash or len(results) >= count, f"{count - len(results)} did not come"
            route = self.config.route(recipient)
            self.await_ready(retry_queue(route, 1), 0)
            self.await_ready(route.queue, len(model.queue))

    def consumed(
        self, recipient: str, count: int, batch: int, error: type[Exception] | None, crash: str
    ) -> list[tuple[str, Effect | Exception]]:
        results: list[tuple[str, Effect | Exception]] = []
        handle = self.code.handler_of(self.config.route(recipient))
        route, stop = self.config.route(recipient), Stop()
        policy = retry_later(self.copies, route, RETRIES_MS, exhausted=park(self.copies, route))

        def noting(event: Event, tx: sqlite3.Connection) -> Effect:
            effect = handle(event, tx)
            if error is not None:
                raise error("the handler fails")
            results.append((event.id, effect))
            return effect

        def note(delivery: Delivery, failure: Exception) -> Any:
            results.append((delivery.message_id, failure))
            return policy(delivery, failure)

        def meanwhile() -> None:
            self.copies.serve()
            if len(results) >= count:
                stop.request()

        channel = self.connection.channel()
        with ending_at(crash):
            try:
                consume(
                    self.code.consuming(channel),
                    route.queue,
                    self.stores[recipient],
                    noting,
                    on_failure=note,
                    guard=limit_deaths(DEATHS),
                    batch=batch,
                    prefetch=batch,
                    idle=NOTHING_COMES,
                    stop=stop,
                    meanwhile=meanwhile,
                )
            finally:
                channel.close()
        return results

    def follow(
        self,
        recipient: str,
        results: list[tuple[str, Effect | Exception]],
        error: type[Exception] | None,
        crash: str,
    ) -> None:
        """Do in the model what was seen, and see that it was right."""
        model = self.models[recipient]
        kept: list[Copy] = []
        for event_id, result in results:
            copy = model.queue.pop(0)
            assert copy.fact.event_id == event_id, "not the first in the queue"
            if isinstance(result, KillerMessage):
                # Redelivered at all, it is taken to have been begun once in vain.
                assert self.crashes[event_id] >= DEATHS - 1, "killed nobody"
                self.seen["killer"] += 1
                model.fail(copy, for_good=True)
                kept += [copy] if crash == "park.copied" else []
            elif isinstance(result, Exception):
                assert type(result) is error, result
                model.fail(copy, for_good=isinstance(result, PermanentError))
                self.seen["failed"] += 1
                kept += [copy] if crash else []
            else:
                if crash != "consumer.applied":
                    owed = model.handle(copy.fact)
                    self.seen[owed] += 1
                    answered = result.value if self.code.answers else owed
                    assert answered == owed, f"{recipient} answered {answered}, not {owed}: {copy}"
                if crash in ("consumer.applied", "consumer.committed"):
                    self.crashes[event_id] += 1
                    kept.append(copy)
        model.queue[:0] = kept

    # -- small things

    def await_ready(self, queue: str, count: int) -> None:
        """Wait until the queue holds *count*; what a channel gives back is there a moment later."""

        def there() -> bool:
            found = self.channel.queue_declare(queue, passive=True).method.message_count
            return int(found) == count

        wait_for(there, f"{count} in {queue}", seconds=5.0)

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Note that something was wrong: what follows would only tell it again."""
        try:
            yield
        except BaseException:
            self.clean = False
            raise


def chosen(among: list[T], pick: int) -> T:
    return among[pick % len(among)]


RECEIPTS = "SELECT message_id, effect, duplicates FROM receipt"
AUDITED = "SELECT event_id FROM audit"


@contextmanager
def ending_at(point: str) -> Iterator[None]:
    """Let the process "die" the first time that it comes to *point*."""

    def die() -> None:
        raise Crash(point)

    if point:
        arm(point, die)
    try:
        yield
    except Crash:
        pass
    finally:
        if point:
            arm(point, lambda: None, on_visit=0)
