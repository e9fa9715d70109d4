"""Each test gets a world of its own: a namespace on the real broker, files in a new folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingConnection

from delivery.connection import BrokerSettings


@pytest.fixture
def world(
    request: pytest.FixtureRequest,
    connection: BlockingConnection,
    settings: BrokerSettings,
    namespace: str,
    tmp_path: Path,
) -> Any:
    """The World that the test's file imports: it needs no more of the package than its lesson."""
    return request.module.World(connection, settings, namespace, tmp_path)
