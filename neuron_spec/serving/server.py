"""The process around the application: its socket, its end, and what is left to say about it."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from neuron_spec.errors import BackendError, UserError
from neuron_spec.serving.logs import flush_logs, log_config
from neuron_spec.serving.settings import ServerSettings

logger = logging.getLogger(__name__)

_SWITCH_S = 0.001
_CLOSE_LIMIT_S = 5  # for connections after the drain, whose answers have all ended by then


def bind(host: str, port: int) -> socket.socket:
    """Take the address, without listening yet; port 0 takes a free one.

    Raises:
        UserError: somebody has it, or it is none of this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError("no such address", where="--host", found=host) from error
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise UserError(
            f"cannot listen: {error.strerror}",
            where=f"{host}:{port}",
            mend="choose another --port (0 takes a free one), or end the program that has it",
        ) from error
    return taken


class DrainingServer(uvicorn.Server):
    """On SIGTERM or SIGINT takes no more requests, lets the running ones end, and then closes.

    New requests are answered with 503 meanwhile. What still runs when the grace is over ends with
    an error. A second SIGINT ends the grace. Where the engine's thread has died, the server ends
    too.
    """

    def __init__(self, app: FastAPI, *, settings: ServerSettings, log_form: str) -> None:
        config = uvicorn.Config(
            app,
            access_log=False,  # the gateway writes it
            log_config=log_config(log_form),
            timeout_graceful_shutdown=_CLOSE_LIMIT_S,
        )
        super().__init__(config)
        self._app, self._drain_s = app, settings.drain_s
        self._told_at: float | None = None
        self.has_failed = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn, which raises the signals again in the end: that may be the process's."""
        with super().capture_signals():
            try:
                yield
            finally:
                flush_logs()

    async def on_tick(self, counter: int) -> bool:
        """Called every 0.1 s; True ends the server."""
        worker, gate = self._app.state.model.worker, self._app.gate  # type: ignore[attr-defined]
        if not worker.is_alive:
            self.has_failed = True
            return True
        if not await super().on_tick(counter):
            return False
        if self._told_at is None:
            self._told_at = time.monotonic()
            gate.is_closed = True
            logger.info("draining", extra={"fields": {"num_open": gate.num_open}})
        is_over = self.force_exit or time.monotonic() - self._told_at > self._drain_s
        if gate.num_open and is_over:
            logger.warning("grace is over", extra={"fields": {"num_open": gate.num_open}})
            await asyncio.to_thread(worker.stop)
        return is_over or not gate.num_open


def keep_pauses_short() -> None:
    """What lives as long as the process is not looked through for garbage again and again, and the
    event loop need not wait long for the engine's thread to hand over the interpreter."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)


def serve(
    app: FastAPI, listening: socket.socket, *, settings: ServerSettings, log_form: str
) -> None:
    """Serve until told to end.

    Raises:
        BackendError: the engine's thread died; a supervisor should start anew.
        KeyboardInterrupt: after the drain, where Ctrl-C was what told it.
    """
    logging.captureWarnings(True)
    keep_pauses_short()
    server = DrainingServer(app, settings=settings, log_form=log_form)
    server.run(sockets=[listening])
    if server.has_failed:
        raise BackendError("the engine's thread died; see the log")
