"""A program that outlives us and is known for sure: by pid, start time and boot."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Process", "free_ports", "spawn"]

_DEAD = "ZX"


@dataclass(frozen=True)
class Process:
    """A process that we started; a stranger that was given the same pid later is not it."""

    pid: int
    born: str

    @staticmethod
    def of(pid: int) -> Process:
        """Return the process that has this pid now."""
        return Process(pid, _look(pid)[1])

    @staticmethod
    def recorded(record: Path) -> Process | None:
        """Return the process that `spawn` wrote down there, None if there is no such note."""
        try:
            note = json.loads(record.read_text(encoding="utf-8"))
            return Process(int(note["pid"]), str(note["born"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    @staticmethod
    def with_home(home: Path) -> list[Process]:
        """Return what runs with *home* as its HOME, noted or not; empty where there is no /proc."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
                if f"HOME={home}".encode() in environ.read_bytes().split(b"\0"):
                    found.append(Process.of(int(environ.parent.name)))
        return found

    def alive(self) -> bool:
        """Say whether it runs; a zombie does not."""
        state, born = _look(self.pid)
        if born != self.born:
            return False
        if state in _DEAD:
            with contextlib.suppress(ChildProcessError):
                # Ours to bury, if it is our child; 0: some of its threads are not through yet.
                return os.waitpid(self.pid, os.WNOHANG)[0] == 0
            return False
        return True

    def kill(self, timeout: float = 10.0) -> None:
        """End it with SIGKILL, if it is still the one that we started, and see it gone."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        if not self.wait(timeout):
            raise TimeoutError(f"process {self.pid} is still there {timeout:g} s after SIGKILL")

    def wait(self, timeout: float) -> bool:
        """Wait until it is gone; say whether it is."""
        deadline = time.monotonic() + timeout
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def spawn(argv: Sequence[str], env: Mapping[str, str], log: Path, record: Path) -> Process:
    """Start a program in a session of its own, output to `log`, and note it in `record`.

    It keeps running when we end, and a Ctrl-C in our terminal does not reach it.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # Between the start and the note nothing may stop us: who would know of the process then?
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        pid = os.posix_spawn(
            argv[0],
            list(argv),
            dict(env),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGPIPE, signal.SIGTERM],
        )
        process = Process.of(pid)
        record.write_text(json.dumps(asdict(process)), encoding="utf-8")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return process


def free_ports(count: int) -> list[int]:
    """Choose TCP ports that nothing listens on at 127.0.0.1 now.

    They lie below the range from which systems draw the ports of outgoing connections. A port
    from that range could be lent to a client while our broker is down, even to the very client
    that knocks at it: TCP lets a connection answer itself.
    """
    found: list[int] = []
    for port in random.sample(range(20000, 32000), 1000):
        if len(found) == count:
            break
        with socket.socket() as probe:
            # As servers do: what waits in TIME_WAIT is free, what listens (even on 0.0.0.0) is not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found


def _look(pid: int) -> tuple[str, str]:
    """Return a process's state letter and when it was born, in words that no other repeats."""
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return "X", "never"
        state, *rest = stat.rpartition(")")[2].split()  # the name before it may hold anything
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return state, f"{rest[18]}@{boot}"
    ps = ["ps", "-o", "state=,lstart=", "-p", str(pid)]
    seen = subprocess.run(ps, capture_output=True, text=True, check=False).stdout.split(maxsplit=1)
    return (seen[0][0], seen[1].strip()) if len(seen) == 2 else ("X", "never")
