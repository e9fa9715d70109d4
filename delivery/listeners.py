"""Ask the broker which other queues take from the exchange: lanes, and somebody else's."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from delivery.dead import dead_queue
from delivery.management import Management
from delivery.retry import retry_queue
from delivery.routes import Route, events_exchange, routes_of

__all__ = ["Listener", "Listeners", "listeners"]

MOST, MOST_KEYS = (
    6,
    5,
)  # queues that are asked about, and keys of each; a stranger may have thousands


@dataclass(frozen=True)
class Listener:
    """A queue that no setting of ours knows, as of some seconds ago. None: there is no count.

    What waits in it is in no ledger: whether its receipts are a recipient's is its author's to say.
    """

    queue: str
    keys: tuple[str, ...]  # the first routing keys that it is bound with
    more_keys: int
    kind: str | None  # classic, quorum
    ready: int | None
    unacked: int | None
    consumers: int | None
    retry: int | None  # in retry queues that are named as a recipient's
    dead: int | None  # in a dead queue that is named so


@dataclass(frozen=True)
class Listeners:
    """The first of them, lanes before strangers, and how many *more* there are."""

    shown: tuple[Listener, ...]
    more: int


def listeners(management: Management, namespace: str, *, retries: int) -> Listeners:
    """Return the queues that *namespace*'s exchange routes to beside the recipients' own.

    Up to *retries* retry queues of each are looked for. A queue that is deleted meanwhile is left
    out, and so is one that gets its messages from an exchange behind this one. What is set aside
    while a queue is moved is not left out. Raises OSError if the management plugin does not tell.
    """
    exchange = quote(events_exchange(namespace), safe="")
    bindings, _ = management.get(f"/api/exchanges/{management.vhost}/{exchange}/bindings/source")
    try:
        keys = _others(bindings, {route.queue for route in routes_of(namespace)})
    except (KeyError, TypeError) as error:
        raise OSError(f"no bindings there: {error!r}") from error
    names = sorted(keys, key=lambda name: (not name.startswith(f"{namespace}."), name))
    found = (_ask(management, name, keys[name], namespace, retries) for name in names[:MOST])
    return Listeners(tuple(each for each in found if each), len(names[MOST:]))


def _others(bindings: Iterable[Any], own: Collection[str]) -> dict[str, set[str]]:
    keys: dict[str, set[str]] = {}
    for each in bindings:
        if each["destination_type"] == "queue" and each["destination"] not in own:
            keys.setdefault(each["destination"], set()).add(each["routing_key"])
    return keys


def _ask(
    management: Management, queue: str, keys: set[str], namespace: str, retries: int
) -> Listener | None:
    told = management.queue(queue)
    if told is None:
        return None
    retry, dead = list[int | None](), None
    if queue.startswith(f"{namespace}."):  # a lane: its route is like a recipient's
        route = Route(queue.removeprefix(f"{namespace}."), namespace)
        waiting = (management.queue(retry_queue(route, n + 1)) for n in range(retries))
        retry = [_count(each, "messages") for each in waiting if each]
        dead = _count(management.queue(dead_queue(route)), "messages")
    return Listener(
        queue=queue,
        keys=tuple(sorted(keys)[:MOST_KEYS]),
        more_keys=max(0, len(keys) - MOST_KEYS),
        kind=told.get("type"),
        ready=_count(told, "messages_ready"),
        unacked=_count(told, "messages_unacknowledged"),
        consumers=_count(told, "consumers"),
        retry=_sum(retry),
        dead=dead,
    )


def _sum(counts: list[int | None]) -> int | None:
    seen = [each for each in counts if each is not None]
    return sum(seen) if seen and len(seen) == len(counts) else None


def _count(told: dict[str, Any] | None, name: str) -> int | None:
    found = (told or {}).get(name)
    return found if isinstance(found, int) else None
