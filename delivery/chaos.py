"""Attack a running system with a schedule of faults, let it heal, and judge what is left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from delivery.arena import Arena
from delivery.books import settled_accounts
from delivery.campaign import Record, inject_all
from delivery.cluster import Cluster
from delivery.config import Config
from delivery.connection import describe
from delivery.errors import DeliveryError
from delivery.facts import facts_of, outbox_of
from delivery.heal import Healed, heal
from delivery.ledger import Account
from delivery.routes import RECIPIENTS
from delivery.schedule import Planned
from delivery.stopping import Stop
from delivery.system import System, ours, set_up
from delivery.timeline import Sample, Timeline
from delivery.traffic import MOODY, Traffic
from delivery.verdict import Tally, differences, tally

__all__ = [
    "Load",
    "Run",
    "attack",
    "last_accounts",
    "moody",
    "not_recovered",
    "own_losses",
    "put_under_load",
]

QUIET = 120.0  # seconds without any progress; a row's pause is 30 s at most
# Seconds. What a quorum queue could not hand over to another one it keeps, where no count shows it,
# and tries again after three minutes.
HELD = 200.0


@dataclass(frozen=True)
class Load:
    """What is published meanwhile: *rate* a second, until at least *events* are accepted."""

    rate: float = 40.0
    events: int = 0
    materials: int = 200
    seed: int = 1


@dataclass(frozen=True)
class Run:
    """Everything that is known about a run; *differences* is empty if every promise was kept."""

    system: str
    broker: str
    load: Load
    begun: float
    seconds: float
    records: Sequence[Record]
    samples: Sequence[Sample]
    tally: Tally
    accounts: Sequence[Account] = ()
    healed: Sequence[Healed] = ()
    differences: Sequence[str] = field(default=())

    @property
    def bites(self) -> Mapping[str, tuple[int, int]]:
        """How often each kind of fault was injected, and how often it bit."""
        injected = Counter(record.planned.kind for record in self.records)
        bit = Counter(record.planned.kind for record in self.records if record.bit)
        return {kind: (injected[kind], bit[kind]) for kind in sorted(injected)}


def attack(
    environ: Mapping[str, str],
    planned: Sequence[Planned],
    load: Load,
    *,
    say: Callable[[str], None],
    stop: Stop,
    system: System | None = None,
    cluster: Cluster | None = None,
) -> Run:
    """Run one campaign against this package's processes, and judge it.

    On *cluster*, or on a broker of its own.

    Raises DeliveryError if it can't even begin, or was interrupted.
    """
    with set_up(system or ours(), environ, say, stop, cluster) as arena:
        begun = time.time()
        moody(arena)
        records, samples, error = put_under_load(arena, planned, load, say)
        say("healing: every process runs, every message gets its time")
        resting = await_rest(arena)
        if cluster is not None:
            await_held(arena)
        healed = heal(arena, records)
        accounts = last_accounts(arena.config, partial(stop_readers, arena))
        # At rest, a recipient may still have had the last messages in its hands.
        final = Timeline(arena).once()
        facts = facts_of(arena.config, *outbox_of(arena.config), arena.strangers)
        entries = arena.journal.entries.values()
        wrong = [
            *([error] if error else []),
            *not_recovered(records),
            *own_losses(healed),
            *differences(entries, facts, accounts),
        ]
        return Run(
            system="delivery",
            broker=f"RabbitMQ {arena.broker.version}{', three nodes' if cluster else ''}",
            load=load,
            begun=begun,
            seconds=time.time() - begun,
            records=records,
            samples=[*samples, *resting, *final],
            tally=tally(entries, facts),
            accounts=accounts,
            healed=healed,
            differences=wrong,
        )


def not_recovered(records: Sequence[Record]) -> Iterator[str]:
    """Say of each fault after which something did not work again what that was."""
    for each in records:
        if each.error:
            yield f"{each.planned.kind} (fault {each.planned.number}): {each.error}"


def own_losses(healed: Sequence[Healed]) -> Iterator[str]:
    """Name what was lost and no fault's limit explains: that it is healed is no excuse."""
    for each in healed:
        if not each.fault:
            yield f"{each.recipient} lost {each.event_id} by our own code"


