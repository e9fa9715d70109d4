"""Show any number of rows: the first ones and what more there is, or a line for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from delivery.visible import visible

__all__ = ["ROWS", "lines", "rest"]

ROWS = 1_000  # of one table; of the rows that columns are measured on
NAMED = 10  # kinds that are counted by name


def lines(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Give a heading and a line a row; no column but the last is cut or wrapped.

    Columns are as wide as in the first ROWS rows: no more of them are in memory.
    """
    left = iter(rows)
    first = list(islice(left, ROWS))
    widths = [max(map(len, column)) for column in zip(columns, *first, strict=True)]
    for row in chain([columns], first, left):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def rest(shown: int, kinds: Mapping[str, int]) -> Iterator[str]:
    """Say how many more there are than those *shown*, of which kinds, and how to see them."""
    count = sum(kinds.values())
    if count <= shown:
        return
    named = [f"{visible(kind)}: {many:,}" for kind, many in islice(kinds.items(), NAMED)]
    others = len(kinds) - len(named)
    yield f"and {count - shown:,} more; of all {count:,}:"
    yield from (f"  {name}" for name in named)
    if others:
        yield f"  {others:,} more kinds"
    yield "every one, a line each: --all; for machines: --json; of one reason: --group REASON"
