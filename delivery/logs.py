"""Write log records as one line each: time, level, event name, fields."""

from __future__ import annotations

import logging
import sys
import time

from delivery.visible import visible

__all__ = ["LineFormatter", "log_to_stderr"]

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """``12:00:01 warning connection.lost pause=0.5``: the record's message names the event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the fields that were given as ``extra``."""
        fields = [
            f"{name}={_shown(value)}"
            for name, value in vars(record).items()
            if name not in _STANDARD
        ]
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = " ".join([moment, record.levelname.lower(), record.getMessage(), *fields])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def log_to_stderr(level: str = "info") -> None:
    """Send this package's records to standard error; pika speaks only from warnings upward."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    handler.setLevel(level.upper())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # What is not shown is still counted: metrics and health follow the records from info upward.
    logging.getLogger("delivery").setLevel("DEBUG" if level == "debug" else "INFO")
    # What pika logs about a lost connection, keep_connected says in one line.
    logging.getLogger("pika").setLevel(logging.CRITICAL)


def _shown(value: object) -> str:
    text = visible(str(value))
    return f'"{text}"' if not text or any(c.isspace() for c in text) else text
