"""Keep how this process is, by what it logs, where a command on the same machine can read it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from dataclasses import asdict
from pathlib import Path

from delivery.store import StoreUnavailable
from delivery.vitals import State, Vital, clear, judged

__all__ = ["Health"]

BEAT = 1.0  # seconds between two signs of life


class Health(logging.Handler):
    """Follows the package's log records, and keeps a file in *folder*; close it.

    The file's lock is the kernel's, so it ends with the process: what a crash leaves behind is
    known to be nobody's. Raises StoreUnavailable if there can't be such a folder.
    """

    def __init__(self, process: str, folder: Path) -> None:
        super().__init__()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"can't use the folder {folder}: {error}") from error
        self._process, self._host = process, socket.gethostname()
        self._beaten = time.monotonic()
        clear(folder, process)
        self._path = folder / f"{process}@{self._host}@{os.getpid()}.health"
        self._file = self._path.open("wb", buffering=0)  # what can't be written is not kept, either
        self._written = False
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._set(State.STARTING, "")

    def emit(self, record: logging.LogRecord) -> None:
        """Take over what the record says about the connection."""
        fields = vars(record)
        match record.getMessage().rpartition("."):
            case ("connection", _, "lost") | ("channel", _, "closed") | ("consuming", _, "ended"):
                self._set(State.RECONNECTING, str(fields.get("error", "")))
            case ("access", _, "refused"):
                self._set(State.REFUSED, str(fields.get("error", "")))
            case ("store", _, "unavailable") | ("copy", _, "not_confirmed"):
                self._set(State.PAUSED, str(fields.get("error", "")))
            case ("connection", _, "blocked"):
                self._set(State.BLOCKED, str(fields.get("reason", "")))
            case ("connection", _, "unblocked") | (_, _, "resumed"):
                self._set(State.READY, "")
            case (self._process, _, "ready"):
                self._set(State.READY, "")
            case (_, _, "paused"):
                self._set(State.PAUSED, str(fields.get("reason") or fields.get("error", "")))

    def beat(self) -> None:
        """Give a sign of life; call it in the loop that does the work."""
        if (now := time.monotonic()) - self._beaten >= BEAT:
            self._beaten = now
            if not self._written:
                self._write()
            with contextlib.suppress(OSError):  # a full disk must not stop the work
                os.utime(self._file.fileno())

    @property
    def vital(self) -> Vital:
        """How the process is now."""
        quiet = time.monotonic() - self._beaten
        return judged(self._vital, quiet)

    def close(self) -> None:
        """Remove the file."""
        super().close()
        self._path.unlink(missing_ok=True)
        self._file.close()

    def _set(self, state: State, reason: str) -> None:
        now = time.time()
        self._vital = Vital(self._process, state, reason, now, os.getpid(), self._host)
        self._beaten = time.monotonic()
        self._write()

    def _write(self) -> None:
        """Write the file; what a full disk leaves of it is no state, and read as such."""
        text = json.dumps(asdict(self._vital) | {"state": self._vital.state.value}).encode()
        self._written = False
        with contextlib.suppress(OSError):
            self._file.seek(0)
            self._file.truncate()
            self._written = self._file.write(text) == len(text)
