"""Leave on a sheet of dead messages those that an operator chose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from delivery.errors import DeliveryError
from delivery.groups import full_key
from delivery.sheet import Sheet
from delivery.triage import DeadMessage

__all__ = ["choose"]


def choose(
    sheet: Sheet,
    dead: Iterable[DeadMessage],
    ids: Sequence[str],
    *,
    every: bool,
    group: str,
    absence: Callable[[str], str],
) -> None:
    """Write on *sheet* those of *dead* that *ids* name, those dead for one reason, or all.

    Raises DeliveryError if that is not one choice; for an id that is not dead (any more), saying
    its *absence*; and for a group that is empty.
    """
    if [bool(ids), every, bool(group)].count(True) != 1:
        raise DeliveryError(
            "say which messages: --id KEY (may be repeated), --group REASON, or --all"
        )
    sheet.write(dead)
    if ids:
        keys = {_full(word, sheet, absence) for word in ids}
        sheet.keep(lambda message: message.key in keys)
    if group:
        reasons = sheet.reasons()
        if group not in reasons:
            known = ", ".join(sorted(reasons)) or "no dead message at all"
            raise DeliveryError(f"no message is dead as {group!r}; there is: {known}")
        sheet.keep(lambda message: message.reason == group)


def _full(word: str, sheet: Sheet, absence: Callable[[str], str]) -> str:
    key = full_key(word, sheet)
    if key is None:
        raise DeliveryError(absence(word))
    return key
