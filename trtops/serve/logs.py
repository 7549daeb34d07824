"""The log as JSON: one object a line on standard error, for machines that collect it."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any, Final

import msgspec

FIELDS: Final = ("engine", "request", "status", "reason", "ms")
"""What a record may carry beside its message: engine, the request's name, HTTP status, reason, milliseconds."""


class JsonFormatter(logging.Formatter):
    """Writes records as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one: time, level, logger, message, what :data:`FIELDS` it has, and the traceback of an error."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def to_json() -> None:
    """Write this process's log as JSON from now on, notices too."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.getLogger("trtops").setLevel(logging.INFO)
