"""Measure what is lost when the broker is killed just after it brought messages back from a retry.

The way back from a classic retry queue is the broker's own dead-lettering, which nobody confirms.
Each run: confirmed messages wait in `catalog.retry.1`, expire, are seen in the catalog's queue, and
the broker gets SIGKILL a chosen time later. Started again, it is asked for what it still has. A
message that it has nowhere is lost; nobody consumes meanwhile. The broker is a sandbox of this
script's own: DELIVERY_BROKER=docker or node says which.

Example: python tests/bench/return_loss.py --runs 10 --gaps 0,0.5,1,1.5,2,3
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from statistics import median
from urllib.parse import urlsplit

from delivery.broker import Broker
from delivery.connection import BrokerSettings, connect
from delivery.errors import DeliveryError
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import envelope
from delivery.retry import retry_queue, retry_topology
from delivery.routes import Route, topology_of
from delivery.sandbox import disposable_broker
from delivery.topology import declare

ROUTE = Route("catalog", "return-loss")
DELAY_MS = 500
BODY = b"x" * 1024


class Watch:
    """Notes when the broker's end of a connection closes: the instant of its death."""

    def __init__(self, broker: Broker) -> None:
        site = urlsplit(broker.amqp_url)
        self._socket = socket.create_connection((site.hostname, site.port), timeout=30)
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self.at = 0.0
        self._thread.start()

    def _wait(self) -> None:
        try:
            while self._socket.recv(64):
                pass
        except OSError:
            pass
        self.at = time.monotonic()

    def close(self) -> float:
        self._thread.join(30)
        self._socket.close()
        return self.at


def bring_back(broker: Broker, ids: set[str]) -> float:
    """Let the messages expire; return when all of them were seen in the recipient's queue."""
    settings = BrokerSettings(url=broker.amqp_url)
    with connect(settings) as connection, ConfirmedChannel(settings) as copies:
        channel = connection.channel()
        for message_id in ids:
            about = envelope(message_id, "bench", timestamp=1, correlation_id="bench")
            copies.move(BODY, about, to_queue=retry_queue(ROUTE, 1))
        end = time.monotonic() + 30
        while channel.queue_declare(ROUTE.queue, passive=True).method.message_count < len(ids):
            if time.monotonic() > end:
                raise DeliveryError("the messages did not come back within 30 s")
        return time.monotonic()


def left(broker: Broker) -> Counter[str]:
    """Take what the broker has, wherever it is: what expires again comes back again."""
    found: Counter[str] = Counter()
    with connect(BrokerSettings(url=broker.amqp_url)) as connection:
        channel = connection.channel()
        end = time.monotonic() + 3 * DELAY_MS / 1000
        while time.monotonic() < end:
            method, about, _ = channel.basic_get(ROUTE.queue, auto_ack=True)
            if method is None or about is None:
                connection.sleep(0.05)
            else:
                found[str(about.message_id)] += 1
        waiting = channel.queue_declare(retry_queue(ROUTE, 1), passive=True).method.message_count
        if waiting:
            raise DeliveryError(f"{waiting} messages still wait for their retry")
    return found


def one_run(broker: Broker, gap: float, messages: int) -> dict[str, float]:
    """Kill the broker *gap* seconds after the return; say what was lost, and the measured gap."""
    ids = {f"m-{n}" for n in range(messages)}
    back = bring_back(broker, ids)
    watch = Watch(broker)
    time.sleep(max(0.0, back + gap - time.monotonic()))
    broker.kill()
    died = watch.close()
    broker.start()
    found = left(broker)
    lost, doubled = len(ids - found.keys()), sum(n - 1 for n in found.values())
    return {"gap": gap, "killed_after": round(died - back, 3), "lost": lost, "doubled": doubled}


def table(version: str, runs: list[dict[str, float]], messages: int) -> str:
    lines = [
        f"RabbitMQ {version}, {messages} messages in each run",
        "planned s  killed after s (median)  runs  runs with a loss  lost  of",
    ]
    for gap in sorted({run["gap"] for run in runs}):
        own = [run for run in runs if run["gap"] == gap]
        after = median(run["killed_after"] for run in own)
        bad = sum(run["lost"] > 0 for run in own)
        lost = sum(run["lost"] for run in own)
        lines.append(
            f"{gap:9.1f}  {after:23.2f}  {len(own):4}  {bad:16}  {lost:4}  {len(own) * messages}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10, help="runs for each gap (default 10)")
    parser.add_argument("--messages", type=int, default=20, help="messages a run (default 20)")
    parser.add_argument(
        "--gaps", default="0,0.5,1,1.5,2,3", help="seconds between return and kill, with commas"
    )
    parser.add_argument("--json", action="store_true", help="for machines: every run")
    options = parser.parse_args()
    try:
        gaps = [float(each) for each in options.gaps.split(",")]
    except ValueError:
        parser.error(f"--gaps {options.gaps!r}: expected seconds such as 0,0.5,1")
    if options.runs < 1 or options.messages < 1 or min(gaps) < 0:
        parser.error("--runs and --messages begin at 1, gaps at 0")
    runs = []
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    try:
        with disposable_broker(os.environ, say) as broker:
            with connect(BrokerSettings(url=broker.amqp_url)) as connection:
                declare(connection, topology_of([ROUTE]) + retry_topology([ROUTE], [DELAY_MS]))
            for number in range(options.runs):
                for gap in gaps:  # interleaved: a slow minute of the machine hits every gap alike
                    runs.append(one_run(broker, gap, options.messages))
                    say(f"  run {number + 1} of {options.runs}: {runs[-1]}")
            version = broker.version
    except DeliveryError as error:
        sys.exit(f"error: {error}")
    if options.json:
        print(
            json.dumps({"version": version, "messages": options.messages, "runs": runs}, indent=2)
        )
    else:
        print(table(version, runs, options.messages))


if __name__ == "__main__":
    main()
