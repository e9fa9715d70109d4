"""Random histories of the real exchange end as a small model says, and the ledger balances."""

from __future__ import annotations

import os
import re
import sqlite3
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test
from pika.adapters.blocking_connection import BlockingChannel
from support.machine import OURS, Code, ExchangeMachine

from delivery import audit, catalog
from delivery.confirms import Answer, Outcome
from delivery.connection import BrokerSettings
from delivery.contract import Event
from delivery.handling import Effect, Handler
from delivery.inbox import once
from delivery.outbox import Outbox
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach
from delivery.revision import latest_only
from delivery.routes import Route

# More, or others: DELIVERY_FUZZ_EXAMPLES=500 DELIVERY_FUZZ_SEED=7 make test T=tests/broker ARGS=...
EXAMPLES = int(os.environ.get("DELIVERY_FUZZ_EXAMPLES", "30"))
SEED = int(os.environ.get("DELIVERY_FUZZ_SEED", "20260131"))
STEPS = 50


HAPPENED = {
    *("accepted", "relayed", "relay.confirmed", "relay.marked", "reorder", "handled", "failed"),
    *("consumer.applied", "consumer.committed", "consumer.settled", "retry.copied", "park.copied"),
    *("applied", "duplicate", "stale", "replay", "drop", "pruned"),
}


def run(settings: BrokerSettings, folder: Path, code: Code, **more: Any) -> Counter[str]:
    seen: Counter[str] = Counter()
    run_state_machine_as_test(
        seed(SEED)(lambda: ExchangeMachine(settings, folder, code, seen)),
        settings=hypothesis_settings(
            stateful_step_count=STEPS,
            database=None,
            # A history that fails is shown as it is: to shrink it takes minutes of a real exchange.
            phases=[Phase.generate],
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )
    return seen


def test_whatever_happens_the_exchange_is_where_the_model_is(
    settings: BrokerSettings, tmp_path: Path
) -> None:
    """Publish, relay, deliver, duplicate, reorder, crash, fail, replay, drop, prune, in any order.

    After every step each store and queue holds what the model says, and no effect is there twice;
    at the end the ledger balances, and the catalog shows the highest revision that lives.
    """
    print(f"seed {SEED}, {EXAMPLES} histories")
    seen = run(settings, tmp_path, OURS, max_examples=EXAMPLES)
    print(dict(seen))
    assert seen.keys() >= HAPPENED or SEED != 20260131


# -- the machine sees what it must see: each guarantee taken away


def effect_of(route: Route) -> Handler:
    return latest_only(catalog.upsert) if route.recipient == "catalog" else audit.append


def without_receipt(route: Route) -> Handler:
    """Write the receipt, and never look at it."""
    effect = effect_of(route)
    note = once(route, lambda _event, _tx: Effect.APPLIED)

    def apply(event: Event, tx: sqlite3.Connection) -> Effect:
        note(event, tx)
        return effect(event, tx)

    return apply


class ReceiptApart:
    """The usual "seen" key in another store: set before the effect, and not undone with it."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()

    def __call__(self, route: Route) -> Handler:
        handle = once(route, effect_of(route))

        def apply(event: Event, tx: sqlite3.Connection) -> Effect:
            key = (route.queue, event.id)
            if key in self.seen and not self._noted(event, tx):
                return Effect.DUPLICATE
            self.seen.add(key)
            return handle(event, tx)

        return apply

    def _noted(self, event: Event, tx: sqlite3.Connection) -> bool:
        query = "SELECT 1 FROM receipt WHERE message_id = ?"
        return tx.execute(query, (event.id,)).fetchone() is not None


def without_revisions(route: Route) -> Handler:
    return once(route, catalog.upsert if route.recipient == "catalog" else audit.append)


def marking_first(outbox: Outbox, channel: ConfirmedChannel, *, limit: int) -> Counter[Outcome]:
    with outbox.batch(limit) as batch:
        batch.record([Answer(Outcome.CONFIRMED)] * len(batch.messages))
        reach("relay.confirmed")
        channel.send_all(batch.messages)
        reach("relay.marked")
    return Counter()


class AckingFirst:
    """A channel whose deliveries are acked as they arrive."""

    def __init__(self, channel: BlockingChannel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def basic_consume(self, queue: str, on_message: Any) -> str:
        def acking(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
            channel.basic_ack(method.delivery_tag)
            on_message(channel, method, properties, body)

        return str(self._channel.basic_consume(queue, acking))

    def basic_ack(self, *_: object, **__: object) -> None:
        """Nothing is left to ack."""

    basic_nack = basic_ack


# Judged by stores and queues alone: a mutant may answer what it likes. Beside each: what misses it.
MUTANTS = {
    "no receipt": (Code(handler_of=without_receipt, answers=False), "an effect twice"),
    "receipt apart": (Code(handler_of=ReceiptApart(), answers=False), "catalog|audit|inbox"),
    "no revisions": (Code(handler_of=without_revisions, answers=False), "catalog"),
    "mark before confirm": (Code(relay_once=marking_first), "in s[0-9a-f]+"),
    "ack before commit": (Code(consuming=AckingFirst), "in s[0-9a-f]+|did not come"),
}


@pytest.mark.parametrize(("code", "words"), MUTANTS.values(), ids=MUTANTS)
def test_a_guarantee_that_is_taken_away_is_missed(
    settings: BrokerSettings, tmp_path: Path, code: Code, words: str
) -> None:
    """The same machine, with one part replaced by the usual code, fails; and says why."""
    with pytest.raises((AssertionError, Flaky)) as failure:
        run(settings, tmp_path, code, max_examples=50)
    assert re.search(words, "".join(traceback.format_exception(failure.value)))
