"""How a process is, and where to read that from outside: a file that its lock keeps true."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["STALLED_AFTER", "State", "Vital", "clear", "healths", "judged"]

STALLED_AFTER = 30.0  # seconds without a sign of life; longer than any wait for a confirm


class State(enum.Enum):
    """How a relay or a recipient is."""

    STARTING = "starting"
    READY = "ready"
    RECONNECTING = "reconnecting"  # the broker can't be reached, or went away
    REFUSED = "refused"  # it can, but user, password, right or certificate must be mended
    BLOCKED = "blocked"  # the broker takes no messages (an alarm)
    PAUSED = "paused"  # not the broker's fault: the own store, or a copy that is not safe
    STALLED = "stalled"  # its loop gives no sign of life


@dataclass(frozen=True)
class Vital:
    """One process's state; ``since`` is in Unix seconds, ``reason`` is empty when it is well."""

    process: str
    state: State
    reason: str
    since: float
    pid: int
    host: str

    @property
    def alive(self) -> bool:
        """It works, or waits for what others must mend: a restart would not help."""
        return self.state is not State.STALLED


def healths(folder: Path, process: str) -> list[Vital]:
    """Return how each running *process* on this machine is; of all machines, if none is on this.

    A container's check is thus about the container's own process, also in a shared folder.
    """
    found = [vital for path in _files(folder, process) if (vital := _read(path))]
    return [vital for vital in found if vital.host == socket.gethostname()] or found


def _read(path: Path) -> Vital | None:
    end = time.monotonic() + 1.0
    while True:
        try:
            with path.open() as file:
                if _is_free(file.fileno()):
                    return None  # its process is gone
                fields = json.load(file)
                quiet = time.time() - os.fstat(file.fileno()).st_mtime
            return judged(Vital(**fields | {"state": State(fields["state"])}), quiet)
        except FileNotFoundError:
            return None
        except ValueError:  # it is being written at this moment
            if time.monotonic() > end:
                return _unwritten(path)
            time.sleep(0.01)


def _unwritten(path: Path) -> Vital:
    """Return how a process is that runs, and can't write how it is."""
    process, host, pid = path.stem.split("@")
    since = path.stat().st_mtime
    reason = "it can't write this file: is the disk full?"
    return Vital(process, State.PAUSED, reason, since, int(pid), host)


def judged(vital: Vital, quiet: float) -> Vital:
    """Return *vital*, but stalled if its loop has been *quiet* for too many seconds."""
    if vital.state in (State.READY, State.BLOCKED) and quiet > STALLED_AFTER:
        reason = f"no sign of life for {quiet:.0f} s"
        return Vital(**asdict(vital) | {"state": State.STALLED, "reason": reason})
    return vital


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def clear(folder: Path, process: str) -> None:
    """Remove the files of processes that are gone."""
    for path in _files(folder, process):
        with contextlib.suppress(FileNotFoundError), path.open() as file:
            if _is_free(file.fileno()):
                path.unlink()


def _files(folder: Path, process: str) -> Iterator[Path]:
    yield from sorted(folder.glob(f"{process}@*.health"))
