"""Carry on a trace that a request began, or begin one: the W3C's traceparent header."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TRACEPARENT", "continued", "parsed"]

TRACEPARENT = "traceparent"  # the header's name, over HTTP and on a message (W3C Trace Context)

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def parsed(text: str | None) -> tuple[str, str, str] | None:
    """Return trace id, span id and flags of a traceparent; None for what is none."""
    found = _FORM.fullmatch(text or "")
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    # Version ff is forbidden, 00 has four fields, later ones may have more; all zeros are invalid.
    if version == "ff" or (version == "00" and more) or not int(trace, 16) or not int(span, 16):
        return None
    return trace, span, flags


@contextmanager
def continued(text: str | None) -> Iterator[str]:
    """Give the traceparent for what is done now: the trace of *text*, else a new one."""
    # Sampled (01): whoever can record later steps may do so.
    trace, _, flags = parsed(text) or (secrets.token_hex(16), "", "01")
    yield f"00-{trace}-{secrets.token_hex(8)}-{flags}"
