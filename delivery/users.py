"""Put users and their rights on the broker through its management plugin, and compare them."""

from __future__ import annotations

import contextlib
import urllib.error
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from delivery.access import Access
from delivery.addresses import addresses
from delivery.errors import DeliveryError
from delivery.management import Management
from delivery.passwords import hashed, matches

__all__ = ["apply", "definitions", "differences", "is_known", "remove", "vhost_of"]

HASHING = "rabbit_password_hashing_sha256"


def vhost_of(amqp_url: str) -> str:
    """Return the virtual host that *amqp_url* names; of a cluster's nodes it is the same."""
    return unquote(urlsplit(addresses(amqp_url)[0]).path[1:]) or "/"


def apply(
    management: Management, vhost: str, users: Iterable[Access], passwords: Mapping[str, str]
) -> None:
    """Create each user, or set its password, tags and rights anew. Raises OSError.

    A connection that is open keeps what it has checked already: restart a service whose rights
    were taken away.
    """
    with _administrator():
        for access in users:
            user = _user(access, passwords)
            management.put(f"/api/users/{_part(access.user)}", user)
            rights = f"/api/permissions/{_part(vhost)}/{_part(access.user)}"
            management.put(rights, access.patterns)


def remove(management: Management, users: Iterable[Access]) -> None:
    """Delete the users that there are. Raises OSError."""
    for access in users:
        path = f"/api/users/{_part(access.user)}"
        if _get(management, path) is not None:
            management.delete(path)


def differences(
    management: Management, vhost: str, users: Sequence[Access], passwords: Mapping[str, str]
) -> list[str]:
    """Return one sentence for whatever is not as planned, too many rights as well as too few.

    A role that is not in *passwords* has its password left out. Raises OSError.
    """
    found = []
    for access in users:
        kept = _get(management, f"/api/users/{_part(access.user)}")
        if kept is None:
            found.append(f"{access.user}: no such user")
            continue
        if sorted(_tags(kept)) != sorted(access.tags):
            found.append(f"{access.user}: tags are {_tags(kept)}, planned {list(access.tags)}")
        known = passwords.get(access.role)
        if known is not None and not matches(known, kept["password_hash"]):
            found.append(f"{access.user}: another password")
        found += _wrong_rights(management, vhost, access)
    return found


def is_known(management: Management, user: str) -> bool:
    """Say whether the broker has *user*. Raises OSError, and DeliveryError if it is not told."""
    return _get(management, f"/api/users/{_part(user)}") is not None


def definitions(
    vhost: str, users: Iterable[Access], passwords: Mapping[str, str]
) -> dict[str, list[dict[str, str]]]:
    """Return a definitions file for the broker to import: users with hashes, and their rights."""
    return {
        "vhosts": [{"name": vhost}],
        "users": [{"name": access.user, **_user(access, passwords)} for access in users],
        "permissions": [
            {"user": access.user, "vhost": vhost, **access.patterns} for access in users
        ],
    }


def _wrong_rights(management: Management, vhost: str, access: Access) -> list[str]:
    """Compare the rights in *vhost*; any in another one are too many."""
    path = f"/api/users/{_part(access.user)}/permissions"
    kept = {each["vhost"]: each for each in _get(management, path) or ()}
    found = [f"{access.user}: rights in {other!r}, too" for other in kept if other != vhost]
    own = kept.get(vhost)
    if own is None:
        return [*found, f"{access.user}: no rights in {vhost!r}"]
    return found + [
        f"{access.user}: {kind} is {own[kind]}, planned {planned}"
        for kind, planned in access.patterns.items()
        if own[kind] != planned
    ]


def _user(access: Access, passwords: Mapping[str, str]) -> dict[str, str]:
    return {
        "password_hash": hashed(passwords[access.role]),
        "hashing_algorithm": HASHING,
        "tags": ",".join(access.tags),
    }


def _tags(user: Mapping[str, Any]) -> list[str]:
    tags = user["tags"]  # a list since 3.9, a text with commas before
    return [tag for tag in (tags.split(",") if isinstance(tags, str) else tags) if tag]


def _get(management: Management, path: str) -> Any:
    try:
        with _administrator():
            return management.get(path)[0]
    except urllib.error.HTTPError as answer:
        if answer.code == 404:
            return None
        raise


@contextlib.contextmanager
def _administrator() -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as answer:
        if answer.code not in (401, 403):
            raise
        raise DeliveryError(
            f"the management plugin answers {answer.code} to this login: to create users and to"
            " see their rights needs an administrator"
        ) from answer


def _part(name: str) -> str:
    return quote(name, safe="")
