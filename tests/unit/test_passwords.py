"""A password for each role: made up once, kept for its owner alone, compared by its hash."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from delivery.errors import DeliveryError
from delivery.passwords import file_for, hashed, matches, passwords_for


def test_a_password_is_made_up_once_and_kept_for_its_owner(tmp_path: Path) -> None:
    """Mode 600 in a folder of mode 700; the second time it is the same."""
    folder = tmp_path / "access"
    made = passwords_for(["relay", "audit"], {}, folder, generate=True)
    assert made["relay"] != made["audit"]
    assert min(map(len, made.values())) >= 32
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file_for(folder, "relay").stat().st_mode) == 0o600
    assert passwords_for(["relay", "audit"], {}, folder, generate=True) == made
    assert passwords_for(["relay"], {"DELIVERY_AMQP_PASSWORD_RELAY": "own"}, folder) == {
        "relay": "own"
    }


def test_none_is_made_up_unasked(tmp_path: Path) -> None:
    """The sentence says where it was looked for; nothing is written."""
    with pytest.raises(DeliveryError, match=r"DELIVERY_AMQP_PASSWORD_RELAY.*relay.password"):
        passwords_for(["relay"], {}, tmp_path / "access")
    assert list(tmp_path.iterdir()) == []


def test_a_hash_is_salted_and_recognised() -> None:
    """The value is one that RabbitMQ's documentation works out step by step."""
    kept = hashed("test12", bytes.fromhex("908DC60A"))
    assert kept == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    assert matches("test12", kept)
    assert not matches("test13", kept)
    assert hashed("test12") != hashed("test12")


def test_an_empty_one_is_none(tmp_path: Path) -> None:
    """The broker would take the user, and never let it in."""
    with pytest.raises(DeliveryError, match="no password for relay"):
        passwords_for(["relay"], {"DELIVERY_AMQP_PASSWORD_RELAY": ""}, tmp_path)
