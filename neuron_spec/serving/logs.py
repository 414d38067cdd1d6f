"""Logs as one JSON object a line, written by a thread of their own."""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
from contextlib import suppress
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


_MOST_LINES = 10_000  # that wait to be written
_FLUSH_LIMIT_S = 5.0  # nobody may read them any more
_Line = str | threading.Event


class LineHandler(logging.Handler):
    """Writes lines to standard error in a thread: in the system's call the event loop would give up
    the interpreter, and wait until the engine's thread hands it back.

    Whoever logs an error, or when too many lines wait, waits until they are written.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stream = sys.stderr
        self._lines: queue.SimpleQueue[_Line] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        if self._writer is None:  # the handler's lock is held
            self._writer = threading.Thread(target=self._write, name="neuron-spec-log", daemon=True)
            self._writer.start()
        self._lines.put(line)
        if record.levelno >= logging.ERROR or self._lines.qsize() > _MOST_LINES:
            self.flush()

    def flush(self) -> None:
        """Wait until everything that was logged is written."""
        if self._writer is not None:
            is_written = threading.Event()
            self._lines.put(is_written)
            is_written.wait(_FLUSH_LIMIT_S)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            with suppress(OSError, ValueError):  # a full disk, or a stream that was closed
                self._stream.write(f"{line}\n")
                self._stream.flush()


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
        "handlers": {"stderr": {"()": LineHandler, "formatter": "line"}},
        "loggers": {
            name: {"handlers": ["stderr"], "level": level, "propagate": False}
            for name, level in _LEVELS.items()
        },
    }


def flush_logs() -> None:
    """Wait until everything that was logged is written."""
    for name in _LEVELS:
        for handler in logging.getLogger(name).handlers:
            handler.flush()
