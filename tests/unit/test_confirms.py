"""The bookkeeping of messages in flight: every answer reaches exactly the message it is about."""

from __future__ import annotations

from support.events import event, message

from delivery.confirms import Answer, InFlight, NotConfirmed, Outcome


def in_flight(count: int) -> InFlight:
    flight = InFlight()
    for n in range(1, count + 1):
        assert flight.sent(message(event(event_id=f"e{n}"), "ns")) == n
    return flight


def outcomes(flight: InFlight) -> dict[int, Outcome]:
    return {tag: answer.outcome for tag, answer in flight.answers.items()}


def test_an_ack_answers_its_own_tag_only() -> None:
    """The tag is the channel's count of publishes, from 1."""
    flight = in_flight(3)

    flight.answered(2, multiple=False, ack=True)

    assert outcomes(flight) == {2: Outcome.CONFIRMED}
    assert list(flight.open) == [1, 3]


def test_multiple_answers_every_open_tag_up_to_its_own() -> None:
    """One frame may stand for many: whoever ignores ``multiple`` waits for ever."""
    flight = in_flight(4)

    flight.answered(3, multiple=True, ack=True)

    assert outcomes(flight) == dict.fromkeys((1, 2, 3), Outcome.CONFIRMED)
    assert list(flight.open) == [4]


def test_acks_out_of_order_find_their_messages() -> None:
    """The order seen on the wire (return 2, ack 2, return 4, ack 4, ack 3 with multiple)."""
    flight = in_flight(4)

    flight.returned("e2", "no route")
    flight.answered(2, multiple=False, ack=True)
    flight.returned("e4", "no route")
    flight.answered(4, multiple=False, ack=True)
    flight.answered(3, multiple=True, ack=True)

    assert outcomes(flight) == {
        1: Outcome.CONFIRMED,
        2: Outcome.RETURNED,
        3: Outcome.CONFIRMED,
        4: Outcome.RETURNED,
    }
    assert not flight.open


def test_a_returned_message_is_not_confirmed_by_the_ack_that_follows() -> None:
    """The broker acks what it returned: that ack means nothing more."""
    flight = in_flight(1)

    flight.returned("e1", "312 NO_ROUTE")
    assert not flight.answers  # not before the ack: it ends the message's way

    flight.answered(1, multiple=False, ack=True)
    assert flight.answers == {1: Answer(Outcome.RETURNED, "312 NO_ROUTE")}


def test_a_return_covered_by_a_multiple_ack_stays_a_return() -> None:
    """``multiple`` answers a mixed range, each message by what is known of it."""
    flight = in_flight(3)

    flight.returned("e2", "no route")
    flight.answered(3, multiple=True, ack=True)

    assert outcomes(flight) == {1: Outcome.CONFIRMED, 2: Outcome.RETURNED, 3: Outcome.CONFIRMED}


def test_two_copies_of_one_message_are_returned_one_by_one() -> None:
    """A return names no tag: the oldest open copy that is not returned yet takes it."""
    flight = InFlight()
    same = message(event(event_id="e1"), "ns")
    flight.sent(same)
    flight.sent(same)

    flight.returned("e1", "first")
    flight.returned("e1", "second")
    flight.answered(2, multiple=True, ack=True)

    assert flight.answers == {
        1: Answer(Outcome.RETURNED, "first"),
        2: Answer(Outcome.RETURNED, "second"),
    }


def test_a_nack_is_refused() -> None:
    """The broker said no, with ``multiple`` to many at once."""
    flight = in_flight(2)

    flight.answered(2, multiple=True, ack=False)

    assert outcomes(flight) == {1: Outcome.REFUSED, 2: Outcome.REFUSED}


def test_what_is_open_when_the_connection_is_lost_is_unknown() -> None:
    """Not "failed": it may have arrived. What was answered before keeps its answer."""
    flight = in_flight(3)
    flight.answered(1, multiple=False, ack=True)
    flight.returned("e2", "no route")

    flight.lost("cable")

    assert flight.answers == {
        1: Answer(Outcome.CONFIRMED),
        2: Answer(Outcome.UNKNOWN, "cable"),
        3: Answer(Outcome.UNKNOWN, "cable"),
    }
    assert not flight.open


def test_an_answer_after_the_loss_changes_nothing() -> None:
    """A late confirm finds nobody: the message will be sent again elsewhere."""
    flight = in_flight(1)
    flight.lost("cable")

    flight.answered(1, multiple=True, ack=True)
    flight.answered(1, multiple=False, ack=True)

    assert outcomes(flight) == {1: Outcome.UNKNOWN}


def test_an_answer_for_a_tag_that_was_never_sent_is_ignored() -> None:
    """Nothing is invented, and ``multiple`` with a high tag takes only what is open."""
    flight = in_flight(1)

    flight.answered(9, multiple=False, ack=True)
    assert not flight.answers

    flight.answered(9, multiple=True, ack=True)
    assert outcomes(flight) == {1: Outcome.CONFIRMED}


def test_not_confirmed_names_the_queue_the_outcome_and_where_the_original_is() -> None:
    """Its reader knows that nothing is lost."""
    error = NotConfirmed(Answer(Outcome.RETURNED, "312 NO_ROUTE"), "ns.catalog.dead")

    assert str(error) == (
        "the copy for 'ns.catalog.dead' is not confirmed: returned (312 NO_ROUTE);"
        " the original stays where it is"
    )


def test_not_confirmed_without_the_brokers_words_ends_its_sentence_all_the_same() -> None:
    """A nack says nothing more; the answer itself is there for a program."""
    answer = Answer(Outcome.REFUSED)

    error = NotConfirmed(answer, "ns.catalog.dead")

    assert str(error) == (
        "the copy for 'ns.catalog.dead' is not confirmed: refused; the original stays where it is"
    )
    assert error.answer is answer
