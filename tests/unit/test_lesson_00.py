"""Lesson 00: an open port is not a broker."""

from __future__ import annotations

import socket
import threading

import pytest

from delivery.broker import silent
from delivery.ready import NotReady, wait_ready


def test_an_open_port_that_is_no_broker_is_not_ready() -> None:
    """Something listens and hangs up: a broker is ready when it gives a message back."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def hang_up() -> None:
            stranger.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        at = f"127.0.0.1:{stranger.getsockname()[1]}"
        with pytest.raises(NotReady, match="no confirmed publish within 0 s"):
            wait_ready(f"amqp://guest:guest@{at}/%2F", silent, deadline=0)
