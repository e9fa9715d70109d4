"""Judge a run: every promise an answer 202 made, against what the recipients have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from delivery.ledger import Account
from delivery.traffic import KILLER, MOODY, Entry

__all__ = ["Facts", "Tally", "differences", "tally"]

# An accepted event may end dead for these reasons, if its title asks for it: it kills its process,
# or its recipient's own store refused it at every attempt.
LEGITIMATE = {"killer": KILLER, "exhausted": MOODY}


@dataclass(frozen=True)
class Facts:
    """What a system has after a run. *dead* holds reasons, by recipient and event id.

    *written* holds what audit's entries say: event id, material id, revision, title. *strangers*
    are messages that a fault sent, and that are no event.
    """

    outbox: Collection[str]
    audit: Sequence[str]  # event ids, as often as there are entries
    catalog: Mapping[str, tuple[int, str]]  # revision and title, by material id
    pending: Collection[str] = ()
    dead: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    written: Collection[tuple[str, str, int, str]] = ()
    strangers: Collection[str] = ()


@dataclass(frozen=True)
class Tally:
    """How many accepted events went wrong, and how; the same measure for every system.

    *lost*: no audit entry, and neither dead nor pending. *doubled*: audit entries too many.
    *stuck*: pending for ever. *overwritten*: materials of which the catalog does not show the
    highest revision (an older one overtook it, or it never came).
    """

    accepted: int
    lost: int
    doubled: int
    stuck: int
    overwritten: int

    @property
    def clean(self) -> bool:
        """Nothing went wrong."""
        return not (self.lost or self.doubled or self.stuck or self.overwritten)


def tally(entries: Collection[Entry], facts: Facts) -> Tally:
    """Count what went wrong."""
    accepted = {entry.event_id for entry in entries}
    times = Counter(facts.audit)
    somewhere = times.keys() | set(facts.pending) | facts.dead.get("audit", {}).keys()
    return Tally(
        accepted=len(accepted),
        lost=len(accepted - somewhere),
        doubled=sum(count - 1 for count in times.values()),
        stuck=len(accepted & set(facts.pending)),
        overwritten=sum(1 for _ in _behind(entries, facts)),
    )


def differences(entries: Collection[Entry], facts: Facts, accounts: Iterable[Account]) -> list[str]:
    """Return everything that is not as promised, one sentence each, naming all its ids."""
    titles = {entry.event_id: entry.title for entry in entries}
    accepted = titles.keys()
    found = [*_accounted(accounts)]
    found += _named("promised to a client, and not in the outbox", accepted - {*facts.outbox})
    found += _named("in the outbox, and no client was told", {*facts.outbox} - accepted)
    times = Counter(facts.audit)
    dead = facts.dead.get("audit", {}).keys()
    found += _named("audit has no entry for", accepted - times.keys() - dead)
    found += _named("audit has more than one entry for", (e for e, n in times.items() if n > 1))
    found += _named("audit has an entry for what nobody accepted", times.keys() - accepted)
    promised = {(e.event_id, e.material_id, e.revision, e.title) for e in entries}
    changed = {event for event, *_ in {*facts.written} - promised if event in accepted}
    found += _named("audit has something else than was accepted for", changed)
    revisions = Counter((entry.material_id, entry.revision) for entry in entries)
    twice = {material for (material, _), n in revisions.items() if n > 1}
    found += _named("two events were promised the same revision of", twice)
    found += _named("the catalog does not show the highest revision of", _behind(entries, facts))
    unknown = facts.catalog.keys() - {entry.material_id for entry in entries}
    found += _named("the catalog shows what nobody published", unknown)
    for recipient, reasons in facts.dead.items():
        wrong = {
            event
            for event, reason in reasons.items()
            if event in accepted and not _asked_for(reason, titles[event])
        }
        found += _named(f"dead for {recipient} for a reason that is not theirs", wrong)
        unknown = reasons.keys() - accepted - {*facts.strangers}
        found += _named(f"dead for {recipient}, and nobody sent it", unknown)
    return found


def _asked_for(reason: str, title: str) -> bool:
    return reason in LEGITIMATE and title.startswith(LEGITIMATE[reason])


def _accounted(accounts: Iterable[Account]) -> Iterator[str]:
    for each in accounts:
        on_the_way = each.pending + each.retry + each.ready + each.unacked + each.copies
        yield from _named(f"{each.recipient}: no trace of", each.missing)
        yield from _named(f"{each.recipient}: applied, and never accepted", each.never_accepted)
        if each.difference:
            yield f"{each.recipient}: the ledger's difference is {each.difference}"
        if each.parked:
            yield f"{each.recipient}: {each.parked} parked: no queue wanted them"
        if on_the_way:
            yield f"{each.recipient}: {on_the_way} still on the way"


def _behind(entries: Iterable[Entry], facts: Facts) -> Iterator[str]:
    """Yield the materials of which the catalog does not show the highest revision."""
    dead = facts.dead.get("catalog", {})
    highest: dict[str, Entry] = {}
    for entry in entries:
        known = highest.get(entry.material_id)
        if entry.event_id not in dead and (known is None or entry.revision > known.revision):
            highest[entry.material_id] = entry
    for material, entry in highest.items():
        if facts.catalog.get(material) != (entry.revision, entry.title):
            yield material


def _named(what: str, ids: Iterable[str]) -> list[str]:
    chosen = sorted(ids)
    if not chosen:
        return []
    return [f"{what}: {len(chosen)}: {', '.join(chosen)}"]
