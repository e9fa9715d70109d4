"""How fast events move: the relay and the receivers beside ceilings and peers."""

from __future__ import annotations

from statistics import median

from bench import article_worker, ceilings, framework, ours
from bench.load import Place, events, fresh, place
from bench.scene import Contestant, Curve, Row, Scene, beside, interleaved

from delivery.codec import encode
from delivery.publisher import properties_of

RELAY = "relay: SQLite outbox -> confirmed -> marked"
RECEIVE = "receive: decode + receipt + effect committed, then ack"
CEILING, EACH = "pika pipelined, window 500", "pika BlockingChannel, a confirm each"
ARTICLE, FASTSTREAM = "article worker, PostgreSQL", "FastStream publisher"
BATCHES = (1, 10, 50, 100, 250, 500)
WINDOWS = (1, 10, 50, 100, 250, 500, 1000)


def relay(scene: Scene) -> list[Row]:
    """Relay beside pika's own pipelining, a confirm each, the article's worker, FastStream."""
    with place(scene.url) as at, article_worker.worker(at, scene.postgres) as article:
        made, few = events(scene.many(20_000)), events(scene.many(2_000))

        def one_by_one() -> float:
            bodies, properties = [encode(e) for e in few], [properties_of(e) for e in few]
            return ceilings.one_by_one(
                scene.url, at.route.exchange, few[0].type, bodies, properties
            )

        contestants: dict[str, Contestant] = {
            RELAY: lambda: ours.relayed(at, scene.folder, made),
            CEILING: lambda: at.publish(made),
            EACH: one_by_one,
            ARTICLE: lambda: article.relayed(len(few)),
            FASTSTREAM: lambda: framework.published(at, made),
        }
        found = interleaved(scene, {name: _emptied(at, run) for name, run in contestants.items()})
    return [
        beside(RELAY, found, RELAY, CEILING, target=">= 0.75 x"),
        beside(RELAY, found, RELAY, ARTICLE, target=">= 12 x"),
        beside(RELAY, found, RELAY, EACH),
        beside(RELAY, found, RELAY, FASTSTREAM),
    ]


def receive(scene: Scene) -> list[Row]:
    """Receive beside what its two parts allow one after the other, and beside FastStream."""
    with place(scene.url) as at:
        made, few = events(scene.many(20_000)), events(scene.many(2_000))

        def received(count: int, batch: int, latest: bool = False) -> Contestant:
            def run() -> float:
                at.fill(made if count == len(made) else few)
                return ours.received(at, fresh(scene.folder), count, batch=batch, latest=latest)

            return run

        def consumed() -> float:
            at.fill(made)
            return ceilings.consumed(scene.url, at.route.queue, len(made))

        def subscribed() -> float:
            at.fill(few)
            return framework.received(at, fresh(scene.folder), len(few))

        found = interleaved(
            scene,
            {
                "batch 100": received(len(made), 100),
                "consume": consumed,
                "sqlite": lambda: ceilings.stored(fresh(scene.folder), made),
                "latest": received(len(made), 100, latest=True),
                "batch 1": received(len(few), 1),
                "FastStream": subscribed,
            },
        )
    limit = 1 / (1 / median(found["consume"]) + 1 / median(found["sqlite"]))
    spelled = (
        f"1/(1/{median(found['consume']):,.0f} + 1/{median(found['sqlite']):,.0f}):"
        " pika consume, ack per 100; SQLite, 100 a commit"
    )
    found = {**found, spelled: [limit], "FastStream subscriber, a commit each": found["FastStream"]}
    return [
        beside(f"{RECEIVE}; batch 100", found, "batch 100", spelled, target=">= 0.6 x"),
        beside(f"{RECEIVE}, latest revision wins; batch 100", found, "latest", spelled),
        beside(f"{RECEIVE}; batch 1", found, "batch 1", "FastStream subscriber, a commit each"),
        beside(f"{RECEIVE}; batch 100", found, "batch 100", "FastStream subscriber, a commit each"),
    ]


def curves(scene: Scene) -> list[Curve]:
    """Throughput against batch and against window."""
    made, few = events(scene.many(10_000)), events(scene.many(1_000))
    batches = Curve("Throughput against batch", "batch", "events a second")
    windows = Curve("Throughput against window", "messages in flight", "events a second")
    with place(scene.url) as at:
        for batch in BATCHES:
            some = few if batch < 10 else made
            at.fill(some)
            rate = ours.received(at, fresh(scene.folder), len(some), batch=batch)
            batches.lines.setdefault("receive", []).append((batch, rate))
            at.purge()
            rate = ours.relayed(at, scene.folder, some, batch=batch)
            batches.lines.setdefault("relay", []).append((batch, rate))
        for window in WINDOWS:
            some = few if window < 10 else made
            at.purge()
            rate = ours.relayed(at, scene.folder, some, batch=1000, window=window)
            windows.lines.setdefault("relay", []).append((window, rate))
            at.purge()
            bodies, properties = [encode(e) for e in some], [properties_of(e) for e in some]
            rate = at.publish_raw(bodies, properties, window)
            windows.lines.setdefault("pika alone", []).append((window, rate))
    return [batches, windows]


def _emptied(at: Place, run: Contestant) -> Contestant:
    def emptied() -> float:
        at.purge()
        return run()

    return emptied
