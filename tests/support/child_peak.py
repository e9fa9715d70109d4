"""A child that runs commands of ours and prints how many bytes the objects of each took at most."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

from delivery import listing, sheet, triage
from delivery.cli import app

PAGE = 10  # messages


def peak(words: Sequence[str]) -> int:
    """Run ``delivery`` *words*; return the most bytes over what there was before."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        app(list(words), standalone_mode=False)
    return tracemalloc.get_traced_memory()[1] - before


def main(options: Sequence[str], commands: Sequence[str]) -> None:
    """Each once before, for a recipient without dead messages: what is imported stays."""
    triage.PAGE = sheet.PAGE = listing.ROWS = PAGE
    tracemalloc.start()
    for recipient in ("audit", "catalog"):
        found = [peak([*options, *shlex.split(each.format(recipient))]) for each in commands]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:7], sys.argv[7:])
