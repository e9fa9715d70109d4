"""An exchange whose processes have a user each, with the rights that ``delivery access`` gives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from delivery.access import Access, accesses
from delivery.address import given_url
from delivery.broker import Broker
from delivery.config import Config
from delivery.connection import BrokerSettings
from delivery.management import Management
from delivery.passwords import file_for, passwords_for
from delivery.routes import routes_of
from delivery.users import apply, differences, remove
from support.exchange import Exchange, exchange_on


@dataclass
class Guarded:
    """The exchange as its owner sees it, and the environment of each role."""

    exchange: Exchange
    users: dict[str, Access]
    folder: Path

    @property
    def management(self) -> Management:
        found = self.exchange.config.management
        assert found is not None
        return found

    def environ(self, role: str) -> dict[str, str]:
        """What *role*'s process gets: an address without a password, and its password's file."""
        url = urlsplit(self.exchange.config.broker.url)
        plugin = urlsplit(self.exchange.config.management_url)
        host = url.netloc.rpartition("@")[2]
        return {
            "DELIVERY_AMQP_URL": f"{url.scheme}://{self.users[role].user}@{host}/%2F",
            "DELIVERY_AMQP_PASSWORD_FILE": str(file_for(self.folder, role)),
            "DELIVERY_MANAGEMENT_URL": f"http://{plugin.hostname}:{plugin.port}",
        }

    def config(self, role: str) -> Config:
        settings = BrokerSettings(url=given_url(self.environ(role)), name=role)
        return replace(self.exchange.config, broker=settings)

    def allow(self, role: str, **rights: str) -> None:
        """Set *role*'s rights to the planned ones, but for *rights*."""
        user = self.users[role]
        self.management.put(f"/api/permissions/%2F/{user.user}", user.patterns | rights)

    def differences(self) -> list[str]:
        passwords = passwords_for(self.users, {}, self.folder)
        return differences(self.management, "/", [*self.users.values()], passwords)

    def start(self, *roles: str) -> None:
        for role in roles:
            self.exchange.start(role, **self.environ(role))


@contextlib.contextmanager
def guarded_exchange(broker: Broker, folder: Path, namespace: str) -> Iterator[Guarded]:
    """Give each role its user; nothing is declared yet."""
    with exchange_on(broker, folder, namespace, declared=False) as exchange:
        config = exchange.config
        users = accesses(namespace, config.topology(), routes_of(namespace))
        found = Guarded(exchange, {each.role: each for each in users}, folder / "passwords")
        passwords = passwords_for(found.users, {}, found.folder, generate=True)
        try:
            apply(found.management, "/", users, passwords)
            yield found
        finally:
            remove(found.management, users)
