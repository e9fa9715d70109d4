"""The command that finds what a recipient never settled, and sends it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from delivery.terminal import JsonList, Terminal, operator, say

if TYPE_CHECKING:
    from delivery.config import Config
    from delivery.feed import Feed, Published
    from delivery.sides import PublisherSide

    Act = Callable[[Sequence[Published]], None]

__all__ = ["reconcile"]

REASON = "reconcile: no receipt, and neither dead nor parked"
WORD_EVERY = 2.0  # seconds between two words about the progress


@dataclass
class _Kept:
    """The events that wait for an operator, so that none of them is lost."""

    dead: set[str]
    parked: set[str]
    left_out: int = 0  # parked, and otherwise missing


def reconcile(
    context: typer.Context,
    recipient: Annotated[str, typer.Argument(help="catalog or audit")],
    feed: Annotated[
        str,
        typer.Option(
            envvar="DELIVERY_FEED",
            help="Where the publisher's API is, such as http://127.0.0.1:8080;"
            " without it, the publisher's file in the data folder is read.",
        ),
    ] = "",
    grace: Annotated[
        float, typer.Option(min=0, help="Leave alone what was confirmed within so many seconds.")
    ] = 60.0,
    page: Annotated[
        int, typer.Option(min=1, max=1000, help="Events to read, and to send, at a time.")
    ] = 500,
    apply: Annotated[bool, typer.Option("--apply", help="Send them; without it: plan.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Find accepted events that a recipient never settled, and (--apply) send them to it again.

    It heals what a broker lost, and gives a recipient that joins late its history. Safe at any
    time, and to run again after an interruption: what did arrive is recognised by its receipt.
    Events from before the last pruning of receipts are left out, and what is dead or parked.

    Example: delivery reconcile catalog --feed http://127.0.0.1:8080
    """
    from delivery.lookout import Lookout

    terminal: Terminal = context.obj
    config = terminal.config()
    config.route(recipient)  # an unknown recipient is named before anything else
    with ExitStack() as opened:
        source, publisher = _feed(terminal, feed, page, opened)
        with Lookout(config, recipient, sides=terminal.sides) as lookout:
            parked = lookout.parked_events()  # first: what leaves there may be dead next
            kept = _Kept(lookout.dead_events(), parked)
        act = _act(config, recipient, publisher, opened) if apply else None
        ids = _work(terminal, recipient, source, kept, grace=grace, act=act, opened=opened)
        if as_json:
            with JsonList({"recipient": recipient, "sent": apply}, "missing") as shown:
                for event_id in ids:
                    shown.add(event_id)
                shown.after["parked"] = kept.left_out
            return
        found = 0
        for found, event_id in enumerate(ids, start=1):  # noqa: B007 - the last number counts
            typer.echo(event_id)
    if grace:
        say(f"events confirmed less than {grace:g} s ago were left alone (--grace)")
    if kept.left_out:
        say(f"{recipient}: {kept.left_out} parked: {terminal.sides.command} unrouted list")
    done = "sent again" if apply else "to send again (plan only: add --apply)"
    say(f"{recipient}: {found} {done}")


def _feed(
    terminal: Terminal, url: str, page: int, opened: ExitStack
) -> tuple[Feed, PublisherSide | None]:
    """Return the feed, and the publisher's store if it is here: the trail is kept in it."""
    from delivery.errors import DeliveryError
    from delivery.feed_client import http_feed
    from delivery.stores import PUBLISHER

    if url:
        return http_feed(url, limit=page), None
    if terminal.elsewhere is None and not terminal.stores.path(PUBLISHER).exists():
        raise DeliveryError(
            f"the publisher keeps no file in {terminal.stores.data}: name its API, such as"
            " --feed http://127.0.0.1:8080"
        )
    publisher = opened.enter_context(closing(terminal.sides.publisher()))
    return publisher.feed(limit=page), publisher


def _act(config: Config, recipient: str, publisher: PublisherSide | None, opened: ExitStack) -> Act:
    """Return what sends a page's missing events again: announced first, its result kept last.

    The connection is opened with the first page that lacks something, and served by the others.
    """
    from delivery.pipeline import ConfirmedChannel
    from delivery.points import reach
    from delivery.reconcile import send_again

    channel: ConfirmedChannel | None = None

    def act(found: Sequence[Published]) -> None:
        nonlocal channel
        if not found:
            if channel:
                channel.serve()  # a long stretch without anything to send is no reason to lose it
            return
        if channel is None:
            channel = opened.enter_context(ConfirmedChannel(config.named("reconcile")))
        entries: list[int] = []
        if publisher is not None:
            ids = [(each.event_id, "") for each in found]
            entries = publisher.begin(
                "send again", recipient, ids, operator=operator(), reason=REASON
            )
            reach("reconcile.announced")
        send_again(channel, config.route(recipient), found)
        if publisher is not None:
            publisher.conclude((entry, "sent") for entry in entries)
            reach("reconcile.concluded")

    return act


def _work(
    terminal: Terminal,
    recipient: str,
    feed: Feed,
    kept: _Kept,
    *,
    grace: float,
    act: Act | None,
    opened: ExitStack,
) -> Iterator[str]:
    """Give the id of each missing event; with *act*, after it was sent. One page in memory."""
    from delivery.feed import pages
    from delivery.reconcile import missing_with

    looked, count, word = 0, 0, time.monotonic() + WORD_EVERY
    inbox = opened.enter_context(closing(terminal.sides.recipient(recipient)))
    for page in pages(feed):
        pruned = inbox.pruned()
        owed = missing_with(page, inbox.receipt, pruned=pruned, dead=kept.dead, grace=grace)
        found = [each for each in owed if each.event_id not in kept.parked]
        kept.left_out += len(owed) - len(found)
        if act is not None:
            act(found)
        yield from (each.event_id for each in found)
        looked, count = looked + len(page.events), count + len(found)
        if time.monotonic() >= word:
            say(f"  {looked} events looked at, {count} {'sent again' if act else 'missing'}")
            word = time.monotonic() + WORD_EVERY
