"""Run a coroutine to its end, also where a browser test has left its loop in this thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run(asked: Coroutine[Any, Any, T]) -> T:
    """Return what *asked* returns, or raise what it raises; it has a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, asked).result()
