"""Plan, replay and drop dead messages for the live page, as the operator's desk does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from delivery.acts import Acts
from delivery.config import Config
from delivery.desk import DROPPED, Desk
from delivery.plan import Planned
from delivery.sheet import Sheet
from delivery.triage import HeldMessage

__all__ = ["drop", "plan", "replay"]

SHOWN = 25  # dead messages that are listed one by one
BODY = 2_000  # characters of a body that are shown
WAIT = 4.0  # seconds for what becomes of a replay
OPERATOR = "presenter"


def plan(config: Config, recipient: str) -> dict[str, Any]:
    """Return how many are dead and what a replay of the first ones would do."""
    with closing(Sheet()) as sheet:
        with Desk(config, recipient) as desk:
            sheet.write(desk.each())
            sheet.plan(desk.plan)
            first = list(islice(sheet.planned(), SHOWN))
            keys = {each.message.key for each in first}
            full = {message.key: message for message in desk.in_full(keys)}
        kinds = Counter((each.message.reason, each.prospect.value) for each in sheet.planned())
        total = len(sheet)
    return {
        "recipient": recipient,
        "total": total,
        "groups": [
            {"reason": reason, "prospect": prospect, "count": count}
            for (reason, prospect), count in kinds.most_common()
        ],
        "messages": [
            _shown(each, full[each.message.key])
            for each in first
            if each.message.key in full  # else it was settled in between
        ],
    }


def replay(config: Config, recipient: str, keys: Sequence[str] | None, reason: str) -> str:
    """Send the messages again, all of them for None, and say what became of them."""
    with closing(Acts()) as sheet, Desk(config, recipient) as desk:
        desk.choose_on(sheet, keys or [], every=keys is None)
        desk.replay_all(sheet, reason=reason, operator=OPERATOR, seconds=WAIT)
        ended = Counter(result.value for _, result in sheet.results())
    return "replayed: " + (", ".join(f"{n} {what}" for what, n in ended.items()) or "nothing")


def drop(config: Config, recipient: str, keys: Sequence[str] | None, reason: str) -> str:
    """Give the messages up, all of them for None."""
    with closing(Acts()) as sheet, Desk(config, recipient) as desk:
        desk.choose_on(sheet, keys or [], every=keys is None)
        desk.drop_all(sheet, reason=reason, operator=OPERATOR)
        return f"dropped: {sum(result == DROPPED for _, result in sheet.said())}"


def _shown(planned: Planned, message: HeldMessage) -> dict[str, Any]:
    return {
        "key": message.key,
        "reason": message.reason,
        "error": message.error,
        "attempts": message.attempts,
        "replays": message.replays,
        "parked_at": message.parked_at,
        "traceback": message.traceback,
        "prospect": planned.prospect.value,
        "body": message.delivery.body.decode(errors="replace")[:BODY],
    }
