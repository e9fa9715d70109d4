"""Give a service's user a new password, and end the connections that know the old one."""

from __future__ import annotations

import os
import secrets
import urllib.error
from pathlib import Path
from urllib.parse import quote

from delivery.access import Access
from delivery.connection import describe
from delivery.errors import DeliveryError
from delivery.management import Management
from delivery.passwords import file_for, only_writer
from delivery.users import apply, differences, is_known

__all__ = ["disconnect", "rotate"]


def rotate(management: Management, vhost: str, access: Access, folder: Path) -> None:
    """Write a new password to *access*'s file in *folder*, then put it on the broker.

    Connections that are open go on; a new one needs the new password, which a service reads when
    it starts: restart it now. Its file is first: if this is cut off in between, `delivery access
    apply` puts on the broker what the file says. Raises DeliveryError or OSError, before anything
    is changed if the broker does not answer or this login may not do it.
    """
    file = file_for(folder, access.role)
    if not file.exists():
        raise DeliveryError(
            f"{access.role}'s password is not in {file}: change it where it is kept, then"
            " delivery access apply, then restart the service"
        )
    differences(management, vhost, [access], {})  # who may not see users may not change one
    with only_writer(folder):
        password = secrets.token_urlsafe(24)
        _write(file, password)
        try:
            apply(management, vhost, [access], {access.role: password})
        except (DeliveryError, OSError) as error:
            raise DeliveryError(
                f"{file} has a new password that the broker may not have: delivery access apply,"
                f" as soon as it can ({describe(error)})"
            ) from error


def _write(file: Path, password: str) -> None:
    new = file.with_suffix(".new")
    # Never readable for others, and the file is the old or the new one, whole.
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write(f"{password}\n")
        opened.flush()
        os.fsync(opened.fileno())
    new.replace(file)


def disconnect(management: Management, user: str) -> int:
    """Close *user*'s connections, and return how many there were. Raises OSError.

    A service comes back by itself, with the password that it read when it started. The plugin
    hears of a connection some seconds late. Raises DeliveryError for a user that there is not, and
    for a login that is no administrator's: it would be shown its own connections, and no other.
    """
    if not is_known(management, user):
        raise DeliveryError(f"the broker has no user {user!r}")
    told, _ = management.get("/api/connections")
    return sum(_closed(management, each["name"]) for each in told if each.get("user") == user)


def _closed(management: Management, name: str) -> bool:
    try:
        management.delete(f"/api/connections/{quote(name, safe='')}")
    except urllib.error.HTTPError as answer:
        if answer.code != 404:
            raise
        return False  # it has ended, and the plugin had not heard of that
    return True
