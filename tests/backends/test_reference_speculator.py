"""The invariants of the reference step: speculation changes the speed and nothing else."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import Rerun

from neuron_spec.backends.base import Limits
from neuron_spec.backends.reference import opening
from neuron_spec.backends.reference.build import BACKEND
from neuron_spec.backends.reference.opening import cache_length, open_speculator
from neuron_spec.backends.reference.speculator import ReferenceSpeculator
from neuron_spec.engine.session import Session
from neuron_spec.errors import UserError
from neuron_spec.spec import BuildSpec

GOLDEN = Path(__file__).parents[1] / "golden"
# Draft -> method; all for the golden target.
DRAFTS = {"eagle1": "eagle", "eagle1_norm": "eagle", "draft": "model", "none": "ngram"}
MAX_TOTAL = 80
PROMPTS = st.lists(st.integers(3, 127), min_size=1, max_size=12)


def build_spec(
    k: int, *, method: str = "eagle", batch_size: int = 1, dtype: str = "float32"
) -> BuildSpec:
    model = None if method == "ngram" else "draft"
    return BuildSpec.model_validate(
        {
            "target": {"model": "target"},
            "draft": {"method": method, "model": model, "num_draft_tokens": k},
            "shape": {
                "max_prompt_tokens": MAX_TOTAL,
                "max_total_tokens": MAX_TOTAL,
                "batch_size": batch_size,
            },
            "reference": {"dtype": dtype},
        }
    )


NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# How passes run; "recorded" as CUDA graphs do, on a CPU.
WAYS = ["kernels", "recorded", pytest.param("cuda", marks=NEEDS_CUDA)]


@cache
def speculator(
    draft: str, k: int, batch_size: int = 1, way: str = "kernels"
) -> ReferenceSpeculator:
    spec = build_spec(k, method=DRAFTS[draft], batch_size=batch_size)
    directory = None if draft == "none" else GOLDEN / draft
    changes = {"recorded": {"kernels": "eager"}, "cuda": {"device": "cuda"}}.get(way, {})
    reference = spec.reference.model_copy(update=changes)
    spec = spec.model_copy(update={"reference": reference})
    if way != "recorded":
        return open_speculator(spec, GOLDEN / "target", directory)
    with (
        mock.patch.object(opening, "is_recorded", lambda spec: True),
        mock.patch.object(opening, "CudaGraphs", Rerun),
    ):
        return open_speculator(spec, GOLDEN / "target", directory)


def decode(spec: ReferenceSpeculator, prompt: list[int], length: int, ks: list[int]) -> list[int]:
    """At least `length` tokens; step i drafts `ks[i % len(ks)]`."""
    tokens, index = [spec.prefill(0, prompt).token], 0
    while len(tokens) < length:
        tokens += spec.step(ks[index % len(ks)])[0].tokens
        index += 1
    spec.release(0)
    return tokens


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("draft", DRAFTS)
@settings(max_examples=25, deadline=None)
@given(prompt=PROMPTS, k=st.sampled_from([1, 2, 4, 7]))
def test_speculative_greedy_equals_plain_greedy(
    draft: str, way: str, prompt: list[int], k: int
) -> None:
    length = 40
    plain = decode(speculator(draft, k, way=way), prompt, length, [0])
    assert decode(speculator(draft, k, way=way), prompt, length, [k])[:length] == plain


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("draft", DRAFTS)
@settings(max_examples=25, deadline=None)
@given(prompt=PROMPTS, ks=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_changing_the_draft_length_never_changes_the_text(
    draft: str, way: str, prompt: list[int], ks: list[int]
) -> None:
    length = 40
    plain = decode(speculator(draft, 4, way=way), prompt, length, [0])
    assert decode(speculator(draft, 4, way=way), prompt, length, ks)[:length] == plain


@pytest.mark.parametrize("draft", DRAFTS)
def test_drafts_are_accepted(draft: str) -> None:
    """An invariant alone would hold for a drafter that is never right."""
    spec, accepted, length = speculator(draft, 4), 0, 0
    spec.prefill(0, [1, 5, 88, 3, 61, 120, 33, 14, 9])
    while length < 60:
        result = spec.step(4)[0]
        accepted, length = accepted + result.num_accepted, length + len(result.tokens)
    spec.release(0)
    assert accepted > 0


def test_the_draft_is_as_good_after_a_pause_as_without_one() -> None:
    """Speculation off for many steps: the drafter catches up on what it missed."""
    spec, prompt = speculator("eagle1", 4), [1, 17, 42, 99, 7]
    spec.prefill(0, prompt)
    plain = [spec.step(0)[0].tokens[0] for _ in range(19)]
    after_pause = spec.step(4)
    spec.release(0)
    first = spec.prefill(0, prompt).token
    spec.release(0)
    spec.prefill(0, [*prompt, first, *plain[:-1]])  # the same history, run as a prompt
    assert spec.step(4) == after_pause
    assert after_pause[0].num_accepted > 0
    spec.release(0)


@pytest.mark.parametrize("draft", DRAFTS)
@settings(max_examples=15, deadline=None)
@given(prompts=st.lists(PROMPTS, min_size=1, max_size=5), k=st.sampled_from([0, 2, 4]))
def test_rows_of_a_batch_equal_their_own_runs(draft: str, prompts: list[list[int]], k: int) -> None:
    """Rows start, finish and are replaced at different times; each is as if it were alone."""
    limits = {"max_new_tokens": 20}

    def texts(batch_size: int) -> list[tuple[int, ...]]:
        session = Session(speculator(draft, 4, batch_size), NumberTokenizer())
        generations = session.generate_many(prompts, speculate=k > 0, **limits)
        return [generation.token_ids for generation in generations]

    assert texts(3) == texts(1)


class NumberTokenizer:
    stop_token_ids = frozenset({3, 64})  # frequent tokens, so that rows end at different times

    def encode(self, prompt: object) -> tuple[int, ...]:
        return tuple(prompt)  # type: ignore[arg-type]

    def decode(self, token_ids: object) -> str:
        return ""


@pytest.mark.parametrize("gap", range(7))
def test_prompts_that_end_just_before_the_compiled_length(gap: int) -> None:
    prompt = [3 + i % 120 for i in range(MAX_TOTAL - gap)]
    session = Session(speculator("eagle1", 4), NumberTokenizer())
    outputs = [
        session.generate(prompt, speculate=on, ignore_eos=True).token_ids for on in (False, True)
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == gap


@pytest.mark.parametrize("limit", range(13))
def test_output_has_exactly_as_many_tokens_as_asked(limit: int) -> None:
    session = Session(speculator("eagle1", 4), NumberTokenizer())
    output = session.generate([5], max_new_tokens=limit, ignore_eos=True)
    assert len(output.token_ids) == limit
    assert output.finish_reason == "length"


def test_bfloat16_runs_and_accepts() -> None:
    spec = open_speculator(build_spec(4, dtype="bfloat16"), GOLDEN / "target", GOLDEN / "eagle1")
    tokens = decode(spec, [1, 17, 42, 99, 7], 40, [4])
    assert len(tokens) >= 40


def test_slots_and_draft_lengths_are_checked() -> None:
    spec = speculator("eagle1", 2)
    spec.prefill(0, [5, 6])
    with pytest.raises(ValueError, match="slot 0 is not free"):
        spec.prefill(0, [5])
    with pytest.raises(ValueError, match="k = 3 is beyond 2"):
        spec.step(3)
    spec.release(0)
    assert spec.step(2) == []
    with pytest.raises(ValueError, match="a prompt of 0 tokens"):
        spec.prefill(0, [])


def test_limits_and_cache_room_come_from_the_spec() -> None:
    spec = build_spec(4, batch_size=3)
    limits = Limits.of(spec)
    assert (limits.batch_size, limits.num_draft_tokens) == (3, 4)
    assert cache_length(spec) >= limits.max_total_tokens + limits.num_draft_tokens + 1
    assert BACKEND.libraries() == {"torch": metadata.version("torch")}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_without_a_device_is_the_users_to_mend() -> None:
    spec = build_spec(4).model_copy(
        update={"reference": build_spec(4).reference.model_copy(update={"device": "cuda"})}
    )
    with pytest.raises(UserError, match=r"reference\.device"):
        open_speculator(spec, GOLDEN / "target", GOLDEN / "eagle1")


@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize("draft", DRAFTS)
def test_every_way_gives_the_same_tokens(draft: str, way: str) -> None:
    prompt = [1, 17, 42, 99, 7]
    found = decode(speculator(draft, 4, way=way), prompt, 40, [4])
    assert found[:40] == decode(speculator(draft, 4), prompt, 40, [4])[:40]
