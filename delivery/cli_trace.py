"""The command that follows one event: trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from delivery.errors import DeliveryError
from delivery.terminal import Terminal, say, show_json

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["trace"]


def trace(
    context: typer.Context,
    word: Annotated[
        str, typer.Argument(metavar="ID", help="An event's, a request's or a material's id.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say where one event is: in the outbox, and with each recipient. Exit 1 if nobody knows it.

    Of a material, every event is listed (the latest 100). Without a broker the participants' files
    are read alone, and that is said.

    Example: delivery trace lesson-00
    """
    from delivery.connection import connect
    from delivery.errors import TemporaryError
    from delivery.whereabouts import confirm_dead, confirm_parked, follow

    terminal: Terminal = context.obj
    found = follow(terminal.sides, word)
    if not found:
        raise DeliveryError(f"no event, request or material has the id {word[:128]!r}")
    try:
        config = terminal.config()
        with connect(config.named("trace")) as connection:
            confirm_parked(config, connection, found)
            confirm_dead(config, connection, found)
    except (TemporaryError, DeliveryError) as error:
        say(f"the dead queues were not looked into: {error}")
    if as_json:
        show_json(found)
        return
    if len(found) > 1:
        typer.echo(f"{len(found)} events, matched by {found[0]['matched_by']}, oldest first")
    for each in found:
        for line in _lines(each):
            typer.echo(line)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    from delivery.visible import visible

    event_id, matched = found["event_id"], found["matched_by"]
    yield f"event {event_id}: {visible(found['material_id'])} revision {found['revision']}"
    yield f"  request {visible(found['request_id'])}" + (
        f" (matched by {matched})" if len(found["events"]) == 1 else ""
    )
    yield f"  accepted {_when(found['accepted_at'])}"
    yield f"  outbox: {_outbox(found)}"
    for recipient, standing in found["recipients"].items():
        yield f"  {recipient}: {visible(_standing(standing))}"


def _outbox(found: dict[str, Any]) -> str:
    attempts = f"{found['attempts']} attempt{'' if found['attempts'] == 1 else 's'}"
    if found["confirmed_at"] is not None:
        return f"confirmed {_when(found['confirmed_at'])} after {attempts}"
    if found["outcome"] is None:
        return "pending, not tried yet"
    detail = f" ({found['detail']})" if found["detail"] else ""
    again = f"; next attempt {_when(found['next_attempt_at'])}"
    return f"pending, {found['outcome']}{detail} after {attempts}{again}"


def _standing(found: dict[str, Any]) -> str:
    error = f": {found['error']}" if found.get("error") else ""
    match found["state"]:
        case "settled":
            more = f", {found['duplicates']} more copies" if found["duplicates"] else ""
            return f"{found['effect']} {_when(found['received_at'])}{more}"
        case "retry":
            until = _when(found["retry_at"])
            return f"waits for attempt {found['next_attempt']} until {until}{error}"
        case "due":
            return f"attempt {found['next_attempt']} is due since {_when(found['retry_at'])}{error}"
        case "dead":
            gone = "" if found.get("in_dead_queue", True) else ", but not in the dead queue now"
            return f"dead ({found['reason']}) since {_when(found['since'])}{gone}{error}"
        case "replayed" | "dropped":
            who = found["decisions"][-1]
            why = f"by {who['operator']} ({who['reason']})"
            return f"{found['state']} {_when(found['since'])} {why}; nothing seen after that"
    where = f" in {found['queue']}: no queue wanted it" if found["state"] == "parked" else ""
    return f"{found['state']}{where}{error}"


def _when(moment: float) -> str:
    import time

    if not moment:
        return "at an unknown time"
    ago = time.time() - moment
    if abs(ago) < 100:
        distance = f"{ago:.0f} s ago" if ago >= 0 else f"in {-ago:.0f} s"
    else:
        distance = f"{ago / 60:.0f} min ago" if ago >= 0 else f"in {-ago / 60:.0f} min"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment)) + f" ({distance})"
