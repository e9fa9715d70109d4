"""Note on a sheet of dead messages what was done with each, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from delivery.plan import Planned, Result
from delivery.sheet import LARGEST, PLANNED, Sheet, planned_of

__all__ = ["Acts"]

_ACTED = "key IN (SELECT key FROM act)"


class Acts(Sheet):
    """A sheet with results: a Result's value, or another sentence."""

    def begun(self, entry: int, key: str) -> None:
        """Note that *entry* of the operators' trail is an act on the message."""
        self._file.execute("INSERT INTO act VALUES (?, ?)", (entry, key))

    def left(self) -> int:
        """Count the messages that have no result yet."""
        return int(self._one("SELECT count(*) FROM dead WHERE result IS NULL"))

    def unsettled(self) -> Iterator[str]:
        """Give the keys of the messages that have no result yet."""
        return (key for page in self._pages("key", "result IS NULL") for _, key in page)

    def waiting(self) -> Iterator[Planned]:
        """Give the planned messages that have no result yet."""
        pages = self._pages(PLANNED, "result IS NULL")
        return (planned_of(*row) for page in pages for _, *row in page)

    def settle(self, key: str, result: str) -> None:
        """Note what became of the message."""
        self._note(result, "key = ?", key)

    def settle_acted(self, result: str) -> None:
        """Note one result for all that were acted on."""
        self._note(result, _ACTED)

    def settle_others(self, result: str) -> None:
        """Note one result for all that were not acted on."""
        self._note(result, f"NOT {_ACTED}")

    def settle_rest(self, result: str) -> None:
        """Note one result for all that have none yet."""
        self._note(result, "TRUE")

    def died(self, key: str, replays: int) -> None:
        """Note that the message is dead, sent *replays* times: again, if that is more than then."""
        self._note(Result.DEAD_AGAIN.value, "key = ? AND replays < ?", key, min(replays, LARGEST))

    def results(self) -> Iterator[tuple[Planned, Result]]:
        """Give each planned message and what became of it; last, those that were not there."""
        for page in self._in_turn(f"result, {PLANNED}"):
            yield from ((planned_of(*row), Result(result)) for _, result, *row in page)

    def said(self) -> Iterator[tuple[str, str]]:
        """Give each key once and what became of it; last, those that were not there."""
        once = "position = (SELECT min(position) FROM dead AS d WHERE d.key = dead.key)"
        for page in self._in_turn("key, result", once):
            yield from ((key, result) for _, key, result in page)

    def outcomes(self) -> set[str]:
        """Return what became of them, without saying of which."""
        return {result for (result,) in self._file.execute("SELECT DISTINCT result FROM dead")}

    def entries(self) -> Iterator[tuple[int, str]]:
        """Give each entry of the trail, and what came of it."""
        ask = "SELECT entry, (SELECT result FROM dead WHERE dead.key = act.key LIMIT 1) FROM act"
        return iter(self._file.execute(f"{ask} ORDER BY entry"))

    def _in_turn(self, columns: str, where: str = "TRUE") -> Iterator[list[Any]]:
        yield from self._pages(columns, f"{_ACTED} AND {where}")
        yield from self._pages(columns, f"NOT {_ACTED} AND {where}")

    def _note(self, result: str, where: str, *given: object) -> None:
        ask = f"UPDATE dead SET result = ? WHERE result IS NULL AND {where}"  # noqa: S608
        self._file.execute(ask, (result, *given))
