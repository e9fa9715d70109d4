"""Run the whole exchange for an audience: a page to watch it, and buttons to break it."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import sys
import tempfile
import uuid
import webbrowser
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from delivery import stage_desk
from delivery.books import accounts
from delivery.broker import Broker
from delivery.cast import Cast
from delivery.config import Config
from delivery.connection import BrokerSettings, connect
from delivery.demo import demo_broker, signals_restored
from delivery.live import Lookout
from delivery.live_page import install_page
from delivery.process import free_ports
from delivery.routes import RECIPIENTS
from delivery.serving import listen, run_server, url_of
from delivery.stage_door import Action, create_stage
from delivery.stage_messages import Messages
from delivery.stagehand import Stagehand, remove_from_broker
from delivery.stopping import Stop, stop_on_signals
from delivery.stores import Stores
from delivery.terminal import say
from delivery.wiretap import Wiretap

__all__ = ["play_live"]

RETRIES_MS = (1_000, 2_000)
STANDS_FOR = 30  # one second of the demo stands for so many of a service
PREFETCH = 5  # few in hand: a queue is seen to grow
HEARTBEAT = 30  # seconds


def play_live(
    environ: Mapping[str, str], state_folder: Path, *, port: int, open_browser: bool
) -> None:
    """Run until SIGINT or SIGTERM; what was started is removed then. Raises DeliveryError."""
    listener = listen("127.0.0.1", port)  # before a broker is started for nothing
    with contextlib.closing(listener), signals_restored():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        with demo_broker(environ, state_folder) as broker:
            say(f"broker: {broker.kind.value}, RabbitMQ {broker.version}")
            leaving = stop_on_signals()
            with _on_stage(environ, broker, leaving) as (config, hand, api_url):
                page = f"{url_of(listener)}/"
                app = _page(config, hand, api_url, leaving)
                say(f"live page at {page} (Ctrl-C ends the demo)")
                if open_browser and _has_screen(environ):
                    webbrowser.open(page)
                run_server(app, listener, leaving)


@contextlib.contextmanager
def _on_stage(
    environ: Mapping[str, str], broker: Broker, stop: Stop
) -> Iterator[tuple[Config, Stagehand, str]]:
    data = Path(tempfile.mkdtemp(prefix="delivery-live-"))
    config = Config(
        broker=BrokerSettings(url=broker.amqp_url),
        stores=Stores(data),
        namespace=f"live-{uuid.uuid4().hex[:8]}",
        retries_ms=RETRIES_MS,
        management_url=broker.management_url,
    )
    retries = ",".join(map(str, RETRIES_MS))
    options = ["--data", str(data), "--namespace", config.namespace, "--retries", retries]
    cast = Cast(options, {**environ, "DELIVERY_AMQP_URL": broker.amqp_url}, data / "logs", stop)
    (api_port,) = free_ports(1)
    prefetch = ["--prefetch", str(PREFETCH)]
    commands = {
        "api": ["api", "--port", str(api_port)],
        "relay": ["relay"],
        **{recipient: ["receive", recipient, *prefetch] for recipient in RECIPIENTS},
    }
    login = urlsplit(broker.amqp_url)
    user, password = login.username or "guest", login.password or "guest"
    try:
        with contextlib.ExitStack() as stack:
            taps = {
                name: stack.enter_context(
                    Wiretap(broker.amqp_url, user=user, password=password, heartbeat=HEARTBEAT)
                )
                for name in ("relay", *RECIPIENTS)
            }
            stack.enter_context(cast.curtain())
            hand = Stagehand(config, broker, cast, commands, taps)
            stack.callback(hand.wake_all)
            hand.start_all()
            yield config, hand, f"http://127.0.0.1:{api_port}"
    finally:
        remove_from_broker(config)
        shutil.rmtree(data, ignore_errors=True)


def _page(config: Config, hand: Stagehand, api_url: str, leaving: Stop) -> Any:
    token = secrets.token_urlsafe(32)
    lookout = Lookout(config.stores, lambda: config)
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
        "poison": lambda _: messages.poison(),
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
