"""Lint finds what the broker accepts without a word, and says what happens because of it."""

from __future__ import annotations

import pytest
from support.topics import TOPICS

from delivery.contract import EVENT_TYPE
from delivery.dead import dead_topology
from delivery.lint import Publisher, lint
from delivery.retry import retry_topology
from delivery.routes import events_exchange, routes_of, topology_of
from delivery.routing import matches
from delivery.topology import Binding, Exchange, Queue, Topology


def problems(topology: Topology, *publishers: Publisher) -> str:
    return "\n".join(str(problem) for problem in lint(topology, publishers))


def fed(*queues: Queue) -> Topology:
    """Return *queues*, each bound to one exchange under its own name."""
    return Topology(
        (Exchange("x"),), queues, tuple(Binding("x", queue.name, queue.name) for queue in queues)
    )


def dying_to(exchange: str, key: str | None = None, **more: object) -> dict[str, object]:
    arguments: dict[str, object] = {"x-dead-letter-exchange": exchange, **more}
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    return arguments


def test_the_packages_own_topology_has_no_problem() -> None:
    """What lint recommends, the package does."""
    routes = routes_of("ns")
    topology = topology_of(routes) + retry_topology(routes, (500, 5_000)) + dead_topology(routes)

    assert lint(topology, [Publisher(events_exchange("ns"), (EVENT_TYPE,))]) == []


@pytest.mark.parametrize(("pattern", "key", "taken"), TOPICS)
def test_topic_patterns_are_read_as_the_broker_reads_them(
    pattern: str, key: str, taken: bool
) -> None:
    """``*`` is exactly one word, ``#`` any number of words, none included."""
    assert matches(pattern, key) is taken


def test_a_dead_letter_target_that_is_no_queue_is_found() -> None:
    """The broker drops what dies there, without a word."""
    found = problems(fed(Queue("q", dying_to("", "q.daed"))))

    assert "queue 'q'" in found
    assert "routes nowhere" in found


def test_a_dead_letter_exchange_that_does_not_exist_is_found() -> None:
    """A declare does not check that the dead-letter exchange exists."""
    assert "routes nowhere" in problems(fed(Queue("q", dying_to("no-such", "q"))))


def test_a_dead_letter_without_a_key_keeps_the_old_one_which_may_route_nowhere() -> None:
    """Without x-dead-letter-routing-key the key a message came with must be bound there."""
    queue = Queue("q", dying_to("dlx"))
    unbound = fed(queue) + Topology(
        (Exchange("dlx"),), (Queue("dead"),), (Binding("dlx", "dead", "other"),)
    )
    bound = unbound + Topology(bindings=(Binding("dlx", "dead", "q"),))

    assert "with key 'q', which routes nowhere" in problems(unbound)
    assert problems(bound) == ""


def test_a_dead_letter_target_reached_through_a_fanout_is_fine() -> None:
    """A fanout takes every key."""
    topology = fed(Queue("q", dying_to("dlx"))) + Topology(
        (Exchange("dlx", "fanout"),), (Queue("dead"),), (Binding("dlx", "dead", ""),)
    )

    assert problems(topology) == ""


def test_a_binding_to_an_exchange_that_is_not_described_is_found() -> None:
    """Declaring it would fail half way."""
    topology = Topology(queues=(Queue("q"),), bindings=(Binding("missing", "q", "k"),))

    assert "binding 'missing' -> 'q': its exchange is missing" in problems(topology)


def test_a_binding_to_a_queue_that_is_not_described_is_found() -> None:
    """Declaring it would fail half way."""
    topology = Topology((Exchange("x"),), (), (Binding("x", "missing", "k"),))

    assert "binding 'x' -> 'missing': its queue is missing" in problems(topology)


def with_alternate(*bindings: Binding, kind: str = "fanout") -> Topology:
    return Topology(
        (Exchange("x", arguments={"alternate-exchange": "alt"}), Exchange("alt", kind)),  # type: ignore[arg-type]
        (Queue("lost"),),
        bindings,
    )


def test_a_missing_alternate_exchange_is_found() -> None:
    """The broker takes any name as an alternate exchange."""
    topology = Topology((Exchange("x", arguments={"alternate-exchange": "alt"}),))

    assert "its alternate exchange 'alt' is missing" in problems(topology)


def test_an_alternate_exchange_without_a_queue_is_found() -> None:
    """What no queue wants would vanish one exchange later."""
    assert "has no queue" in problems(with_alternate())


