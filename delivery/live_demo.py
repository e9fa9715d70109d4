"""Run the whole exchange for an audience: a page to watch it, and buttons to break it."""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from delivery import stage_desk
from delivery.books import accounts
from delivery.broker import Broker
from delivery.config import Config
from delivery.connection import connect
from delivery.demo import demo_broker, signals_restored
from delivery.live import Onlooker
from delivery.live_page import install_page
from delivery.parking import Parking
from delivery.serving import listen, run_server, url_of
from delivery.stage_door import Action, create_stage
from delivery.stage_messages import Messages
from delivery.stage_set import RETRIES_MS, stage_set
from delivery.stagehand import Stagehand
from delivery.stopping import Stop, stop_on_signals
from delivery.terminal import say

__all__ = ["beside", "play_live"]

STANDS_FOR = 30  # one second of the demo stands for so many of a service


def play_live(
    environ: Mapping[str, str],
    state_folder: Path,
    parking_of: Callable[[str], Parking | None],
    *,
    port: int,
    open_browser: bool,
) -> None:
    """Run until SIGINT or SIGTERM; what was started is removed then. Raises DeliveryError."""
    listener = listen("127.0.0.1", port)  # before a broker is started for nothing
    with contextlib.closing(listener), signals_restored():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        with demo_broker(environ, state_folder) as broker:
            say(f"broker: {broker.kind.value}, RabbitMQ {broker.version}")
            leaving = stop_on_signals()
            with stage_set(environ, broker, leaving, parking_of) as (config, hand, api_url):
                page = f"{url_of(listener)}/"
                app = _page(config, hand, api_url, leaving)
                say(f"for commands beside it, in another terminal: {beside(config, broker)}")
                say(f"live page at {page} (Ctrl-C ends the demo)")
                if open_browser and _has_screen(environ):
                    webbrowser.open(page)
                run_server(app, listener, leaving)


def beside(config: Config, broker: Broker) -> str:
    """Return what to type in a terminal whose commands shall act on the demo's exchange.

    The address of a broker that was given is not in it: it may hold somebody's password.
    """
    found = {
        "DELIVERY_DATA": str(config.stores.data),
        "DELIVERY_NAMESPACE": config.namespace,
        "DELIVERY_RETRIES_MS": ",".join(map(str, config.retries_ms)),
    }
    if broker.ours:
        found["DELIVERY_AMQP_URL"] = broker.amqp_url
        if broker.management_url:
            found["DELIVERY_MANAGEMENT_URL"] = broker.management_url
    return "export " + " ".join(f"{name}={quote(value)}" for name, value in found.items())


def _page(config: Config, hand: Stagehand, api_url: str, leaving: Stop) -> Any:
    token = secrets.token_urlsafe(32)
    lookout = Onlooker(config.stores, lambda: config)
    messages = Messages(config, api_url)

    def more() -> dict[str, object]:
        return {
            "mode": "demo",
            "cast": hand.state(),
            "scale": [f"{ms / 1000:g} s for {ms * STANDS_FOR // 1000} s" for ms in RETRIES_MS],
            "trouble": messages.trouble,
            "resets": hand.resets,
            "restartable": hand.restartable,
        }

    def reset() -> str:
        done = hand.reset()
        messages.trouble = False
        lookout.story.clear()
        return done

    app = create_stage(_actions(config, hand, messages, reset), token, lookout.story.tell, api_url)
    install_page(app, lookout, stopping=lambda: bool(leaving), more=more, token=token)
    return app


def _actions(config: Config, hand: Stagehand, messages: Messages, reset: Any) -> dict[str, Action]:
    return {
        "one": lambda order: messages.one(order.title),
        "burst": lambda _: messages.burst(),
        "old-revision": lambda _: messages.old_revision(),
        "duplicate": lambda _: messages.duplicate(),
        "poison": lambda order: messages.poison(order.title),
        "failing": lambda order: messages.failing(order.title),
        "heal": lambda _: messages.heal(),
        "unroutable": lambda _: messages.unroutable(),
        "mend": lambda _: messages.mend(),
        "start": lambda order: hand.start(order.name),
        "pause": lambda order: hand.pause(order.name),
        "kill": lambda order: hand.kill(order.name),
        "cut": lambda order: hand.cut(order.name),
        "restart-broker": lambda _: hand.restart_broker(),
        "reset": lambda _: reset(),
        "plan": lambda order: stage_desk.plan(config, order.name),
        "replay": lambda order: stage_desk.replay(config, order.name, order.keys, order.reason),
        "drop": lambda order: stage_desk.drop(config, order.name, order.keys, order.reason),
        "ledger": lambda _: _ledger(config),
    }


def _ledger(config: Config) -> str:
    with connect(config.named("ledger")) as connection:
        found = accounts(config, connection)
    lines = [
        f"{each.recipient}: difference {each.difference}, {each.dead} dead"
        + (f", {each.foreign_dead} dead that nobody accepted" if each.foreign_dead else "")
        for each in found
    ]
    return "every id looked at: " + "; ".join(lines)


def _has_screen(environ: Mapping[str, str]) -> bool:
    """Say whether a browser could show something: one for text would take the terminal."""
    return sys.platform == "darwin" or bool(
        environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")
    )
