"""A recipient's whole handler."""

from __future__ import annotations

from delivery import audit, catalog
from delivery.handling import Handler
from delivery.inbox import once
from delivery.revision import latest_only
from delivery.routes import Route


def handler(route: Route) -> Handler:
    """Return the recipient's whole handler, as the package composes it."""
    if route.recipient == "catalog":
        return once(route, latest_only(catalog.upsert))
    return once(route, audit.append)
