"""Tell where a message would go, by the broker's own rules."""

from __future__ import annotations

from delivery.topology import Topology

__all__ = ["matches", "routed"]


def matches(pattern: str, key: str) -> bool:
    """Tell whether a topic *pattern* takes *key*: ``*`` is one word, ``#`` any number of words."""

    def match(want: list[str], have: list[str]) -> bool:
        if not want:
            return not have
        if want[0] == "#":
            return any(match(want[1:], have[i:]) for i in range(len(have) + 1))
        return bool(have) and want[0] in ("*", have[0]) and match(want[1:], have[1:])

    def words(text: str) -> list[str]:
        return text.split(".") if text else []

    return match(words(pattern), words(key))


def routed(topology: Topology, exchange: str, key: str) -> bool:
    """Tell whether a message for *key* on *exchange* reaches a queue of *topology*."""
    if exchange == "":
        return any(queue.name == key for queue in topology.queues)
    kinds: dict[str, str] = {each.name: each.kind for each in topology.exchanges}
    queues = {queue.name for queue in topology.queues}
    return any(
        binding.exchange == exchange
        and binding.queue in queues
        and _takes(kinds.get(exchange, "direct"), binding.key, key)
        for binding in topology.bindings
    )


def _takes(kind: str, pattern: str, key: str) -> bool:
    if kind == "topic":
        return matches(pattern, key)
    return kind in ("fanout", "headers") or pattern == key  # headers: not by the key at all
