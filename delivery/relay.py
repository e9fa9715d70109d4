"""Move an outbox to the broker: confirmed first, marked second."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from delivery.confirms import Outcome
from delivery.errors import DeliveryError
from delivery.outbox import Outbox
from delivery.pipeline import ConfirmedChannel
from delivery.points import reach

__all__ = ["RelayBusy", "only_relay", "relay_once"]

log = logging.getLogger(__name__)


class RelayBusy(DeliveryError):
    """Another relay holds this outbox."""


def relay_once(outbox: Outbox, channel: ConfirmedChannel, *, limit: int = 500) -> Counter[Outcome]:
    """Publish what is due, at most *limit* messages, and return how often each outcome came.

    One message that is returned or refused holds up no other: only its own row waits. A crash
    between the confirm and the mark sends a message again under the same message_id.
    """
    with outbox.batch(limit) as batch:
        if not batch.messages:
            return Counter()
        answers = channel.send_all(batch.messages)
        reach("relay.confirmed")
        batch.record(answers)
        reach("relay.marked")
    for message, answer in zip(batch.messages, answers, strict=False):
        if answer.outcome is not Outcome.CONFIRMED:
            log.warning(
                "message.not_confirmed",
                extra={
                    "message_id": message.properties.message_id,
                    "outcome": answer.outcome.value,
                    "detail": answer.detail,
                },
            )
    counts = Counter(answer.outcome for answer in answers)
    log.info("relay.cycle", extra={outcome.value: n for outcome, n in counts.items()})
    return counts


@contextmanager
def only_relay(store_path: Path) -> Iterator[None]:
    """Hold the outbox in *store_path* for this process. Raises RelayBusy, naming the holder.

    The lock is the kernel's (flock), so it dies with the process: a crash leaves nothing to clear.
    """
    with Path(f"{store_path}.relay-lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RelayBusy(
                f"another relay has this outbox: {_holder(file.read())}; stop it first"
            ) from None
        file.truncate(0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(json.dumps({"pid": os.getpid(), "since": since}))
        file.flush()
        yield


def _holder(text: str) -> str:
    try:
        holder = json.loads(text)
    except ValueError:
        return "a process that has just started"
    return f"process {holder['pid']}, since {holder['since']}"
