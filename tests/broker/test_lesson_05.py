"""Lesson 05: what a reader that dies, or is told to stop, has done and what it gives back."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from support import child_reader, children
from support.children import KILLED
from support.consuming import World
from support.events import event
from support.recipients import effects, store_at
from support.waiting import wait_for


@pytest.mark.parametrize(
    ("point", "effects_then", "effects_later"),
    [("consumer.applied", 0, 1), ("consumer.committed", 1, 2)],
)
def test_a_reader_killed_around_its_commit_loses_nothing(
    world: World, point: str, effects_then: int, effects_later: int
) -> None:
    """Before the commit nothing is kept; after it the effect comes twice, until lesson 09."""
    world.declare(routes=[world.audit])
    world.publish(event())

    assert children.run(child_reader, world, die_at=[point, 1]) == KILLED
    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == effects_then
        wait_for(lambda: world.ready(world.audit.queue) == 1, "the broker has it back")

        assert children.run(child_reader, world) == 0
        assert effects(store) == effects_later
    assert world.ready(world.audit.queue) == 0


def test_sigterm_finishes_the_one_at_work_and_gives_back_the_rest(world: World) -> None:
    """Case 16: ten are prefetched, one is at work: it is committed and acked, nine are ready."""
    world.declare(routes=[world.audit])
    world.publish(*(event(f"m-{n}") for n in range(10)))
    begun = Path(f"{world.store_path(world.audit)}.begun")

    with children.start(child_reader, world, idle=None, slow=1.0) as child:
        try:
            wait_for(begun.exists, "the first handler is at work")
            wait_for(lambda: world.ready(world.audit.queue) == 0, "all ten are prefetched")
            child.terminate()
            assert child.wait(10) == 0
        finally:
            child.kill()

    with closing(store_at(world.store_path(world.audit))) as store:
        assert effects(store) == 1
    assert world.ready(world.audit.queue) == 9