def test_an_alternate_exchange_that_is_no_fanout_is_found() -> None:
    """A topic or direct alternate may itself route nowhere."""
    topology = with_alternate(Binding("alt", "lost", "some.key"), kind="topic")

    assert "is a topic and may route nowhere" in problems(topology)


@pytest.mark.parametrize(("kind", "key"), [("direct", "#"), ("headers", "#"), ("topic", "*.#")])
def test_an_alternate_exchange_that_does_not_take_every_key_is_found(kind: str, key: str) -> None:
    """``#`` is a pattern for a topic exchange only; ``*.#`` does not take the empty key."""
    found = problems(with_alternate(Binding("alt", "lost", key), kind=kind))

    assert f"is a {kind} and may route nowhere" in found


def test_an_alternate_that_takes_every_key_is_fine() -> None:
    """These are the two shapes that lose nothing."""
    assert problems(with_alternate(Binding("alt", "lost", ""))) == ""
    assert problems(with_alternate(Binding("alt", "lost", "#"), kind="topic")) == ""


@pytest.mark.parametrize("limit", ["x-message-ttl", "x-max-length", "x-max-length-bytes"])
def test_a_limit_without_a_dead_letter_exchange_is_found(limit: str) -> None:
    """What exceeds it is gone, and nobody is told."""
    found = problems(fed(Queue("q", {limit: 1_000})))

    assert f"queue 'q': {limit} without a dead-letter exchange" in found


def test_a_length_limit_that_refuses_the_publisher_is_fine() -> None:
    """reject-publish tells a confirming publisher, so nothing is lost in silence."""
    assert problems(fed(Queue("q", {"x-max-length": 9, "x-overflow": "reject-publish"}))) == ""


def test_reject_publish_does_not_excuse_a_ttl() -> None:
    """Expiry has no publisher to refuse."""
    arguments = {"x-message-ttl": 9, "x-max-length": 9, "x-overflow": "reject-publish"}

    assert "without a dead-letter exchange" in problems(fed(Queue("q", arguments)))


@pytest.mark.parametrize("name", ["q.dead", "graveyard"])
def test_a_dead_queue_with_reject_publish_is_found(name: str) -> None:
    """The broker's own dead-lettering ignores the refusal: the message is lost."""
    dead = Queue(name, {"x-max-length": 10, "x-overflow": "reject-publish"})
    found = problems(fed(Queue("q", dying_to("", name))) + Topology(queues=(dead,)))

    assert f"queue '{name}': a dead queue that rejects when full loses" in found


def test_a_misspelt_argument_is_found() -> None:
    """The broker ignores an unknown x- argument of a queue and of an exchange."""
    topology = Topology(
        (Exchange("x", arguments={"alternate_exchange": "y"}),),
        (Queue("q", {"x-message-tll": 1_000}),),
    )

    assert "queue 'q': the broker ignores unknown argument 'x-message-tll'" in problems(topology)
    assert "exchange 'x': the broker ignores unknown argument" in problems(topology)


def test_a_thing_described_twice_differently_is_found() -> None:
    """The second declare would be refused by the broker."""
    topology = Topology(
        (Exchange("x"), Exchange("x", "fanout")), (Queue("q"), Queue("q", kind="quorum"))
    )

    assert "exchange 'x': is described twice" in problems(topology)
    assert "queue 'q': is described twice" in problems(topology)


def test_mandatory_without_confirms_is_found() -> None:
    """Without confirms a return comes later, or never, and stops nobody."""
    publisher = Publisher("x", ("q",), mandatory=True, confirms=False)

    assert "mandatory without confirms" in problems(fed(Queue("q")), publisher)


def test_a_published_key_that_reaches_no_queue_is_found() -> None:
    """A typing error in a key is found before the first message."""
    assert "key 'p' reaches no queue" in problems(fed(Queue("q")), Publisher("x", ("q", "p")))


def test_a_publisher_to_a_missing_exchange_is_found() -> None:
    """Its channel would be closed with 404."""
    found = problems(fed(Queue("q")), Publisher("y", ("q",)))

    assert "publisher to 'y': its exchange is missing" in found


def test_publishing_to_the_default_exchange_is_checked_against_the_queues() -> None:
    """The default exchange routes by queue name."""
    assert problems(fed(Queue("q")), Publisher("", ("q",))) == ""
    assert "reaches no queue" in problems(fed(Queue("q")), Publisher("", ("r",)))


def test_each_problem_says_what_to_do() -> None:
    """A finding without a way out is noise."""
    topology = fed(Queue("q", {"x-max-length": 1, "x-typo": 1, **dying_to("no-such")}))

    assert lint(topology)
    assert all(problem.fix and problem.what and problem.thing for problem in lint(topology))
