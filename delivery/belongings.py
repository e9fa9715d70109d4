"""A folder of our own, with whatever runs in it: it is gone when we are, however we end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["clear_left", "left", "own_folder"]

OWNER = "owner.lock"
PATIENCE = 10.0  # seconds until nothing makes new files in a folder any more


@contextlib.contextmanager
def own_folder(name: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
    """Give a new folder and remove it, after what a killed process left of such ones.

    Its lock is the kernel's, and so dies with us. A small process of its own sees our end by the
    end of a pipe, and removes what we could not. Only if it dies as well, the next folder does.
    """
    clear_left(say)
    folder = Path(tempfile.mkdtemp(prefix=f"delivery-{name}")).resolve()
    new = folder / f"{OWNER}.new"
    with new.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(folder / OWNER)  # from its first moment it is held
        command = [sys.executable, "-m", "delivery.belongings", str(folder)]
        # A session of its own: what is sent to our group does not end it.
        with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
            try:
                yield folder
            finally:
                if not (folder / "broker.json").exists():  # else a broker may still run in it
                    shutil.rmtree(folder, ignore_errors=True)


def left() -> list[Path]:
    """Return the folders on this machine whose owner is dead."""
    found = sorted(Path(tempfile.gettempdir()).resolve().glob(f"delivery-*/{OWNER}"))
    return [path.parent for path in found if _is_free(path)]


def clear_left(say: Callable[[str], None]) -> None:
    """End and remove what dead owners left; what can't be removed now stays for the next time."""
    from delivery.errors import DeliveryError

    for folder in left():
        try:
            if remove(folder):
                say(f"removed {folder}, which a killed process had left")
        except DeliveryError as error:
            say(f"{folder}, which a killed process left, can't be removed: {error}")


def remove(folder: Path) -> bool:
    """End what runs in *folder* and delete it; False: its owner lives, or another one removes it.

    Raises NoDocker if it has a container, and no daemon answers.
    """
    from delivery.broker import load
    from delivery.launch import clear
    from delivery.node import Node

    with contextlib.suppress(FileNotFoundError), (folder / OWNER).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        clear(folder, load(folder / "broker.json"))
        for node in folder.glob("node-*"):
            Node.clear(node)
        end = time.monotonic() + PATIENCE
        while folder.exists() and time.monotonic() < end:  # a process that ends may still write
            shutil.rmtree(folder, ignore_errors=True)
        return True
    return False


def _is_free(path: Path) -> bool:
    try:
        with path.open() as lock:
            if os.fstat(lock.fileno()).st_uid != os.getuid():
                return False
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or gone, or another user's
        return False
    return True


if __name__ == "__main__":
    from delivery.errors import DeliveryError

    sys.stdin.read()
    with contextlib.suppress(DeliveryError):  # the next folder's start says it
        remove(Path(sys.argv[1]))
