"""The thread that writes the log: order, streams that are stuck or fail, and nothing lost."""

from __future__ import annotations

import io
import logging
import logging.config
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import pytest
from served import any_app

from neuron_spec.serving import logs
from neuron_spec.serving.logs import LineHandler, TextFormatter, flush_logs, log_config
from neuron_spec.serving.server import DrainingServer
from neuron_spec.serving.settings import ServerSettings


class Stream(io.StringIO):
    """Is stuck while `go` is not set; fails where told so; notes who writes."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.fails = threading.Event(), False
        self.go.set()
        self.writers: set[str] = set()

    def write(self, text: str) -> int:
        assert self.go.wait(10)
        if self.fails:
            raise OSError("no space left")
        self.writers.add(threading.current_thread().name)
        return super().write(text)


@pytest.fixture
def stream() -> Stream:
    return Stream()


@contextmanager
def configured(form: str, stream: Stream) -> Iterator[logging.Logger]:
    """The server's own configuration, undone at the end."""
    with redirect_stderr(stream):
        logging.config.dictConfig(log_config(form))
    try:
        yield logging.getLogger("neuron_spec")
    finally:
        for name in log_config(form)["loggers"]:
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True
            logger.setLevel(logging.NOTSET)


def test_lines_stand_in_their_order_and_are_written_by_a_thread(stream: Stream) -> None:
    with configured("text", stream) as logger:
        for number in range(500):
            logger.info("line %s", number)
        flush_logs()
    lines = stream.getvalue().splitlines()
    assert [line.split(" neuron_spec ")[1] for line in lines] == [f"line {n}" for n in range(500)]
    assert stream.writers == {"neuron-spec-log"}


def test_nobody_waits_for_a_reader_that_is_stuck(stream: Stream) -> None:
    stream.go.clear()
    with configured("json", stream) as logger:
        for _ in range(100):
            logger.info("said")
        assert stream.getvalue() == ""
        stream.go.set()
        flush_logs()
    assert len(stream.getvalue().splitlines()) == 100


def test_an_error_is_written_when_its_call_returns(stream: Stream) -> None:
    with configured("json", stream) as logger:
        logger.info("before")
        logger.error("the engine failed")
        assert [("failed" in line) for line in stream.getvalue().splitlines()] == [False, True]


def test_more_than_can_wait_waits(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MOST_LINES", 10)
    stream.go.clear()

    def log(logger: logging.Logger) -> None:
        for _ in range(30):
            logger.info("said")

    with configured("json", stream) as logger:
        thread = threading.Thread(target=log, args=(logger,))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        stream.go.set()
        thread.join(10)
        assert not thread.is_alive()
        flush_logs()
    assert len(stream.getvalue().splitlines()) == 30


def test_what_cannot_be_written_stops_nothing(stream: Stream) -> None:
    with configured("text", stream) as logger:
        stream.fails = True
        logger.error("lost")
        stream.fails = False
        logger.error("kept")
    assert [line.split()[-1] for line in stream.getvalue().splitlines()] == ["kept"]


def test_what_cannot_be_said_stops_nothing(stream: Stream) -> None:
    with redirect_stderr(stream):
        handler = LineHandler()
        handler.setFormatter(TextFormatter("%(message)s"))
        # Tells about itself, as every handler of logging does.
        handler.handle(logging.LogRecord("a", logging.INFO, "", 1, "said %d", ("x",), None))
    handler.handle(logging.LogRecord("a", logging.ERROR, "", 1, "kept", (), None))
    assert stream.getvalue().splitlines()[-1] == "kept"


def test_nothing_is_lost_where_a_signal_ends_the_process(stream: Stream) -> None:
    """uvicorn raises the signal again when its server has ended, and that kills."""
    settings = ServerSettings()
    with configured("text", stream) as logger:
        with redirect_stderr(stream):  # it configures once more
            server = DrainingServer(any_app(), settings=settings, log_form="text")
        with server.capture_signals():
            stream.go.clear()
            threading.Timer(0.1, stream.go.set).start()
            logger.info("the last word")
        assert "the last word" in stream.getvalue()
