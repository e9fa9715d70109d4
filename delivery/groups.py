"""Group dead messages by what killed them, and find one by the beginning of its id."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from delivery.errors import DeliveryError
from delivery.triage import DeadMessage

__all__ = ["Group", "full_key", "groups_of"]

COUNTED = 1_000  # ids that begin alike; there may be a million


@dataclass(frozen=True)
class Group:
    """The dead messages of one recipient with one reason; times are Unix seconds, 0: not known."""

    recipient: str
    reason: str
    count: int
    first: int
    last: int
    replayed: int  # how many of them had been sent again before they died
    error: str  # of the one that died last


def groups_of(recipient: str, messages: Iterable[DeadMessage]) -> list[Group]:
    """Return the groups, the largest first."""
    found: dict[str, Group] = {}
    for message in messages:
        none = Group(recipient, message.reason, 0, 0, 0, 0, message.error)
        found[message.reason] = _joined(found.get(message.reason, none), message)
    return sorted(found.values(), key=lambda group: (-group.count, group.reason))


def full_key(word: str, keys: Collection[str]) -> str | None:
    """Return the one of *keys* that is *word*, or begins with it; None if there is none.

    Raises DeliveryError if several begin with it.
    """
    if word in keys:
        return word
    beginning = (key for key in keys if word and key.startswith(word))
    found: set[str] = set()  # a message may have copies, with its id
    for key in beginning:
        found.add(key)
        if len(found) > COUNTED:
            break
    if len(found) > 1:
        count = len(found) if len(found) <= COUNTED else f"more than {COUNTED:,}"
        shown = ", ".join(sorted(found)[:3]) + (" ..." if len(found) > 3 else "")
        raise DeliveryError(f"{count} ids begin with {word!r}: {shown}; say more of it")
    return found.pop() if found else None


def _joined(group: Group, message: DeadMessage) -> Group:
    at = message.parked_at
    return replace(
        group,
        count=group.count + 1,
        first=min(group.first or at, at or group.first),
        last=max(group.last, at),
        replayed=group.replayed + (message.replays > 0),
        error=message.error if at > group.last else group.error,
    )
