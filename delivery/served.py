"""Hold a publisher's file for the APIs that serve it, or for whom none may serve it meanwhile."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from delivery.errors import DeliveryError

__all__ = ["StillServed", "served", "unserved"]


class StillServed(DeliveryError):
    """An API accepts into this file."""


@contextmanager
def served(store_path: Path) -> Iterator[None]:
    """Hold *store_path* as one of the APIs that serve it. Raises DeliveryError while it is copied.

    As with the relay's, the lock is the kernel's (flock): it dies with the process.
    """
    with _locked(store_path, fcntl.LOCK_SH) as free:
        if not free:
            raise DeliveryError(
                f"{store_path} is being copied to PostgreSQL: `delivery postgres api` is next"
            )
        yield


@contextmanager
def unserved(store_path: Path) -> Iterator[None]:
    """Hold *store_path* against every API. Raises StillServed if one serves it."""
    with _locked(store_path, fcntl.LOCK_EX) as free:
        if not free:
            raise StillServed(
                f"`delivery api` still accepts into {store_path}: stop it first, every one of them;"
                " its clients repeat what is refused"
            )
        yield


@contextmanager
def _locked(store_path: Path, how: int) -> Iterator[bool]:
    with Path(f"{store_path}.api-lock").open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
