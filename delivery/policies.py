"""Bound a queue that exists by a policy: nothing is moved, and no declaration changes."""

from __future__ import annotations

import re
import time
import urllib.error
from urllib.parse import quote

from delivery.config import Config
from delivery.errors import DeliveryError
from delivery.limits import Limit, bounded, policy_steps
from delivery.management import Management

__all__ = ["limit_queue", "unlimit_queue"]

PATIENCE = 10.0  # seconds until a policy is seen on its queue


def limit_queue(config: Config, queue: str, limit: Limit) -> None:
    """Bound *queue* from now on, while it is used. `bounded` refuses what would lose messages.

    A policy adds what the declaration does not say. Where both name a length or a TTL, the lower
    one holds; of other things the declaration's (RabbitMQ, "Policies"): what a queue was declared
    with can only be made stricter so. One policy holds for a queue: raises DeliveryError if it
    has another one already, and if ours is not seen on it. OSError: no management plugin.
    """
    bounded(config.topology(), {queue: limit})
    management = _plugin(config)
    name = _name(queue)
    if (other := _policy(management, queue)) not in ("", name):
        raise DeliveryError(
            f"{queue} has the policy {other!r}; only one holds: add the limit there"
        )
    for definition in policy_steps(limit):
        management.put(
            _path(management, name),
            {
                "pattern": f"^{re.escape(queue)}$",
                "definition": definition,
                "apply-to": "queues",
            },
        )
        _await(management, queue, name)


def unlimit_queue(config: Config, queue: str) -> bool:
    """Take the limit of `limit_queue` away; False if there was none."""
    management = _plugin(config)
    try:
        management.delete(_path(management, _name(queue)))
    except urllib.error.HTTPError as answer:
        if answer.code != 404:
            raise
        return False
    return True


def _plugin(config: Config) -> Management:
    if config.management is None:
        raise DeliveryError("a policy needs the management plugin: set DELIVERY_MANAGEMENT_URL")
    return config.management


def _name(queue: str) -> str:
    return f"{queue}.limit"


def _path(management: Management, name: str) -> str:
    return f"/api/policies/{management.vhost}/{quote(name, safe='')}"


def _policy(management: Management, queue: str) -> str:
    try:
        told, _ = management.get(f"/api/queues/{management.vhost}/{quote(queue, safe='')}")
    except urllib.error.HTTPError as answer:
        if answer.code != 404:
            raise
        raise DeliveryError(f"there is no queue {queue!r} on the broker") from answer
    return str(told.get("policy") or "")


def _await(management: Management, queue: str, name: str) -> None:
    end = time.monotonic() + PATIENCE
    while (seen := _policy(management, queue)) != name:
        if time.monotonic() > end:
            raise DeliveryError(f"the policy {name!r} does not hold for {queue}: it has {seen!r}")
        time.sleep(0.1)
