"""The lines of one process to its broker: one wiretap for each address that it knows."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from delivery.addresses import addresses
from delivery.wiretap import Method, Trap, Wiretap

__all__ = ["Lines"]


class Lines:
    """What a wiretap can do, done to the lines to all nodes of *amqp_url*.

    A process that is given *url* knows as many addresses as there are nodes. Raises OSError if no
    port is free. Use it in a ``with`` block.
    """

    def __init__(self, amqp_url: str, *, user: str, password: str, heartbeat: int) -> None:
        self.taps = tuple(
            Wiretap(each, user=user, password=password, heartbeat=heartbeat)
            for each in addresses(amqp_url)
        )
        self.url = ",".join(tap.url for tap in self.taps)

    @property
    def seen(self) -> Counter[Method]:
        """Methods that came by, in either direction."""
        return sum((tap.seen for tap in self.taps), Counter[Method]())

    def set(self, trap: Trap) -> None:
        """Set a trap for the next frame that fits, whichever node it goes to or comes from."""
        for tap in self.taps:
            tap.set(trap)

    def disarm(self) -> None:
        """Take the trap away."""
        for tap in self.taps:
            tap.disarm()

    def cut(self) -> int:
        """Cut every connection, and return how many there were."""
        return sum(tap.cut() for tap in self.taps)

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Let nothing through, in neither direction, while the block runs; the lines stay open."""
        with contextlib.ExitStack() as stack:
            for tap in self.taps:
                stack.enter_context(tap.silence())
            yield

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        for tap in self.taps:
            tap.__exit__()
