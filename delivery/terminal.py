"""What every command of the CLI shares: its settings, its broker, and how it speaks."""

from __future__ import annotations

import dataclasses
import enum
import getpass
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from delivery.errors import DeliveryError

if TYPE_CHECKING:  # a help text must not wait for pika and pydantic
    from rich.console import Console

    from delivery.broker import Broker
    from delivery.config import Config
    from delivery.parking import Parking
    from delivery.sides import Sides
    from delivery.stores import Stores
    from delivery.topology import Topology

    Shape = Callable[[Topology], Topology]

__all__ = [
    "PARKINGS",
    "SHAPES",
    "JsonList",
    "Terminal",
    "console",
    "operator",
    "parking_for",
    "plain",
    "say",
    "show_json",
    "show_json_list",
]

# What --queues may say, and what loads the shape; a later lesson's module commands_* adds its own.
SHAPES: dict[str, Callable[[], Shape]] = {}
# Where an exchange keeps what no queue wants, and what a command about its stores begins with: a
# later lesson's module commands_* says it.
PARKINGS: list[Callable[[str, str], Parking]] = []


def _classic() -> Shape:
    from delivery.config import as_it_is

    return as_it_is


SHAPES["classic"] = _classic


@dataclasses.dataclass(frozen=True)
class Terminal:
    """The options given before the command; *environ* is read here and nowhere else.

    *elsewhere* is where the participants keep their tables, if not in files.
    """

    environ: Mapping[str, str]
    data: Path
    namespace: str
    retries_ms: str
    queues: str = "classic"
    elsewhere: Sides | None = None

    @property
    def stores(self) -> Stores:
        """The participants' files."""
        from delivery.stores import Stores

        return Stores(self.data)

    @property
    def sides(self) -> Sides:
        """The participants' stores, as an operator asks them."""
        from delivery.sides import sqlite_sides

        return self.elsewhere or sqlite_sides(self.stores)

    @property
    def shape(self) -> Shape:
        """What --queues makes of the topology. Raises DeliveryError for a kind that is unknown."""
        if self.queues not in SHAPES:
            raise DeliveryError(f"there are no {self.queues!r} queues: {' or '.join(SHAPES)}")
        return SHAPES[self.queues]()

    def config(self, *, start_broker: bool = False) -> Config:
        """Return the settings of the exchange, with the broker by the order of choice.

        A given one (DELIVERY_AMQP_URL) is taken as it is, also if it does not answer now: the
        processes wait for it. Raises BrokerUnavailable if there is none and *start_broker* does not
        allow to start one.
        """
        from delivery.connection import BrokerUnavailable
        from delivery.sandbox import broker_status, find_broker, given_broker

        broker = given_broker(self.environ)
        if broker is not None:
            pass
        elif start_broker:
            broker = find_broker(self.environ, self.data, say)
        else:
            found = broker_status(self.environ, self.data)
            if found is None:
                raise BrokerUnavailable(
                    "no broker is running here: start one with `delivery broker up`,"
                    " or set DELIVERY_AMQP_URL"
                )
            broker = found
        return self.config_on(broker)

    def config_on(self, broker: Broker | None) -> Config:
        """Return the settings of the exchange on *broker*; None: none is known, the files are."""
        from delivery.broker import Broker, Kind
        from delivery.config import Config, retries_of

        config = Config.on(
            broker or Broker(Kind.GIVEN, "", None, "unknown"),
            self.data,
            namespace=self.namespace,
            retries_ms=retries_of(self.retries_ms),
            shape=self.shape,
        )
        command = self.elsewhere.command if self.elsewhere else "delivery"
        return dataclasses.replace(config, parking=parking_for(config.exchange, command))


def parking_for(exchange: str, command: str = "delivery") -> Parking | None:
    """Return where an exchange keeps what no queue wants, if a later lesson has such a place.

    *command* is how a command about its stores begins.
    """
    return next((named(exchange, command) for named in PARKINGS), None)


def say(text: str) -> None:
    """Tell the person what is going on; standard output is for results."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def console(*, wrap: bool = False) -> Console:
    """Return the console for results; to *wrap*, where a screen drawn anew would cut lines off."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not wrap, markup=False, emoji=False)


def show_json(value: object) -> None:
    """Print *value* for machines."""
    print(json.dumps(value, default=plain, indent=2, ensure_ascii=False))  # noqa: T201


def show_json_list(values: Iterable[object]) -> None:
    """Print what show_json would print of the list: one after the other, none kept in memory."""
    separator = "["
    for value in values:
        text = json.dumps(value, default=plain, indent=2, ensure_ascii=False)
        print(separator, textwrap.indent(text, "  "), sep="\n", end="")  # noqa: T201
        separator = ","
    print("[]" if separator == "[" else "\n]")  # noqa: T201


class JsonList:
    """Print an object with a list in it, element by element: none is kept in memory.

    Use it in a ``with`` block; what ends by an error is not closed, and so is no JSON. *after* are
    the fields behind the list: what is known only when all of it was shown.
    """

    def __init__(self, fields: Mapping[str, object], name: str) -> None:
        head = json.dumps(fields, default=plain, indent=2, ensure_ascii=False)[:-2]
        print(f"{head},\n  {json.dumps(name)}: [", end="")  # noqa: T201
        self._separator = "\n    "
        self.after: dict[str, object] = {}

    def add(self, value: object) -> None:
        """Print one element."""
        text = json.dumps(value, default=plain, ensure_ascii=False)
        print(f"{self._separator}{text}", end="", flush=True)  # noqa: T201
        self._separator = ",\n    "

    def __enter__(self) -> JsonList:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if error is None:
            fields = (f"  {json.dumps(n)}: {json.dumps(v)}" for n, v in self.after.items())
            print("\n  ]", *fields, sep=",\n", end="\n}\n")  # noqa: T201


def operator() -> str:
    """Return who is at the keyboard: DELIVERY_OPERATOR, else the login name."""
    try:
        return os.environ.get("DELIVERY_OPERATOR") or getpass.getuser()
    except (KeyError, OSError):
        raise DeliveryError("who are you? set DELIVERY_OPERATOR to your name") from None


def plain(value: object) -> Any:
    """Return what JSON can hold for a dataclass, an enum, or anything else as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    return str(value)
