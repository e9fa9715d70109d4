"""Faults of the broker: killed, restarted, in alarm, full, without a binding, queue or right."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from random import Random
from urllib.parse import quote

from delivery.arena import API, PROCESSES, RELAY, Arena, Deleted
from delivery.faults import Fault, Ground, Limit, Target, await_lost, back_again, marks
from delivery.routes import RECIPIENTS
from delivery.stores import PUBLISHER
from delivery.topology import declare
from delivery.wiretap import BLOCKED, PUBLISH

__all__ = ["FAULTS", "IN_HANDS", "may_be_queued"]

EVERYBODY: Target = PROCESSES
FULL = {"max-length": 1}
IN_HANDS = 500  # messages: more than a recipient holds, and a relay has in flight
WATERMARK = "0.6"  # of the memory: RabbitMQ's default since 4.0


def _kill_broker(arena: Arena, target: Target, random: Random) -> str:
    since = marks(arena, target)
    arena.broker.kill()
    try:
        await_lost(arena, since)
    finally:
        arena.broker.start()
    back_again(arena, since)
    return f"SIGKILL; {', '.join(since)} lost their connections and came back"


def _restart_broker(arena: Arena, target: Target, random: Random) -> str:
    since = marks(arena, target)
    arena.broker.restart()
    await_lost(arena, since)
    back_again(arena, since)
    return f"stopped and started; {', '.join(since)} lost their connections and came back"


def _alarm(arena: Arena, target: Target, random: Random) -> str:
    relay = arena.publisher
    tap = arena.taps[relay]
    blocked = tap.seen[BLOCKED]
    arena.broker.ctl("set_vm_memory_high_watermark", "0")
    try:
        arena.bites(
            lambda: tap.seen[BLOCKED] > blocked, "the broker tells the relay that it is blocked"
        )
        time.sleep(1)  # for what is published meanwhile to pile up
    finally:
        arena.broker.ctl("set_vm_memory_high_watermark", WATERMARK)
    published = tap.seen[PUBLISH]
    arena.recovers(lambda: tap.seen[PUBLISH] > published, f"{relay} publishes again")
    return f"Connection.Blocked seen on {relay}'s line ({tap.seen[BLOCKED] - blocked} times)"


def _refuse(arena: Arena, target: Target, random: Random) -> str:
    relay, recipient = target
    queue = arena.config.route(recipient).queue
    policy = f"/api/policies/%2F/{quote('full ' + queue)}"
    arena.cast.stop(recipient)  # or it would empty the queue at once
    mark = arena.cast[relay].mark()
    # In this order: a broker that hears of the length first drops what is beyond it.
    for definition in ({"overflow": "reject-publish"}, {"overflow": "reject-publish", **FULL}):
        arena.management.put(
            policy,
            {
                "pattern": f"^{queue.replace('.', '[.]')}$",
                "definition": definition,
                "apply-to": "queues",
            },
        )
    try:
        _await_outcome(arena, relay, "refused", mark)
    finally:
        arena.management.delete(policy)
        arena.restart(recipient)
    return _outcomes(arena, relay, "refused", mark)


def _unbind(arena: Arena, target: Target, random: Random) -> str:
    relay = target[0]
    topology = arena.config.topology()
    mark = arena.cast[relay].mark()
    with arena.connection() as connection:
        channel = connection.channel()
        for binding in topology.bindings:
            channel.queue_unbind(binding.queue, binding.exchange, binding.key)
        try:
            _await_outcome(arena, relay, "returned", mark)
        finally:
            declare(connection, topology)
    return _outcomes(arena, relay, "returned", mark)


def _await_outcome(arena: Arena, relay: str, outcome: str, mark: int) -> None:
    """Wait until a message was answered so; from who does not ask, until three were sent."""
    tap = arena.taps[relay]
    enough = tap.seen[PUBLISH] + 3
    arena.bites(
        lambda: (
            arena.said(relay, f"outcome={outcome}", mark)
            if arena.ours
            else tap.seen[PUBLISH] >= enough
        ),
        f"a message is {outcome}",
    )


def _outcomes(arena: Arena, relay: str, outcome: str, mark: int) -> str:
    if not arena.ours:
        return f"{relay} sent three messages meanwhile"
    return f"{arena.cast[relay].log(mark).count(f'outcome={outcome}')} publishes were {outcome}"


def _delete_queue(arena: Arena, target: Target, random: Random) -> str:
    recipient = target[0]
    since = marks(arena, target)
    queue = arena.config.route(recipient).queue
    begun = time.time()
    unmarked = (
        _unmarked(arena) if arena.ours else frozenset()
    )  # first: else one could be in neither
    unsettled = _unsettled(arena, recipient) if arena.ours else frozenset()
    with arena.connection() as connection:
        gone = connection.channel().queue_delete(queue).method.message_count
    await_lost(arena, since)
    back_again(arena, since)
    arena.deleted.append(Deleted(recipient, unsettled, begun, time.time(), unmarked))
    return f"{queue} deleted with {gone} ready messages; {recipient} declared it again"


def _unmarked(arena: Arena) -> frozenset[str]:
    rows = arena.read(PUBLISHER, "SELECT event_id FROM outbox WHERE confirmed_at IS NULL")
    return frozenset(str(event) for (event,) in rows)


def _unsettled(arena: Arena, recipient: str) -> frozenset[str]:
    confirmed = "SELECT event_id, position, attempts FROM outbox WHERE confirmed_at IS NOT NULL"
    sent = {
        str(event): (int(str(position)), int(str(attempts)))
        for event, position, attempts in arena.read(PUBLISHER, confirmed)
    }
    settled, failed = (
        {str(event) for (event,) in arena.read(recipient, f"SELECT message_id FROM {table}")}  # noqa: S608
        for table in ("receipt", "failure")
    )
    return may_be_queued(sent, settled, failed=failed, out_of_turn=arena.sent_again)


def may_be_queued(
    sent: Mapping[str, tuple[int, int]],
    settled: Set[str],
    *,
    failed: Set[str],
    out_of_turn: Set[str],
) -> frozenset[str]:
    """Return what may be in a recipient's queue, in its hands, or on its way back.

    *sent* has each confirmed event's position and attempts. A queue gives its messages in their
    order: what was sent once, IN_HANDS before the newest one that is *settled*, and never *failed*
    is not in it any more. It was lost before, by somebody else. *out_of_turn* are events that a
    fault sent by itself.
    """
    in_order = {event: position for event, (position, attempts) in sent.items() if attempts == 1}
    newest = max((in_order.get(event, 0) for event in settled - out_of_turn), default=0)
    return frozenset(
        event
        for event in sent.keys() - settled
        if event in failed or in_order.get(event, newest) > newest - IN_HANDS
    )


def _no_rights(arena: Arena, target: Target, random: Random) -> str:
    process = target[0]
    since = marks(arena, target)
    right = "write" if process == RELAY else "read"
    arena.allow(process, **{right: "^$"})
    try:
        # The broker caches what a channel may do, for a while: the next connection feels it.
        arena.taps[process].cut()
        arena.bites(
            lambda: arena.said(process, "ACCESS_REFUSED", since[process]),
            f"{process} is refused",
        )
        since = marks(arena, target)
    finally:
        arena.allow(process)
    back_again(arena, since)
    return f"ACCESS_REFUSED: {process} may not {right}"


FAULTS = (
    Fault(
        "kill-broker",
        "the broker is killed (SIGKILL) and started again",
        "everybody reconnects; acked messages that come back are recognised by their receipts;"
        " what was leaving a retry queue may be lost, and is reconciled",
        _kill_broker,
        (EVERYBODY,),
        limit=Limit.EXPIRED,
        slow=True,
        ground=Ground.BROKER,
    ),
    Fault(
        "restart-broker",
        "the broker is stopped and started again",
        "everybody reconnects, nothing is lost",
        _restart_broker,
        (EVERYBODY,),
        slow=True,
        ground=Ground.BROKER,
    ),
    Fault(
        "alarm",
        "a memory alarm blocks every publisher",
        "the outbox grows; everything goes out when the alarm is over",
        _alarm,
        (EVERYBODY,),
        slow=True,
        ground=Ground.BROKER,
    ),
    Fault(
        "refuse",
        "a recipient's queue is full and refuses (max-length 1, reject-publish)",
        "REFUSED: the row stays pending and is sent again; the other recipient recognises the copy",
        _refuse,
        tuple((RELAY, recipient) for recipient in RECIPIENTS),
        limit=Limit.EXPIRED,
    ),
    Fault(
        "unbind",
        "the queues are unbound from the exchange",
        "RETURNED: the rows stay pending and go out when the queues are bound again",
        _unbind,
        ((RELAY, *RECIPIENTS),),
        limit=Limit.UNBOUND,
    ),
    Fault(
        "delete-queue",
        "a recipient's queue is deleted while it is consumed",
        "the recipient notices and declares it again; what was in it is reconciled",
        _delete_queue,
        tuple((recipient,) for recipient in RECIPIENTS),
        limit=Limit.QUEUE,
        ground=Ground.BROKER,  # 3.10.8 did not tell a quorum queue's reader that it was deleted
    ),
    Fault(
        "no-rights",
        "a process's user may not write (relay) or read (recipients) any more",
        "the process says so, waits, and goes on when it has the right again",
        _no_rights,
        tuple((process,) for process in PROCESSES if process != API),
    ),
)
