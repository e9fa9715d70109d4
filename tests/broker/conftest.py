"""Each test gets a world of its own: a namespace on the real broker, files in a new folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingConnection
from support.world import World

from delivery.connection import BrokerSettings


@pytest.fixture
def world(
    connection: BlockingConnection, settings: BrokerSettings, namespace: str, tmp_path: Path
) -> World:
    return World(connection, settings, namespace, tmp_path)
