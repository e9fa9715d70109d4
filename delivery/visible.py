"""Show a stranger's text without letting it move the cursor or forge a line."""

from __future__ import annotations

__all__ = ["visible"]


def visible(text: str) -> str:
    """Return *text* with every character that can't be seen as an escape sequence."""
    if text.isprintable():  # nearly always
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
