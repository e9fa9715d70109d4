"""The servers beside the broker: real, durable as they come, and gone when they are not needed."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis as client
from support.servers import postgres, redis


def listens(url: str) -> bool:
    parts = urlsplit(url)
    with socket.socket() as knock:
        return knock.connect_ex((parts.hostname or "", parts.port or 0)) == 0


def test_two_servers_that_end_with_their_user(tmp_path: Path) -> None:
    """Both answer, PostgreSQL with fsync; an error in the block stops them too."""
    with (
        pytest.raises(RuntimeError, match="the test fails"),
        postgres(tmp_path / "postgres") as dsn,
        redis(tmp_path / "redis") as url,
    ):
        with psycopg.connect(dsn) as opened:
            assert opened.execute("SHOW fsync").fetchone() == ("on",)
        with client.Redis.from_url(url) as cache:
            assert (cache.set("seen", 1, nx=True), cache.set("seen", 1, nx=True)) == (True, None)
        assert listens(dsn) and listens(url)
        raise RuntimeError("the test fails")
    assert not listens(dsn)
    assert not listens(url)