def put_under_load(
    arena: Arena, planned: Sequence[Planned], load: Load, say: Callable[[str], None]
) -> tuple[list[Record], list[Sample], str]:
    """Publish, inject the faults, and return when the last request is answered.

    The third value says why publishing ended early, if it did.
    """
    traffic = Traffic(arena.journal, rate=load.rate, materials=load.materials, seed=load.seed)
    timeline = Timeline(arena)
    traffic.start()
    timeline.start()
    done = 0

    def note(record: Record) -> None:
        nonlocal done
        done += 1
        result = record.evidence if record.bit else f"DID NOT BITE: {record.evidence}"
        if record.error:
            result = "interrupted" if arena.stop else f"DID NOT RECOVER: {record.error}"
        took = record.ended - record.begun
        say(f"{done:4} of {len(planned)}  {record.planned.kind:18} {took:5.1f} s  {result}")

    try:
        records = inject_all(arena, planned, note=note)
        while len(arena.journal.entries) < load.events and traffic.is_alive() and not arena.stop:
            time.sleep(0.2)
    finally:
        traffic.end()
        timeline.end()
    if arena.stop:
        raise DeliveryError("interrupted: nothing was judged")
    ended = f"publishing ended: {describe(traffic.error)}" if traffic.error else ""
    return records, timeline.samples, ended


def await_rest(arena: Arena) -> list[Sample]:
    """Wait until nothing is on the way any more, or nothing moves, and return the samples."""
    timeline = Timeline(arena)
    timeline.start()
    try:
        while timeline.is_alive() and moves(timeline.samples):
            if arena.stop:
                raise DeliveryError("interrupted: nothing was judged")
            time.sleep(0.2)
    finally:
        timeline.end()
    return timeline.samples


def await_held(arena: Arena) -> None:
    """Give the broker the time to hand over what it holds back after a fault."""
    end = time.monotonic() + HELD
    while any(map(differs_or_waits, settled_accounts(counted(arena.config), seconds=2))):
        if arena.stop or time.monotonic() > end:
            return
        time.sleep(1)


def last_accounts(
    config: Config, stop_readers: Callable[[], None], *, seconds: float = 30
) -> list[Account]:
    """Return the accounts at rest, or as they are after *seconds*, when nobody reads any more.

    What a reader has in its hands only the management plugin tells, and it can be wrong for long:
    seen after a partition, it went on adding what the node that had been cut off last knew. When
    the readers are stopped, all that they had is ready again, and that count is exact.
    """
    found = settled_accounts(config, seconds=seconds)
    if not any(map(differs_or_waits, found)):
        return found
    stop_readers()
    return settled_accounts(counted(config), seconds=seconds)


def counted(config: Config) -> Config:
    """Return *config* with nothing but the broker's own counts."""
    return replace(config, management_url=None)


def stop_readers(arena: Arena) -> None:
    """Stop the recipients; what they have in their hands goes back."""
    for recipient in RECIPIENTS:
        arena.cast.stop(recipient)


def differs_or_waits(found: Account) -> bool:
    """Say whether an account does not balance, or a message is somewhere on the broker."""
    return bool(found.difference or found.ready or found.retry or found.unacked or found.copies)


def moves(samples: Sequence[Sample]) -> bool:
    """Say whether something may still come: all is settled that will be, or nothing for QUIET.

    Two samples agree: the last messages may be in a recipient's hands, where no count sees them.
    """
    if not samples:
        return True
    last = samples[-1]
    same = [each.at for each in samples if each.settled == last.settled]
    return last.at - same[0] < QUIET and not (last.at_rest and len(same) > 1)


def moody(arena: Arena) -> None:
    """Let each recipient's own store refuse moody titles in one second out of three."""
    for recipient in RECIPIENTS:
        arena.write(
            recipient,
            f"CREATE TRIGGER moody BEFORE INSERT ON {recipient} WHEN NEW.title LIKE '{MOODY}%'"
            " AND CAST(strftime('%s', 'now') AS INTEGER) % 3 = 0"
            " BEGIN SELECT RAISE(ABORT, 'not in the mood'); END",
        )
