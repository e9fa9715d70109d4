"""The command that finds what a recipient never settled, and sends it again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

from delivery.terminal import JsonList, Terminal, say

if TYPE_CHECKING:
    from delivery.config import Config
    from delivery.feed import Feed

__all__ = ["reconcile"]

WORD_EVERY = 2.0  # seconds between two words about the progress


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
    Events from before the last pruning of receipts are left out.

    Example: delivery reconcile catalog --feed http://127.0.0.1:8080
    """
    from delivery.lookout import Lookout

    terminal: Terminal = context.obj
    config = terminal.config()
    config.route(recipient)  # an unknown recipient is named before anything else
    with ExitStack() as opened:
        source = _feed(config, feed, page, opened)
        with Lookout(config, recipient) as lookout:
            dead = lookout.dead_events()
        ids = _work(config, recipient, source, dead, grace=grace, apply=apply, opened=opened)
        if as_json:
            with JsonList({"recipient": recipient, "sent": apply}, "missing") as shown:
                for event_id in ids:
                    shown.add(event_id)
            return
        found = 0
        for found, event_id in enumerate(ids, start=1):  # noqa: B007 - the last number counts
            typer.echo(event_id)
    if grace:
        say(f"events confirmed less than {grace:g} s ago were left alone (--grace)")
    done = "sent again" if apply else "to send again (plan only: add --apply)"
    say(f"{recipient}: {found} {done}")


def _feed(config: Config, url: str, page: int, opened: ExitStack) -> Feed:
    from delivery.errors import DeliveryError
    from delivery.feed import store_feed
    from delivery.feed_client import http_feed
    from delivery.stores import PUBLISHER

    if url:
        return http_feed(url, limit=page)
    if not config.stores.path(PUBLISHER).exists():
        raise DeliveryError(
            f"the publisher keeps no file in {config.stores.data}: name its API, such as"
            " --feed http://127.0.0.1:8080"
        )
    return store_feed(opened.enter_context(closing(config.stores.open(PUBLISHER))), limit=page)


def _work(
    config: Config,
    recipient: str,
    feed: Feed,
    dead: set[str],
    *,
    grace: float,
    apply: bool,
    opened: ExitStack,
) -> Iterator[str]:
    """Give the id of each missing event; with *apply*, after it was sent. One page in memory."""
    from delivery.feed import pages
    from delivery.pipeline import ConfirmedChannel
    from delivery.reconcile import missing, send_again

    route, looked, count, word = config.route(recipient), 0, 0, time.monotonic() + WORD_EVERY
    inbox = opened.enter_context(closing(config.stores.open(recipient)))
    channel = None
    for page in pages(feed):
        found = missing(page, inbox, route, dead=dead, grace=grace)
        if apply and found:
            if channel is None:
                channel = opened.enter_context(ConfirmedChannel(config.named("reconcile")))
            send_again(channel, route, found)
        elif channel:
            channel.serve()  # a long stretch without anything to send is no reason to lose it
        yield from (each.event_id for each in found)
        looked, count = looked + len(page.events), count + len(found)
        if time.monotonic() >= word:
            say(f"  {looked} events looked at, {count} {'sent again' if apply else 'missing'}")
            word = time.monotonic() + WORD_EVERY
