"""How many requests the API accepts: request, material and outbox row committed for each."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from statistics import median, quantiles

from bench.exchange import Exchange, exchange
from bench.scene import Row, Scene

CLIENTS = 8
SECONDS = 5.0


def rows(scene: Scene) -> list[Row]:
    """Eight clients, each with its next request as soon as the last one is answered."""
    rates, slowest = [], []
    with exchange(scene) as opened:
        opened.start("api")
        _accepting(opened, 0.5)
        for _ in range(scene.rounds):
            seconds = SECONDS if scene.size >= 1 else 2.0
            took = _accepting(opened, seconds)
            rates.append(len(took) / seconds)
            slowest.append(quantiles(took, n=100)[98] * 1000)
    work = f"API accepting, {CLIENTS} clients"
    return [
        Row(work, median(rates), "/s", target=">= 1000 /s"),
        Row(f"{work}: p99", median(slowest), "ms", target="<= 50 ms"),
    ]


def _accepting(opened: Exchange, seconds: float) -> list[float]:
    """Return how long each accepted request took, in seconds."""
    end = time.perf_counter() + seconds
    took: list[float] = []

    def client(number: int) -> None:
        with closing(opened.client()) as api:
            count = 0
            while (begun := time.perf_counter()) < end:
                api.publish(f"m-{number}-{count % 100}", "T" * 300)
                took.append(time.perf_counter() - begun)
                count += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return took
