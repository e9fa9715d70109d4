"""Lesson 07: try again later, and alone. Run it: python lessons/07/run.py"""

from __future__ import annotations

import sqlite3
import time
from datetime import UTC, datetime

from pika.adapters.blocking_connection import BlockingChannel

from delivery.codec import encode
from delivery.connection import BrokerSettings, connect
from delivery.consumer import Settlement, consume
from delivery.contract import EVENT_TYPE, Event, MaterialPublished, material_published
from delivery.handling import Delivery, Effect
from delivery.lesson import Scene, play
from delivery.pipeline import ConfirmedChannel
from delivery.publisher import properties_of
from delivery.retry import ATTEMPT_HEADER, attempt_of, retry_later, retry_queue, retry_topology
from delivery.routes import Route, routes_of, topology_of
from delivery.stopping import Stop
from delivery.store import open_store
from delivery.topology import declare

SHORT, LONG = 1_000, 5_000  # milliseconds: the wait after the first failed attempt, and the second
DATA = MaterialPublished(
    material_id="lesson-07",
    revision=1,
    title="Повтори позже",
    slug="retry-later",
    author="Delivery",
    published_at=datetime(2026, 1, 31, tzinfo=UTC),
)


def two_events(scene: Scene, channel: BlockingChannel) -> Route:
    """Publish "old", whose first attempt has failed before, and "new"; return catalog's route."""
    route, other = routes_of(scene.namespace)
    declare(channel.connection, topology_of([route, other]))
    channel.confirm_delivery()
    for name, attempt in (("old", 2), ("new", 1)):
        about = properties_of(event := material_published(name, DATA))
        about.headers = {ATTEMPT_HEADER: attempt}
        channel.basic_publish(route.exchange, event.type, encode(event), about, mandatory=True)
    return route


def ready(channel: BlockingChannel, queue: str, at_least: int = 0) -> int:
    """Return how many messages are ready; wait at most 5 s for as many as there should be."""
    end, count = time.monotonic() + 5, -1
    while count < at_least and time.monotonic() < end:
        count = int(channel.queue_declare(queue, passive=True).method.message_count)
    return count


def broken(scene: Scene) -> None:
    """What fails goes back at once; or it waits in a queue for all delays, and returns to all."""
    with connect(BrokerSettings(url=scene.url)) as connection:
        route = two_events(scene, channel := connection.channel())
        channel.basic_qos(prefetch_count=1)
        tried, begun = [], time.monotonic()
        for method, about, _ in channel.consume(route.queue):
            tried.append(about.message_id)
            channel.basic_nack(method.delivery_tag or 0, requeue=True)  # the mistake
            if len(tried) == 200:
                break
        quick = time.monotonic() - begun < 10  # a busy machine may need more than one
        scene.fact("back at once, of 200 tries the old message had", tried.count("old"), 200)
        scene.fact("back at once, of 200 tries the new one behind it had", tried.count("new"), 0)
        scene.fact("back at once, 200 tries in less than 10 seconds", quick, True)
        channel.cancel()
        channel.basic_qos(prefetch_count=10)

        to_all = {"x-dead-letter-exchange": route.exchange}  # the mistake: expired ones go to all
        to_all["x-dead-letter-routing-key"] = EVENT_TYPE
        waiting = scene.name("waiting")
        channel.queue_declare(waiting, durable=True, arguments=to_all)
        begun, back = time.monotonic(), {}
        for delay in (LONG, SHORT):
            method, about, body = next(channel.consume(route.queue))
            about.expiration = str(scene.ms(delay))  # the mistake: two waits in one queue
            channel.basic_publish("", waiting, body, about)
            channel.basic_ack(method.delivery_tag or 0)
        for _ in range(2):
            about = next(channel.consume(route.queue))[1]
            back[about.message_id] = (time.monotonic() - begun) * 1000
        late = back["new"] >= scene.ms(LONG)
        channel.cancel()
        scene.fact("one queue for all delays, back in this order", [*back], ["old", "new"])
        scene.fact("one queue for all delays, the short wait was the long one", late, True)
        got = ready(channel, f"{scene.namespace}.audit", at_least=4)
        scene.fact("back to all, of 2 events audit, which did not fail, got", got, 4)


def fixed(scene: Scene) -> None:
    """Each delay has a queue that leads back to one recipient, and the attempts are counted."""
    tries: list[str] = []
    given_up: dict[str, int] = {}
    stop = Stop()

    def failing(event: Event, tx: sqlite3.Connection) -> Effect:
        tries.append(event.id)
        raise TimeoutError("something that the catalog needs is away")

    def give_up(delivery: Delivery, error: Exception) -> Settlement:
        given_up[delivery.message_id] = attempt_of(delivery)
        if len(given_up) == 2:
            stop.request()
        return Settlement.ELSEWHERE  # it is nowhere: lesson 08 keeps it

    settings, delays = BrokerSettings(url=scene.url), [scene.ms(SHORT), scene.ms(LONG)]
    with connect(settings) as connection, ConfirmedChannel(settings) as copies:
        route = two_events(scene, channel := connection.channel())
        declare(connection, retry_topology([route], delays))  # the cure
        policy = retry_later(copies, route, delays, exhausted=give_up)  # the cure
        store, begun = open_store(scene.folder / "catalog.sqlite3"), time.monotonic()
        serve = copies.serve  # keeps the second connection alive meanwhile
        queue = route.queue
        consume(
            channel, queue, store, failing, on_failure=policy, stop=stop, meanwhile=serve, idle=30
        )
        waited = (time.monotonic() - begun) * 1000 >= sum(delays)
        scene.fact("tries in this order", tries, ["old", "new", "new", "old", "new"])
        scene.fact("given up after attempt", given_up, {"old": 3, "new": 3})
        scene.fact("the new one waited for both of its delays", waited, True)
        scene.fact("of 2 events audit got", ready(channel, f"{scene.namespace}.audit"), 2)


def cost(scene: Scene) -> None:
    """Kill the broker just after it has brought a message back."""
    settings, delay = BrokerSettings(url=scene.url), [scene.ms(500)]
    route, other = routes_of(scene.namespace)
    with connect(settings) as connection, ConfirmedChannel(settings) as copies:
        declare(connection, topology_of([route, other]) + retry_topology([route], delay))
        event = material_published("event-1", DATA)
        for queue in (retry_queue(route, 1), other.queue):
            copies.move(encode(event), properties_of(event), to_queue=queue)
        channel = connection.channel()
        had = [ready(channel, queue, at_least=1) for queue in (route.queue, other.queue)]
    print(f"  back in the catalog's queue {had[0]}; in audit's, by a confirmed publish {had[1]}")
    scene.broker.kill()
    scene.broker.start()
    with connect(settings) as connection:
        channel = connection.channel()
        left = [ready(channel, queue) for queue in (route.queue, other.queue)]
    print(f"  RabbitMQ {scene.broker.version} killed and started again: {left[0]} and {left[1]}")


if __name__ == "__main__":
    play(broken, fixed, cost)
