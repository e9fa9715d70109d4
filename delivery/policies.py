"""Bound a queue that exists by a policy: nothing is moved, and no declaration changes."""

from __future__ import annotations

import re
import time
import urllib.error
from urllib.parse import quote

from delivery.config import Config
from delivery.errors import DeliveryError
from delivery.limits import Limit, Shed, bounded, policy_steps
from delivery.management import Management
from delivery.routes import routes_of
from delivery.verify import own_queues

__all__ = ["limit_queue", "unlimit_queue"]

# Seconds until a policy is seen on its queue: on 3.10 it was 5 to 10, for one that nobody uses.
PATIENCE = 30.0


def limit_queue(config: Config, queue: str, limit: Limit) -> None:
    """Bound *queue* from now on, while it is used. `bounded` refuses what would lose messages.

    A policy adds what the declaration does not say. Where both name a length or a TTL, the lower
    one holds; of other things the declaration's (RabbitMQ, "Policies"), but for what a quorum queue
    does beyond its length (seen): what was declared can only be made stricter so. One policy holds
    for a queue. Raises DeliveryError if it has another one, if its declaration says something
    else, and if ours is not seen on it in the end;
    OSError if the management plugin does not answer.
    """
    bounded(config.topology(), {queue: limit})
    _refuse_overruled(config, queue, limit)
    management = config.need_management("a policy needs")
    _refuse_strange(config, queue, limit)
    name = _name(queue)
    told = management.queue(queue)
    if told is None:
        raise DeliveryError(f"the broker has no queue {queue!r}")
    if (other := told.get("policy") or name) != name:
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
        _await(management, queue, definition)


def unlimit_queue(config: Config, queue: str) -> bool:
    """Take the limit of `limit_queue` away; False if there was none."""
    management = config.need_management("a policy needs")
    try:
        management.delete(_path(management, _name(queue)))
    except urllib.error.HTTPError as answer:
        if answer.code != 404:
            raise
        return False
    return True


def _refuse_overruled(config: Config, queue: str, limit: Limit) -> None:
    declared = next(each.arguments for each in config.topology().queues if each.name == queue)
    for name, wanted in limit.arguments().items():
        have = declared.get(name, wanted)
        if have != wanted and not isinstance(have, int):
            raise DeliveryError(
                f"{queue} is declared with {name} = {have}: a policy must not say {wanted}"
            )


def _refuse_strange(config: Config, queue: str, limit: Limit) -> None:
    # Another recipient would be sent what it has had, and its own would never have it.
    topology = config.topology()
    owned = [own_queues(topology, route).queues for route in routes_of(config.namespace)]
    names = [{each.name for each in queues} for queues in owned]
    if isinstance(limit, Shed) and not any({queue, limit.into} <= each for each in names):
        raise DeliveryError(f"{limit.into!r} is another recipient's: {queue} can't shed into it")


def _name(queue: str) -> str:
    return f"{queue}.limit"


def _path(management: Management, name: str) -> str:
    return f"/api/policies/{management.vhost}/{quote(name, safe='')}"


def _await(management: Management, queue: str, definition: object) -> None:
    end = time.monotonic() + PATIENCE
    while (management.queue(queue) or {}).get("effective_policy_definition") != definition:
        if time.monotonic() > end:
            raise DeliveryError(f"{queue} does not follow the policy {definition}")
        time.sleep(0.1)
