"""The W3C's traceparent: what is one, and how a trace goes on."""

from __future__ import annotations

import pytest

from delivery.traceparent import continued, parsed

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    "text",
    [
        f"00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-00",
        f"cc-{TRACE}-{SPAN}-01-what-the-future-brings",
    ],
)
def test_a_trace_goes_on_under_a_span_of_our_own(text: str) -> None:
    """The same trace id and flags; another span; always in version 00."""
    with continued(text) as ours:
        version, trace, span, flags = ours.split("-")
    assert (version, trace, flags) == ("00", TRACE, text.split("-")[3])
    assert span != SPAN
    assert parsed(ours) is not None


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "nonsense", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-more"),
        *(f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01"),
        *(f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01\n", f"00-{TRACE}-{SPAN}-1"),
    ],
)
def test_what_is_no_traceparent_begins_a_new_trace(text: str | None) -> None:
    """Never a refused request, and never a broken header passed on."""
    assert parsed(text) is None
    with continued(text) as one, continued(text) as other:
        assert parsed(one) is not None
        assert parsed(one)[0] != parsed(other)[0] != TRACE  # type: ignore[index]
