"""A few connections that many threads share, each used by one of them at a time."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, LifoQueue

from delivery.postgres import Connection
from delivery.store import StoreUnavailable

__all__ = ["Pool"]

MOST = 10  # connections; each is a process of the server's
WAIT = 5.0  # seconds for a free one


class Pool:
    """At most *most* connections, which *opened* opens when they are needed."""

    def __init__(self, opened: Callable[[], Connection], *, most: int = MOST) -> None:
        self._open = opened
        self._free: LifoQueue[Connection | None] = LifoQueue()
        for _ in range(most):
            self._free.put(None)

    @contextmanager
    def one(self) -> Iterator[Connection]:
        """Lend a connection for the block. Raises StoreUnavailable, also if none gets free."""
        try:
            store = self._free.get(timeout=WAIT)
        except Empty:
            raise StoreUnavailable("the database can't be used: all connections are busy") from None
        try:
            if store is not None and not _alive(store):
                store.close()
                store = None  # if none can be opened now, its place is free all the same
            store = store or self._open()
            yield store
        finally:
            self._free.put(store)

    def close(self) -> None:
        """Close what is not lent."""
        while not self._free.empty():
            if (store := self._free.get_nowait()) is not None:
                store.close()


def _alive(store: Connection) -> bool:
    if store.closed:
        return False
    # Nobody has asked it anything: what there is to read is the server's goodbye.
    waiting = select.poll()
    waiting.register(store.fileno(), select.POLLIN)
    return not waiting.poll(0)
