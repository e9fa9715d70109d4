"""The errors that this package raises on purpose, by what their catcher can do."""

from __future__ import annotations

__all__ = ["DeliveryError", "PermanentError", "TemporaryError"]


class DeliveryError(Exception):
    """Base class of every error that this package raises on purpose: one clear sentence."""


class TemporaryError(DeliveryError):
    """Nobody's message is at fault: keep the data, pause, and try again."""

    event = "work.paused"  # the name under which the pause is logged


class PermanentError(DeliveryError):
    """A handler raises this when trying the same message again cannot help."""

    reason = "rejected"  # one word, kept with the dead message
