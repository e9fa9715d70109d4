"""Publish a file of commands over HTTP, safe to run again."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from delivery.errors import DeliveryError

__all__ = ["Summary", "post", "publish_file", "read_commands"]


@dataclass(frozen=True)
class Summary:
    """How many lines were sent, and how they were answered."""

    lines: int
    accepted: int
    repeated: int


def read_commands(file: Path) -> list[dict[str, Any]]:
    """Return the publications in *file*, one JSON object a line.

    Raises DeliveryError, naming the line, before anything was sent.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeliveryError(f"can't read {file}: {error}") from error
    return list(_parsed(file, text))


def publish_file(file: Path, url: str, say: Callable[[str], None]) -> Summary:
    """Send each line of *file* to the API at *url*. Raises DeliveryError at the first refusal.

    The idempotency key follows from the line and its number, so running it again, say after an
    error half way, repeats the requests that were accepted and goes on from there.
    """
    commands = read_commands(file)
    accepted = repeated = 0
    for number, command in enumerate(commands, start=1):
        canonical = json.dumps([number, command], sort_keys=True)
        key = f"file-{hashlib.sha256(canonical.encode()).hexdigest()[:32]}"
        status, answer, again = post(url, command, key)
        if status != 202:
            raise DeliveryError(f"{file}, line {number}: {status} {answer.get('detail', answer)}")
        accepted, repeated = accepted + (not again), repeated + again
        if number % 20 == 0 or number == len(commands):
            say(f"  {number} of {len(commands)} sent")
    return Summary(len(commands), accepted, repeated)


def post(url: str, command: dict[str, Any], key: str) -> tuple[int, dict[str, Any], bool]:
    """Send one command; return the status, the answer, and whether it repeats an older one."""
    fields = dict(command)
    path = f"/materials/{quote(str(fields.pop('material_id', '')), safe='')}/publish"
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    try:
        site = urlsplit(url)
        connection = http.client.HTTPConnection(site.hostname or "", site.port, timeout=30)
        with closing(connection):
            connection.request("POST", path, json.dumps(fields).encode(), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DeliveryError(f"no API answers at {url} ({error}); start it: delivery api") from error
    return response.status, answer, response.getheader("Idempotency-Replayed") == "true"


def _parsed(file: Path, text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            command = json.loads(line)
        except ValueError as error:
            raise DeliveryError(f"{file}, line {number} is not JSON: {error}") from None
        if not isinstance(command, dict) or not isinstance(command.get("material_id"), str):
            raise DeliveryError(f"{file}, line {number}: expected an object with a material_id")
        yield command
