"""The draft length follows the number of running requests, down to zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_spec.backends.base import Limits
from neuron_spec.backends.scripted import ScriptedSpeculator
from neuron_spec.engine.draft_length import DraftLength
from neuron_spec.engine.loop import DecodeLoop
from neuron_spec.engine.request import Request

BANDS = ((1, 4), (3, 2), (5, 0))


@pytest.mark.parametrize(
    ("num_running", "k"), [(0, 0), (1, 4), (2, 4), (3, 2), (4, 2), (5, 0), (500, 0)]
)
def test_the_last_band_that_has_begun_counts(num_running: int, k: int) -> None:
    assert DraftLength(BANDS).at(num_running) == k


@given(k=st.integers(0, 31), num_running=st.integers(1, 1000))
def test_without_bands_k_is_constant(k: int, num_running: int) -> None:
    assert DraftLength.by_load((), k).at(num_running) == k
    assert DraftLength().at(num_running) == 0


class Recording(ScriptedSpeculator):
    """Notes the k and the number of rows of every step."""

    def __init__(self, num_requests: int) -> None:
        replies = {(n,): range(10, 20 + 3 * n) for n in range(num_requests)}
        limits = Limits(8, 16, 64, 4)
        super().__init__(replies, accepted=[1], limits=limits)
        self.steps: list[tuple[int, int]] = []

    def step(self, num_draft_tokens: int) -> list:  # type: ignore[type-arg]
        results = super().step(num_draft_tokens)
        self.steps.append((len(results), num_draft_tokens))
        return results


def test_every_step_uses_the_band_of_its_load() -> None:
    speculator = Recording(6)
    loop = DecodeLoop(speculator, str, draft_length=DraftLength(BANDS))
    for n in range(6):
        loop.submit(Request((n,), max_new_tokens=4 + 4 * n))
    list(loop.run())
    assert {num_rows for num_rows, _ in speculator.steps} >= {1, 2, 3, 5, 6}
    for num_rows, k in speculator.steps:
        assert k == DraftLength(BANDS).at(num_rows)


def test_requests_that_will_have_a_slot_are_load_already() -> None:
    """Six are asked for at once: while the first prompts run, the band of six is the one."""
    loop = DecodeLoop(Recording(6), str, draft_length=DraftLength.by_load([(1, 4), (4, 1)], 4))
    loop.submit(Request((0,), max_new_tokens=4))
    loop.advance()
    assert loop.draft_length == 4
    for n in range(1, 6):
        loop.submit(Request((n,), max_new_tokens=4))
    assert loop.num_running < 4
    assert loop.draft_length == 1


def test_requests_beyond_the_slots_are_no_load() -> None:
    loop = DecodeLoop(Recording(2), str, draft_length=DraftLength.by_load([(1, 4), (3, 1)], 4))
    for n in range(6):
        loop.submit(Request((n,), max_new_tokens=4))
    loop.advance()
    assert loop.draft_length == 4
