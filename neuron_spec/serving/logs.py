"""Logs as one JSON object a line."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import Any


class JsonFormatter(logging.Formatter):
    """Time (UTC), level, logger, message, what `extra={"fields": …}` holds, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        time = datetime.fromtimestamp(record.created, timezone.utc)
        entry = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _on_one_line(value: object) -> str:
    """No client writes lines of its own into the log."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


class TextFormatter(logging.Formatter):
    """The same for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below it."""
        fields = getattr(record, "fields", {})
        told = " ".join(f"{name}={_on_one_line(value)}" for name, value in fields.items())
        return f"{super().format(record)} {told}".rstrip()


_LEVELS = {
    "neuron_spec": "INFO",
    "uvicorn": "INFO",
    # These would write lines of their own form otherwise.
    "asyncio": "WARNING",
    "py.warnings": "WARNING",
    "transformers": "ERROR",
}


def log_config(form: str) -> dict[str, Any]:
    """For `logging.config.dictConfig`: everything to standard error, as `json` or `text`."""
    text = {"()": TextFormatter, "format": "%(asctime)s %(levelname)s %(name)s %(message)s"}
    formatter = {"json": {"()": JsonFormatter}, "text": text}[form]
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": formatter},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {
            name: {"handlers": ["stderr"], "level": level, "propagate": False}
            for name, level in _LEVELS.items()
        },
    }
