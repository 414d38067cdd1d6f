"""The entrance: many requests at once are let in one by one, and everything else goes between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from neuron_spec.serving.gateway import Gate, Gateway
from neuron_spec.serving.settings import ServerSettings

NUM_REQUESTS = 40
SETTINGS = ServerSettings(max_body_bytes=10)


class Door:
    """A gateway before an application that writes down who came in, while the event loop counts."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.gate = Gate()
        self.gateway = Gateway(self._inner, settings=SETTINGS, gate=self.gate)
        self.statuses: dict[str, int] = {}

    async def _inner(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.seen.append(scope["path"])
            await PlainTextResponse("come in")(scope, receive, send)

    async def count_passes(self) -> None:
        while True:
            self.seen.append("pass")
            await asyncio.sleep(0)

    async def request(self, path: str, method: str = "POST", length: int = 0) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.statuses[path] = message["status"]

        headers = [(b"content-length", str(length).encode())]
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        await self.gateway(scope, receive, send)

    async def begin(self) -> None:
        async def nothing(*_: Any) -> Any:
            return {}

        await self.gateway({"type": "lifespan"}, nothing, nothing)


def opened(main: Callable[[Door], Awaitable[None]], door: Door | None = None) -> Door:
    door = door or Door()

    async def run() -> None:
        await door.begin()
        await main(door)

    asyncio.run(asyncio.wait_for(run(), 20))
    return door


async def many(door: Door) -> None:
    passes = asyncio.create_task(door.count_passes())
    await asyncio.gather(*(door.request(str(number)) for number in range(NUM_REQUESTS)))
    passes.cancel()


def entered(door: Door) -> list[str]:
    return [name for name in door.seen if name != "pass"]


def test_the_event_loop_goes_on_between_two_requests() -> None:
    door = opened(many)
    for before, after in zip(door.seen, door.seen[1:], strict=False):
        assert "pass" in (before, after)


def test_requests_come_in_in_their_order() -> None:
    door = opened(many)
    assert entered(door) == [str(number) for number in range(NUM_REQUESTS)]
    assert door.gate.num_open == 0


def test_a_gate_tells_for_how_long_nothing_has_been_open() -> None:
    async def main(door: Door) -> None:
        posts = [asyncio.create_task(door.request(str(n))) for n in range(NUM_REQUESTS)]
        while not door.gate.num_open:
            await asyncio.sleep(0)
        assert door.gate.idle_s == 0.0
        await asyncio.gather(*posts)
        ended = time.monotonic()
        await asyncio.sleep(0.01)
        assert 0.005 < door.gate.idle_s < time.monotonic() - ended + 1

    opened(main)


def test_who_only_asks_how_the_server_is_does_not_queue() -> None:
    async def main(door: Door) -> None:
        posts = [asyncio.create_task(door.request(str(n))) for n in range(NUM_REQUESTS)]
        await asyncio.gather(door.request("/health", method="GET"), *posts)

    door = opened(main)
    assert entered(door).index("/health") <= 1
    assert len(entered(door)) == NUM_REQUESTS + 1


@pytest.mark.parametrize(("length", "is_closed", "status"), [(11, False, 413), (0, True, 503)])
def test_who_is_turned_away_does_not_queue(length: int, is_closed: bool, status: int) -> None:
    async def main(door: Door) -> None:
        posts = [asyncio.create_task(door.request(str(n))) for n in range(NUM_REQUESTS)]
        await asyncio.sleep(0)
        door.gate.is_closed = is_closed
        await door.request("refused", length=length)
        assert len(entered(door)) < NUM_REQUESTS
        await asyncio.gather(*posts)

    door = opened(main)
    assert door.statuses.pop("refused") == status
    # Who waited before the gate was closed is let in.
    assert list(door.statuses.values()) == [200] * NUM_REQUESTS


def test_who_gives_up_while_waiting_holds_up_nobody() -> None:
    async def main(door: Door) -> None:
        posts = [asyncio.create_task(door.request(str(n))) for n in range(NUM_REQUESTS)]
        await asyncio.sleep(0)
        for post in posts[::2]:  # the one whose turn it is among them
            post.cancel()
        await asyncio.gather(*posts, return_exceptions=True)

    door = opened(main)
    assert entered(door) == [str(number) for number in range(NUM_REQUESTS) if number % 2]
    assert door.gate.num_open == 0


def test_an_application_may_be_served_again_in_another_event_loop() -> None:
    door = opened(many, opened(many))
    assert len(entered(door)) == 2 * NUM_REQUESTS
