"""Several addresses of one cluster in one setting, separated by commas."""

from __future__ import annotations

import re

__all__ = ["addresses"]


def addresses(text: str) -> list[str]:
    """Return the AMQP URLs of *text*, in order; one URL is a list of one.

    Only a comma before the next amqp:// separates: a password may hold commas.
    """
    return [each.strip() for each in re.split(r",\s*(?=amqps?://)", text)]
