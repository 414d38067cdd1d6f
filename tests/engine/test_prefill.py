"""Prompts in pieces: running requests take their steps between them, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from conftest import WordTokenizer

from neuron_spec import compile_model, load, load_spec, prepare
from neuron_spec.backends.base import (
    GREEDY,
    ChunkedSpeculator,
    Decoding,
    Limits,
    PrefillResult,
    StepResult,
)
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.events import FailEvent, FinishEvent, TokenEvent
from neuron_spec.engine.loop import PREFILL_TOKENS_PER_ROUND, DecodeLoop
from neuron_spec.engine.request import Request
from neuron_spec.engine.session import Session
from neuron_spec.engine.warmup import warm_up

PIECE = 100
LIMITS = Limits(batch_size=3, max_prompt_tokens=1000, max_total_tokens=2000, num_draft_tokens=2)
REPLY = tuple(range(10, 60))


class InPieces(ScriptedSpeculator):
    """A scripted reply after a prompt in pieces of 100 tokens; notes what is called."""

    prefill_chunk_tokens = PIECE

    def __init__(self, *prompts: tuple[int, ...], fails_at: int | None = None) -> None:
        super().__init__(dict.fromkeys(prompts, REPLY), accepted=[1], limits=LIMITS)
        self.prompts: dict[int, list[Any]] = {}
        self.calls: list[str] = []
        self.fails_at = fails_at

    def begin_prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> None:
        assert slot not in self.prompts
        self.prompts[slot] = [tuple(prompt_ids), 0]

    def advance_prefill(self, slot: int) -> PrefillResult | None:
        prompt = self.prompts[slot]
        self.calls.append(f"piece {slot}")
        if len(self.calls) == self.fails_at:
            raise RuntimeError("the device is gone")
        prompt[1] += PIECE
        if prompt[1] < len(prompt[0]):
            return None
        del self.prompts[slot]
        return super().prefill(slot, prompt[0])

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        self.calls.append("step")
        return super().step(num_draft_tokens)

    def release(self, slot: int) -> None:
        self.prompts.pop(slot, None)
        super().release(slot)

    @property
    def num_taken(self) -> int:
        return len(self.prompts) + len(self._running)


def loop_of(speculator: Any) -> DecodeLoop:
    return DecodeLoop(speculator, WordTokenizer().decode, draft_length=DraftLength.constant(2))


def prompt_of(length: int, first: int = 3) -> tuple[int, ...]:
    return (first, *[7] * (length - 1))


def test_running_requests_step_between_the_pieces_of_a_long_prompt() -> None:
    short, long = prompt_of(5), prompt_of(950, first=4)
    speculator = InPieces(short, long)
    loop = loop_of(speculator)
    loop.submit(Request(short))
    loop.submit(Request(long, max_new_tokens=1))
    while loop.num_waiting or speculator.prompts:
        loop.advance()
    assert speculator.calls[:2] == ["piece 0", "piece 1"]
    pieces = [index for index, call in enumerate(speculator.calls) if call == "piece 1"]
    assert len(pieces) == 10
    gaps = [later - earlier for earlier, later in zip(pieces, pieces[1:], strict=False)]
    # No more than one round's share of tokens goes by without a step of the short one.
    longest_run = -(-PREFILL_TOKENS_PER_ROUND // PIECE)
    joined = " ".join(speculator.calls)
    assert " ".join(["piece 1"] * (longest_run + 1)) not in joined
    assert max(gaps) == 2
    loop.close()
    assert speculator.num_taken == 0


def test_prompts_are_begun_in_the_order_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [prompt_of(250, first=first) for first in (3, 4, 5, 6)]
    speculator = InPieces(*prompts)
    clock = SimpleNamespace(perf_counter=lambda: 1.0 + len(speculator.calls))
    monkeypatch.setattr("neuron_spec.engine.loop.time", clock)
    loop = loop_of(speculator)
    for prompt in prompts:
        loop.submit(Request(prompt, max_new_tokens=3))
    events = list(loop.run())
    firsts = [event.request_id for event in events if isinstance(event, TokenEvent)]
    assert [n for i, n in enumerate(firsts) if n not in firsts[:i]] == [1, 2, 3, 4]
    assert loop.totals.num_prompt_tokens == 1000
    finished = [event for event in events if isinstance(event, FinishEvent)]
    waits = [event.timing.queued_s for event in sorted(finished, key=lambda e: e.request_id)]
    assert waits == sorted(waits)
    assert waits[0] == 0 < waits[1] < waits[3]


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_a_prompt_can_be_cancelled_between_its_pieces(rounds: int) -> None:
    long, other = prompt_of(950), prompt_of(20, first=4)
    speculator = InPieces(long, other)
    loop = loop_of(speculator)
    number = loop.submit(Request(long))
    loop.submit(Request(other, max_new_tokens=3))
    for _ in range(rounds):
        assert loop.advance() == []
    event = loop.cancel(number)
    assert event is not None
    assert (event.reason, event.timing.ttft_s) == ("cancelled", None)
    told = [event.token_id for event in loop.run() if isinstance(event, TokenEvent)]
    assert told == list(REPLY[:3])
    assert speculator.num_taken == 0
    assert loop.is_idle


def test_a_piece_that_fails_ends_its_own_request_alone() -> None:
    short, long = prompt_of(5), prompt_of(950, first=4)
    speculator = InPieces(short, long, fails_at=6)
    loop = loop_of(speculator)
    loop.submit(Request(short, max_new_tokens=30))
    loop.submit(Request(long))
    events = []
    while not loop.is_idle:
        events += loop.advance()
    (failure,) = (event for event in events if isinstance(event, FailEvent))
    assert failure.request_id == 2
    tokens = [e.token_id for e in events if isinstance(e, TokenEvent)]
    assert tokens == list(REPLY[:30])
    assert speculator.num_taken == 0


def test_a_step_that_fails_leaves_a_prompt_that_is_being_run() -> None:
    class Failing(InPieces):
        def step(self, num_draft_tokens: int) -> list[StepResult]:
            if self.calls.count("step") == 2:
                self.calls.append("failed step")
                raise RuntimeError("the device is gone")
            return super().step(num_draft_tokens)

    short, long = prompt_of(5), prompt_of(950, first=4)
    speculator = Failing(short, long)
    loop = loop_of(speculator)
    loop.submit(Request(short))
    loop.submit(Request(long, max_new_tokens=1))
    events = []
    while not loop.is_idle:
        events += loop.advance()
        if "failed step" in speculator.calls:
            speculator.calls.append("step")
    assert [event.request_id for event in events if isinstance(event, FailEvent)] == [1]
    assert [event.request_id for event in events if isinstance(event, FinishEvent)] == [2]


# The reference backend

METHODS: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "eagle": {"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
    "model": {"method": "model", "model": "target", "num_draft_tokens": 3},
    "ngram": {"method": "ngram", "num_draft_tokens": 3},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pieces")
    tiny.write_target(folder / "target", max_position_embeddings=1024)
    tiny.write_eagle(folder / "eagle")
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_the_reference_backend_decodes_beside_a_long_prompt_as_alone(
    folder: Path, method: str
) -> None:
    """Steps of the running rows must not touch what the pieces have stored."""
    path = tiny.write_spec(
        folder / f"{method}.toml",
        target={"model": "target"},
        draft=METHODS[method],
        shape={"max_prompt_tokens": 500, "max_total_tokens": 560, "batch_size": 3},
    )
    spec = load_spec(path)
    output = folder / f"artifact-{method}"
    session = load(
        compile_model(spec, prepare(spec, folder / f"prepared-{method}"), output).directory
    )
    assert isinstance(session.speculator, ChunkedSpeculator)
    # The first leaves its slot at once; the second steps beside it while the long ones come in, so
    # that their slots are rows of its passes.
    asked = [([5, 6, 7], 2), ([8, 9], 60), ([10 + n % 90 for n in range(470)], 30), ([9] * 300, 30)]
    requests = [
        session.request(prompt, max_new_tokens=count, ignore_eos=True) for prompt, count in asked
    ]
    alone = [tokens_of(session.loop(), [request])[1] for request in requests]
    together = tokens_of(session.loop(), requests)
    assert [together[number] for number in (1, 2, 3, 4)] == alone


def tokens_of(loop: DecodeLoop, requests: list[Request]) -> dict[int, list[int]]:
    for request in requests:
        loop.submit(request)
    told: dict[int, list[int]] = {}
    for event in loop.run():
        if isinstance(event, TokenEvent):
            told.setdefault(event.request_id, []).append(event.token_id)
    return told


def test_warming_up_leaves_everything_as_it_was(folder: Path) -> None:
    path = tiny.write_spec(
        folder / "warm.toml",
        target={"model": "target"},
        draft={**METHODS["eagle"], "by_load": [[1, 3], [2, 1]]},
        shape={"max_prompt_tokens": 300, "max_total_tokens": 310, "batch_size": 2},
    )
    spec = load_spec(path)
    session = load(compile_model(spec, prepare(spec, folder / "w"), folder / "warm").directory)
    before = session.generate([5, 6, 7], max_new_tokens=10).token_ids
    told: list[tuple[int, int]] = []
    done = warm_up(session, report=lambda _, *pair: told.append(pair))
    # Prompts of 1 and 128 tokens; k of 0, 1 and 3 with one row and with two.
    assert done == 2 + 3 * 2
    assert told == [(count, 8) for count in range(1, 9)]
    assert session.generate([5, 6, 7], max_new_tokens=10).token_ids == before


def test_without_pieces_every_bucket_is_warmed() -> None:
    lengths: list[int] = []

    class Whole(ScriptedSpeculator):
        def prefill(
            self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
        ) -> PrefillResult:
            lengths.append(len(prompt_ids))
            return super().prefill(slot, prompt_ids, decoding)

    warm_up(Session(Whole({(1,): [1] * 2000}, limits=LIMITS), WordTokenizer()))
    assert lengths[:5] == [1, 128, 256, 512, 1000]
    assert set(lengths[5:]) == {1}
