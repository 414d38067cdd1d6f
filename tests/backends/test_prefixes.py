"""Kept beginnings of prompts: the same numbers bit for bit, within the memory that is given."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neuron_spec.backends.reference.cache import KVCache
from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.backends.reference.prefixes import PrefixCache
from neuron_spec.backends.reference.speculator import PREFILL_CHUNK_TOKENS, ReferenceSpeculator
from neuron_spec.spec import BuildSpec

GOLDEN = Path(__file__).parents[1] / "golden"
DRAFTS = {"eagle1": ("eagle", "target"), "draft": ("model", "target"), "none": ("ngram", "target"),
          "alone": ("none", "target"), "eagle3": ("eagle3", "target3")}  # fmt: skip
PIECE = PREFILL_CHUNK_TOKENS
LONGEST = 4 * PIECE


@cache
def speculator(draft: str) -> ReferenceSpeculator:
    method, target = DRAFTS[draft]
    has_model = method not in ("ngram", "none")
    drafts = {"method": method, "num_draft_tokens": 3, "model": "draft" if has_model else None}
    spec = BuildSpec.model_validate(
        {
            "target": {"model": "target"},
            "draft": drafts if method != "none" else {},
            "shape": {
                "max_prompt_tokens": LONGEST,
                "max_total_tokens": LONGEST + 40,
                "batch_size": 2,
            },
        }
    )
    return open_speculator(spec, GOLDEN / target, GOLDEN / draft if has_model else None)


def run(spec: ReferenceSpeculator, slot: int, prompt: list[int]) -> tuple[list[int], Tensor, int]:
    """Six steps: tokens, the logits of the first one, and how much of the prompt was kept."""
    first = spec.prefill(slot, prompt)
    tokens = [first.token]
    for _ in range(6):
        tokens += spec.step(spec.limits.num_draft_tokens)[0].tokens
    spec.release(slot)
    assert first.logits is not None
    return tokens, first.logits, first.num_cached_tokens


def prompt_of(seed: int, length: int) -> list[int]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(3, 128, (length,), generator=draws).tolist()


@pytest.mark.parametrize("draft", DRAFTS)
@settings(max_examples=12, deadline=None)
@given(
    shared=st.integers(1, LONGEST - 1),
    more=st.integers(0, 2 * PIECE),
    slots=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    seed=st.integers(0, 10_000),
)
def test_a_kept_beginning_changes_nothing_but_the_work(
    draft: str, shared: int, more: int, slots: tuple[int, int], seed: int
) -> None:
    spec, beginning = speculator(draft), prompt_of(seed, shared)
    earlier = beginning + prompt_of(seed + 1, 5)
    later = (beginning + prompt_of(seed + 2, more))[:LONGEST]
    spec.cache_prefixes(0)
    expected, expected_logits, num_cached = run(spec, slots[1], later)
    assert num_cached == 0
    spec.cache_prefixes(1 << 30)
    run(spec, slots[0], earlier[:LONGEST])
    tokens, logits, num_cached = run(spec, slots[1], later)
    assert tokens == expected
    assert torch.equal(logits, expected_logits)
    common = next((i for i, (a, b) in enumerate(zip(earlier, later, strict=False)) if a != b), 0)
    common = common or min(len(earlier), len(later))
    assert num_cached == min(common, len(later) - 1) // PIECE * PIECE


def test_the_same_prompt_runs_its_last_piece_only() -> None:
    spec, prompt = speculator("eagle1"), prompt_of(3, 3 * PIECE)
    spec.cache_prefixes(1 << 30)
    assert [run(spec, 0, prompt)[2] for _ in range(2)] == [0, 2 * PIECE]


def test_a_prompt_that_ends_early_keeps_what_it_ran() -> None:
    spec, prompt = speculator("eagle1"), prompt_of(4, 3 * PIECE)
    spec.cache_prefixes(1 << 30)
    spec.begin_prefill(0, prompt)
    spec.advance_prefill(0)
    spec.release(0)
    assert run(spec, 1, prompt)[2] == PIECE


def test_nothing_is_kept_before_it_is_asked_for_or_after_it_is_turned_off() -> None:
    spec, prompt = speculator("alone"), prompt_of(5, 2 * PIECE + 1)
    spec.cache_prefixes(1 << 30)
    run(spec, 0, prompt)
    spec.cache_prefixes(0)
    assert run(spec, 0, prompt)[2] == 0


# The store itself: pieces of 4 tokens, one layer, a key head of two numbers


def small(max_pieces: int) -> tuple[PrefixCache, KVCache]:
    cache = KVCache(1, (2, 1, 64, 2), dtype=torch.float32, device=torch.device("cpu"))
    return PrefixCache(cache, piece_tokens=4, max_bytes=max_pieces * 2 * 4 * 2 * 4), cache


def fill(store: PrefixCache, cache: KVCache, prompt: list[int]) -> None:
    cache.keys[0][0, 0, : len(prompt), 0] = torch.tensor(prompt, dtype=torch.float32)
    for start in range(0, len(prompt), 4):
        store.keep(0, prompt, start, None)


def test_memory_stays_within_what_is_given_and_the_least_used_leaves() -> None:
    store, cache = small(3)
    old, new = list(range(8)), list(range(100, 108))
    fill(store, cache, old)
    fill(store, cache, new)  # one piece too many: the second of `old` goes
    assert store.num_bytes == 3 * 64
    assert len(store.restore(1, [*old, 0])) == 1
    assert len(store.restore(1, [*new, 0])) == 2


def test_what_is_used_stays() -> None:
    store, cache = small(3)
    used, other = [1, 2, 3, 4], [5, 6, 7, 8]
    fill(store, cache, used)
    fill(store, cache, other)
    store.restore(1, [*used, 0])
    fill(store, cache, list(range(50, 58)))
    assert len(store.restore(1, [*used, 0])) == 1
    assert store.restore(1, [*other, 0]) == []


def test_a_piece_larger_than_the_memory_is_not_kept() -> None:
    store, cache = small(0)
    fill(store, cache, [1, 2, 3, 4])
    assert store.restore(1, [1, 2, 3, 4, 5]) == []
    assert store.num_bytes == 0


def test_the_same_tokens_behind_others_are_another_piece() -> None:
    store, cache = small(8)
    fill(store, cache, [1, 2, 3, 4, 5, 6, 7, 8])
    assert store.restore(1, [5, 6, 7, 8, 9]) == []
    assert len(store.restore(1, [1, 2, 3, 4, 9, 9, 9, 9, 9])) == 1
    assert cache.keys[0][1, 0, :5, 0].tolist() == [1, 2, 3, 4, 0]
