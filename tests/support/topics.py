"""Topic patterns and keys, with what the broker says of each pair."""

from __future__ import annotations

# (pattern, key, does the broker route it?); tests/broker asks the broker itself.
TOPICS: list[tuple[str, str, bool]] = [
    ("a.b", "a.b", True),
    ("a.b", "a.c", False),
    ("a.*", "a.b", True),
    ("a.*", "a", False),
    ("a.*", "a.b.c", False),
    ("a.*", "a.", True),  # an empty word is a word ...
    ("*", "", False),  # ... but an empty key has no words
    ("#.*", "", False),
    ("", "", True),
    ("#", "", True),
    ("#", "a.b.c", True),
    ("a.#", "a", True),
    ("a.#", "a.b.c", True),
    ("a.#", "b", False),
    ("#.c", "a.b.c", True),
    ("#.c", "a.b", False),
    ("a.#.c", "a.c", True),
    ("a.#.c", "a.b.b.c", True),
    ("a.#.c", "a.b", False),
    ("#.b.#", "a.b.c", True),
    ("#.*", "a", True),
    ("*.#.*", "a", False),
    ("*.#.*", "a.b", True),
    ("material.published.*", "material.published.v1", True),
    ("material.published.*", "material.published", False),
]
