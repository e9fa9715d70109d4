"""Write log records as one line each, for people or as JSON: time, level, event name, fields."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime

from delivery.visible import visible

__all__ = ["JsonFormatter", "LineFormatter", "log_to_stderr"]

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


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, event, and the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a value that JSON can't hold is given as text."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {name: each for name, each in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: str = "info", *, as_json: bool = False) -> None:
    """Send this package's records to standard error; pika speaks only from warnings upward."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    handler.setLevel(level.upper())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    # What is not shown is still counted: metrics and health follow the records from info upward.
    logging.getLogger("delivery").setLevel("DEBUG" if level == "debug" else "INFO")
    # What pika logs about a lost connection, keep_connected says in one line.
    logging.getLogger("pika").setLevel(logging.CRITICAL)


def _shown(value: object) -> str:
    text = visible(str(value))
    return f'"{text}"' if not text or " " in text else text
