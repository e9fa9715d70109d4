"""Ask the management plugin about several queues in one question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from delivery.management import Management

__all__ = ["listed"]

LONGEST = 900  # bytes of a pattern: of one with 2,000 RabbitMQ 4.3.6 says that it is too long


def listed(management: Management, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what is told of those of *names* that the plugin has heard of. Raises OSError.

    Asked one by one, each takes it 40 ms.
    """
    heard = dict[str, dict[str, Any]]()
    for pattern in _patterns(names):
        query = f"page=1&page_size=500&use_regex=true&name={quote(pattern, safe='')}"
        told, _ = management.get(f"/api/queues/{management.vhost}?{query}")
        try:
            heard |= {each["name"]: each for each in told["items"]}
        except (KeyError, TypeError) as error:
            raise OSError(f"no queues there: {error!r}") from error
    return {name: heard[name] for name in names if name in heard}


def _patterns(names: Sequence[str]) -> Iterator[str]:
    """Give regular expressions that fit *names*, and the same in capitals."""
    words = list[str]()
    for word in map(re.escape, names):
        if words and len("|".join([*words, word]).encode()) > LONGEST:
            yield f"^({'|'.join(words)})$"
            words = []
        words.append(word)
    if words:
        yield f"^({'|'.join(words)})$"
