"""Ask the broker which other queues take from the exchange: lanes, and somebody else's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from delivery.config import Config
from delivery.dead import dead_queue
from delivery.queue_list import listed
from delivery.retry import retry_queue
from delivery.routes import Route, events_exchange, routes_of

__all__ = ["Listener", "Listeners", "listeners"]

MOST = 6  # queues that are asked about: a stranger may have bound thousands
MOST_KEYS = 5  # keys of each that are named


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


def listeners(config: Config) -> Listeners | None:
    """Return the queues that the exchange routes to beside the recipients' own.

    None if no management plugin is known. A queue that is deleted meanwhile is left out, and so is
    one that gets its messages from an exchange behind this one. What is set aside while a queue is
    moved is not left out. Raises OSError if the plugin does not tell.
    """
    if (management := config.management) is None:
        return None
    namespace = config.namespace
    exchange = quote(events_exchange(namespace), safe="")
    bindings, _ = management.get(f"/api/exchanges/{management.vhost}/{exchange}/bindings/source")
    try:
        keys = _others(bindings, {route.queue for route in routes_of(namespace)})
        names = sorted(keys, key=lambda name: (not name.startswith(f"{namespace}."), name))
    except (AttributeError, KeyError, TypeError) as error:
        raise OSError(f"no bindings there: {error!r}") from error
    beside = {name: _beside(name, config) for name in names[:MOST]}
    more = (queue for each in beside.values() for queue in each)
    told = listed(management, [*beside, *more])
    found = (_listener(name, keys[name], beside[name], told) for name in beside if name in told)
    return Listeners(tuple(found), len(names[MOST:]))


def _others(bindings: Iterable[Any], own: Collection[str]) -> dict[str, set[str]]:
    keys: dict[str, set[str]] = {}
    for each in bindings:
        if each["destination_type"] == "queue" and each["destination"] not in own:
            keys.setdefault(each["destination"], set()).add(str(each["routing_key"]))
    return keys


def _beside(queue: str, config: Config) -> list[str]:
    """Return where a lane's retry queues and its dead queue are, if there are any."""
    if not queue.startswith(f"{config.namespace}."):
        return []
    route = Route(queue.removeprefix(f"{config.namespace}."), config.namespace)
    retries = (retry_queue(route, n + 1) for n in range(len(config.retries_ms)))
    return [*retries, dead_queue(route)]


def _listener(
    queue: str, keys: set[str], beside: Sequence[str], told: Mapping[str, dict[str, Any]]
) -> Listener:
    own = told[queue]
    *retries, dead = [told.get(name) for name in beside] or [None]
    return Listener(
        queue=queue,
        keys=tuple(sorted(keys)[:MOST_KEYS]),
        more_keys=max(0, len(keys) - MOST_KEYS),
        kind=own.get("type"),
        ready=_count(own, "messages_ready"),
        unacked=_count(own, "messages_unacknowledged"),
        consumers=_count(own, "consumers"),
        retry=_sum([_count(each, "messages") for each in retries if each]),
        dead=_count(dead, "messages"),
    )


def _sum(counts: list[int | None]) -> int | None:
    seen = [each for each in counts if each is not None]
    return sum(seen) if seen and len(seen) == len(counts) else None


def _count(told: dict[str, Any] | None, name: str) -> int | None:
    found = (told or {}).get(name)
    return found if isinstance(found, int) else None
