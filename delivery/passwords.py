"""A password for each role: from the environment, or from a file that only its owner can read."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from delivery.address import PASSWORD, PASSWORD_FILE, given_password
from delivery.errors import DeliveryError

__all__ = ["file_for", "hashed", "matches", "only_writer", "passwords_for"]

SALT = 4  # bytes; rabbit_password_hashing_sha256 (RabbitMQ, "Passwords")


def file_for(folder: Path, role: str) -> Path:
    """Return the file that keeps *role*'s password: a service is pointed to it by its name."""
    return folder / f"{role}.password"


def passwords_for(
    roles: Iterable[str], environ: Mapping[str, str], folder: Path, *, generate: bool = False
) -> dict[str, str]:
    """Return each role's password: DELIVERY_AMQP_PASSWORD_<ROLE>, else its file in *folder*.

    With *generate* a missing one is made up and written (mode 600). Raises DeliveryError: one is
    missing, or its file can be read by others.
    """
    found = {}
    for role in roles:
        own, file = f"{PASSWORD}_{role.upper()}", file_for(folder, role)
        given = environ.get(own)  # an empty one is none: the broker lets nobody in with it
        if not given and not file.exists():
            if not generate:
                raise DeliveryError(
                    f"no password for {role}: set {own}, write {file}, or --generate"
                )
            _write(file, secrets.token_urlsafe(24))
        found[role] = given or given_password({PASSWORD_FILE: str(file)})
    return found


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Wait for whoever else puts *folder*'s passwords on the broker.

    A file would have one's, and the broker the other's. Without the folder there are no files.
    """
    try:
        lock = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def hashed(password: str, salt: bytes | None = None) -> str:
    """Return what the broker keeps instead of *password*: it never travels, nor is it exported."""
    salt = secrets.token_bytes(SALT) if salt is None else salt
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def matches(password: str, kept: str) -> bool:
    """Say whether *kept* was made from *password*."""
    return secrets.compare_digest(hashed(password, base64.b64decode(kept)[:SALT]), kept)


def _write(file: Path, password: str) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Never readable for others, not for a moment.
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(f"{password}\n")
    except OSError as error:
        raise DeliveryError(f"can't write {file}: {error}") from error
