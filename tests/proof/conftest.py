"""A broker of the proof's own: lessons restart and kill it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from delivery.sandbox import broker_down, find_broker

OWN = ("DELIVERY_AMQP_URL", "DELIVERY_MANAGEMENT_URL")


@pytest.fixture(scope="session")
def lesson_environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a reader whose sandbox broker already runs."""
    folder: Path = tmp_path_factory.mktemp("reader")
    environ = {name: value for name, value in os.environ.items() if name not in OWN}
    environ["DELIVERY_DATA"] = str(folder)
    find_broker(environ, folder, print)
    yield environ
    broker_down(environ, folder)


@pytest.fixture(scope="session")
def test_environ(lesson_environ: dict[str, str]) -> dict[str, str]:
    """The environment for single tests of the suite: they find that broker by its address."""
    broker = find_broker(lesson_environ, Path(lesson_environ["DELIVERY_DATA"]), print)
    addresses = zip(OWN, (broker.amqp_url, broker.management_url), strict=True)
    return lesson_environ | {name: address for name, address in addresses if address}
