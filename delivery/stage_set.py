"""Set the demo's stage: processes on a broker, each with a line of its own that can be cut."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from delivery.belongings import own_folder
from delivery.broker import Broker
from delivery.cast import cast_of
from delivery.config import Config
from delivery.connection import BrokerUnavailable, connect
from delivery.parking import Parking, remove
from delivery.process import free_ports
from delivery.routes import RECIPIENTS
from delivery.stagehand import Stagehand, remove_from_broker
from delivery.stopping import Stop
from delivery.terminal import say
from delivery.wiretap import Wiretap

__all__ = ["RETRIES_MS", "stage_set"]

RETRIES_MS = (1_000, 2_000)
PREFETCH = 5  # few in hand: a queue is seen to grow
HEARTBEAT = 30  # seconds


@contextlib.contextmanager
def stage_set(
    environ: Mapping[str, str],
    broker: Broker,
    stop: Stop,
    parking_of: Callable[[str], Parking | None] = lambda _: None,
) -> Iterator[tuple[Config, Stagehand, str]]:
    """Give the settings, who moves the processes, and the API's address; remove all afterwards.

    *parking_of* an exchange is where what no queue wants is kept, if somebody declares that place.
    """
    with own_folder("live-", say) as data:
        namespace = f"live-{uuid.uuid4().hex[:8]}"
        config = Config.on(broker, data, namespace=namespace, retries_ms=RETRIES_MS)
        config = replace(config, parking=parking_of(config.exchange))
        cast = cast_of(config, environ, stop)
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
            with contextlib.suppress(BrokerUnavailable):  # what was on it is gone with it
                remove_from_broker(config)
                with connect(config.named("demo")) as connection:
                    remove(connection, config.parking, config.management)
