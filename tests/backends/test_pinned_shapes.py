"""Pinned shapes: bitwise the same logits for every k, in every place, beside everybody."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from compilers import has_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from neuron_spec import load_spec
from neuron_spec.backends.base import Decoding, TokenLogprobs
from neuron_spec.backends.reference import opening
from neuron_spec.backends.reference.build import BACKEND
from neuron_spec.backends.reference.linear import Linear
from neuron_spec.backends.reference.native.choice import native_of
from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.backends.reference.pin_check import PinCheck, machine
from neuron_spec.backends.reference.pinned import PinnedShape, PinnedWindow
from neuron_spec.backends.reference.speculator import ReferenceSpeculator
from neuron_spec.compiler import compile_model
from neuron_spec.errors import BackendError, SpecError
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.spec import BuildSpec
from neuron_spec.spec.guarantees import NUMERICS, PINNED_NUMERICS
from neuron_spec.trees import Tree

GOLDEN = Path(__file__).parents[1] / "golden"
MAX_TOTAL, NUM_NEW = 160, 16
VOCAB = tiny.CONFIG["vocab_size"]
# As wide as a small real model: of tiny matrices kernels sum whole rows in one way.
WIDE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
# `early-exit` after the last layer drafts what the target would say, so that all is accepted.
SELF_DRAFT = {"method": "early-exit", "exit_layer": 2}
DRAFTS: dict[str, dict[str, Any]] = {
    "exit": {**SELF_DRAFT, "num_draft_tokens": 4},
    "ngram": {"method": "ngram", "num_draft_tokens": 3},
    "tree": {**SELF_DRAFT, "tree": TREE},
    "dynamic": {
        **SELF_DRAFT,
        "num_draft_tokens": 7,
        "dynamic_tree": {"depth": 3, "top_k": 3},
    },
}
KERNELS = ("auto", "eager")
GOLDEN_DRAFTS = {"eagle1": "eagle", "draft": "model"}

Output = tuple[list[int], list[TokenLogprobs]]
"""Tokens, and at each the log-probabilities of the whole vocabulary."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_target(tmp_path_factory.mktemp("wide"), **WIDE)


def spec_of(draft: dict[str, Any], dtype: str, *, pinned: bool = True, **others: Any) -> BuildSpec:
    return BuildSpec.model_validate(
        {
            "target": {"model": "target"},
            "draft": draft,
            "verification": {"pin_shapes": pinned, **others.get("verification", {})},
            "shape": {
                "max_prompt_tokens": MAX_TOTAL - NUM_NEW,
                "max_total_tokens": MAX_TOTAL,
                "batch_size": others.get("batch_size", 1),
            },
            "reference": {
                "dtype": dtype,
                "num_threads": 1,
                "kernels": others.get("kernels", "auto"),
            },
        }
    )


@cache
def opened(
    target: Path,
    draft: str,
    dtype: str,
    kernels: str,
    *,
    pinned: bool = True,
    batch_size: int = 1,
) -> ReferenceSpeculator:
    if draft in DRAFTS:
        fields, directory = DRAFTS[draft], None
    else:
        fields = {"method": GOLDEN_DRAFTS[draft], "model": "draft", "num_draft_tokens": 4}
        directory = GOLDEN / draft
    spec = spec_of(fields, dtype, pinned=pinned, batch_size=batch_size, kernels=kernels)
    speculator = open_speculator(spec, target, directory)
    assert isinstance(speculator, ReferenceSpeculator)
    return speculator


def decode(
    speculator: ReferenceSpeculator,
    prompt: list[int],
    ks: list[int],
    *,
    slot: int = 0,
    sampling: SamplingParams | None = None,
) -> Output:
    """`NUM_NEW` tokens; step i drafts `ks[i % len(ks)]`."""
    vocab_size = speculator.limits.vocab_size
    decoding = Decoding(sampling or SamplingParams(), num_logprobs=vocab_size)
    first = speculator.prefill(slot, prompt, decoding)
    assert first.logprobs is not None
    tokens, logprobs, index = [first.token], [first.logprobs], 0
    while len(tokens) < NUM_NEW:
        results = speculator.step(ks[index % len(ks)])
        result = next(result for result in results if result.slot == slot)
        assert result.logprobs is not None
        tokens, logprobs, index = (
            [*tokens, *result.tokens],
            [*logprobs, *result.logprobs],
            index + 1,
        )
    speculator.release(slot)
    return tokens[:NUM_NEW], logprobs[:NUM_NEW]


def prompt_of(length: int, seed: int = 0, vocab_size: int = VOCAB) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, vocab_size, (length,), generator=generator).tolist()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("draft", GOLDEN_DRAFTS)
@settings(max_examples=8, deadline=None)
@given(
    prompt=st.lists(st.integers(3, 127), min_size=1, max_size=30),
    ks=st.lists(st.integers(0, 4), min_size=1, max_size=5),
)
def test_trained_drafts_change_no_bit(
    draft: str, dtype: str, kernels: str, prompt: list[int], ks: list[int]
) -> None:
    speculator = opened(GOLDEN / "target", draft, dtype, kernels)
    assert decode(speculator, prompt, ks) == decode(speculator, prompt, [0])


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("draft", DRAFTS)
@settings(max_examples=4, deadline=None)
@given(length=st.integers(1, 135), seed=st.integers(0, 99), data=st.data())
def test_no_draft_of_a_wide_model_changes_a_bit(
    wide: Path, draft: str, dtype: str, kernels: str, length: int, seed: int, data: st.DataObject
) -> None:
    speculator, prompt = opened(wide, draft, dtype, kernels), prompt_of(length, seed)
    k = speculator.limits.num_draft_tokens
    ks = data.draw(st.lists(st.integers(0, k), min_size=1, max_size=4))
    plain = decode(speculator, prompt, [0])
    assert decode(speculator, prompt, [k]) == plain
    assert decode(speculator, prompt, ks) == plain


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("draft", ["exit", "tree", "dynamic"])
def test_without_the_option_bits_do_change(wide: Path, draft: str, dtype: str) -> None:
    """Or the tests above would show nothing of PyTorch's operators; and drafts are accepted."""
    num_changed = {False: 0, True: 0}
    for pinned in num_changed:
        speculator = opened(wide, draft, dtype, "eager", pinned=pinned)
        for length in (1, 40, 130):
            plain, drafted = (
                decode(speculator, prompt_of(length), [k])
                for k in (0, speculator.limits.num_draft_tokens)
            )
            num_changed[pinned] += plain[1] != drafted[1]
    assert num_changed[True] == 0
    assert num_changed[False] > 0
    speculator.prefill(0, prompt_of(40))
    assert speculator.step(speculator.limits.num_draft_tokens)[0].num_accepted > 0
    speculator.release(0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("draft", ["exit", "tree", "dynamic"])
def test_compiled_kernels_change_no_bit_without_the_option(
    wide: Path, draft: str, dtype: str
) -> None:
    """As long as a step has no more rows than they take."""
    if not has_compiler():
        pytest.skip("no C++ compiler")
    assert native_of(spec_of(DRAFTS[draft], dtype)) is not None
    speculator = opened(wide, draft, dtype, "auto", pinned=False)
    k = speculator.limits.num_draft_tokens
    for length in (1, 40, 130):
        assert decode(speculator, prompt_of(length), [k]) == decode(
            speculator, prompt_of(length), [0]
        )


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("draft", ["exit", "tree"])
@settings(max_examples=5, deadline=None)
@given(
    slot=st.integers(0, 2),
    length=st.integers(1, 130),
    other=st.integers(1, 130),
    k=st.integers(0, 4),
)
def test_neighbours_change_no_bit(
    wide: Path, draft: str, kernels: str, slot: int, length: int, other: int, k: int
) -> None:
    """A request alone, and beside one that comes in the middle and leaves again."""
    speculator = opened(wide, draft, "bfloat16", kernels, batch_size=3)
    prompt = prompt_of(length)
    alone = decode(speculator, prompt, [0], slot=0)
    beside = (slot + 1) % 3
    speculator.prefill(beside, prompt_of(other, 1))
    assert decode(speculator, prompt, [k], slot=slot) == alone
    speculator.release(beside)
    assert decode(speculator, prompt, [k, 0], slot=slot) == alone


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_prompt_that_is_run_in_pieces_beside_is_not_written_to(wide: Path, kernels: str) -> None:
    speculator = opened(wide, "exit", "bfloat16", kernels, batch_size=3)
    late, prompt = prompt_of(135, 2), prompt_of(20, 3)
    alone = decode(speculator, late, [0], slot=1)
    speculator.begin_prefill(1, late, Decoding(num_logprobs=VOCAB))
    assert speculator.advance_prefill(1) is None
    decode(speculator, prompt, [4], slot=0)
    first = speculator.advance_prefill(1)
    assert first is not None
    assert first.logprobs == alone[1][0]
    assert speculator.step(4)[0].logprobs is not None
    speculator.release(1)


def test_every_product_has_the_same_rows(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speculator = opened(wide, "ngram", "float32", "eager", batch_size=3)
    product, seen = Linear.__call__, set()

    def noted(self: Linear, x: torch.Tensor) -> torch.Tensor:
        seen.add(tuple(x.shape[:-1]))
        return product(self, x)

    speculator.prefill(0, [7, 8, 9, 7, 8])
    monkeypatch.setattr(Linear, "__call__", noted)
    for k in (0, 1, 3):
        speculator.step(k)
    monkeypatch.undo()
    speculator.prefill(2, [7, 8, 9, 7, 8])
    monkeypatch.setattr(Linear, "__call__", noted)
    for k in (3, 0):
        speculator.step(k)
    speculator.release(0)
    speculator.release(2)
    assert seen == {(3, 4)}


@pytest.mark.parametrize("seed", range(3))
def test_sampled_tokens_are_those_of_every_k(wide: Path, seed: int) -> None:
    """Of `sample-match`: the draws belong to positions, and now the logits do as well."""
    spec = spec_of(DRAFTS["exit"], "bfloat16", verification={"rule": "sample-match"})
    speculator = open_speculator(spec, wide, None)
    assert isinstance(speculator, ReferenceSpeculator)
    sampling = SamplingParams(temperature=0.9, top_p=0.95, seed=seed)
    plain = decode(speculator, prompt_of(30, seed), [0], sampling=sampling)
    for ks in ([1], [4], [2, 0, 3]):
        assert decode(speculator, prompt_of(30, seed), ks, sampling=sampling) == plain


def test_nothing_is_written_for_padding(wide: Path) -> None:
    speculator = opened(wide, "exit", "float32", "eager", batch_size=2)
    cache = speculator.score.target.cache
    speculator.prefill(0, prompt_of(9))
    speculator.step(1)
    for state in (*cache.keys, *cache.values):
        assert bool((state[0, :, :11].abs().sum(dim=(0, 2)) > 0).all())
        assert bool((state[0, :, 11:] == 0).all())
        assert bool((state[1] == 0).all())


def test_activations_do_not_depend_on_the_share_of_a_thread() -> None:
    """PyTorch gives threads shares that end within rows, and computes the ends in another way."""
    gate = torch.randn(1, 1, 14333, generator=torch.Generator().manual_seed(0))
    rows = gate.expand(1, 7, -1).contiguous()
    window = PinnedWindow(PinnedShape(1, 7), {0: 0}, 7, branches=None, device=gate.device)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found, shared_out = window.silu(rows)[0], F.silu(rows)[0]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(row, found[0]) for row in found)
    torch.testing.assert_close(found, shared_out)


# --- the check at build time ---


@pytest.fixture
def build_file(tmp_path: Path) -> Path:
    tiny.write_target(tmp_path / "target")
    return tmp_path / "build.toml"


def written(
    path: Path, *, dtype: str = "bfloat16", kernels: str = "eager", **draft: Any
) -> BuildSpec:
    grown = draft.pop("dynamic_tree", {})
    rows = [f"{name} = {value}" for name, value in grown.items()]
    return load_spec(
        tiny.write_spec(
            path,
            "\n".join(["[draft.dynamic_tree]", *rows]) if rows else "",
            target={"model": "target"},
            draft=draft or {"method": "ngram", "num_draft_tokens": 3},
            verification={"pin_shapes": True},
            shape={"max_prompt_tokens": 140, "max_total_tokens": 200, "batch_size": 2},
            reference={"dtype": dtype, "kernels": kernels},
        )
    )


def test_what_was_checked_stands_in_the_manifest(build_file: Path, tmp_path: Path) -> None:
    manifest = compile_model(written(build_file), output=tmp_path / "artifact").manifest
    record = manifest.pinned_shapes
    assert record is not None
    assert (record.num_rows, record.width, record.dtype) == (2, 4, "bfloat16")
    assert record.draft_lengths == (0, 1, 3)
    # two prompts, their continuations of 8 tokens, three k, first and last slot
    assert record.num_checked == 2 * 8 * 3 * 2
    assert record.identical
    assert record.machine == machine(torch.device("cpu"))
    assert record.num_threads == torch.get_num_threads()
    assert manifest.numerics == PINNED_NUMERICS


def test_without_the_option_nothing_is_recorded(build_file: Path, tmp_path: Path) -> None:
    spec = written(build_file)
    spec = spec.model_copy(update={"verification": BuildSpec(target=spec.target).verification})
    manifest = compile_model(spec, output=tmp_path / "artifact").manifest
    assert manifest.pinned_shapes is None
    assert manifest.numerics == NUMERICS


def depends_on_the_place(self: PinnedWindow, x: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * (1 + 0.01 * torch.arange(x.shape[1])[None, :, None]).to(x.dtype)


def depends_on_the_slot(self: PinnedWindow, x: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * (1 + 0.01 * torch.arange(x.shape[0])[:, None, None]).to(x.dtype)


@pytest.mark.parametrize(
    "draft",
    [
        {"method": "ngram", "num_draft_tokens": 3},
        {**DRAFTS["tree"], "exit_layer": 1},
        {**DRAFTS["dynamic"], "exit_layer": 1},
    ],
)
@pytest.mark.parametrize("broken", [depends_on_the_place, depends_on_the_slot])
def test_a_machine_that_breaks_the_promise_gets_no_artifact(
    build_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    draft: dict[str, Any],
    broken: Any,
) -> None:
    spec = written(build_file, **draft)
    compile_model(spec, output=tmp_path / "whole")
    monkeypatch.setattr(PinnedWindow, "silu", broken)
    width = spec.num_draft_tokens + 1
    with pytest.raises(BackendError, match=rf"passes of 2 x {width} positions") as raised:
        compile_model(spec, output=tmp_path / "artifact")
    for word in ("bfloat16", "threads", "reference.num_threads", "pin_shapes out"):
        assert word in str(raised.value)
    assert not (tmp_path / "artifact").exists()


def test_compiled_kernels_that_break_the_promise_get_no_artifact(
    build_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = Linear.__call__

    def broken(self: Linear, x: torch.Tensor) -> torch.Tensor:
        return product(self, x) * (1 + 0.01 * torch.arange(x.shape[1])[:, None]).to(x.dtype)

    monkeypatch.setattr(Linear, "__call__", broken)
    with pytest.raises(BackendError, match="passes of 2 x 4 positions"):
        compile_model(written(build_file, kernels="auto"), output=tmp_path / "artifact")


@pytest.mark.parametrize("change", ["machine", "threads", None])
def test_another_machine_checks_anew(
    build_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str | None
) -> None:
    artifact = compile_model(written(build_file), output=tmp_path / "artifact")
    runs: list[PinCheck] = []
    monkeypatch.setattr(PinCheck, "run", lambda check: runs.append(check))
    if change == "machine":
        monkeypatch.setattr(opening, "machine", lambda device: "another")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + (change == "threads"))
    try:
        BACKEND.open(artifact)
    finally:
        torch.set_num_threads(threads)
    assert len(runs) == (change is not None)


def test_the_shortest_lengths_are_checked_as_well(wide: Path) -> None:
    spec = spec_of(DRAFTS["exit"], "bfloat16")
    shape = spec.shape.model_copy(update={"max_prompt_tokens": 1, "max_total_tokens": 3})
    speculator = open_speculator(spec.model_copy(update={"shape": shape}), wide, None)
    assert isinstance(speculator, ReferenceSpeculator)
    record = PinCheck(speculator.score, PinnedShape(1, 5), speculator.limits, None).run()
    assert record["num_checked"] == 2 * 4  # a prompt of one token, two after it, four k


def test_a_check_of_a_tree_takes_all_its_branches() -> None:
    tree = Tree.from_paths(TREE)
    speculator = opened(GOLDEN / "target", "eagle1", "float32", "auto")
    check = PinCheck(speculator.score, PinnedShape(1, 8), speculator.limits, tree)
    assert check.draft_lengths == (0, tree.num_draft_tokens)


def test_nxdi_has_no_such_option() -> None:
    fields = {
        "target": {"model": "target"},
        "verification": {"pin_shapes": True},
        "reference": {"emulate": "nxdi"},
    }
    with pytest.raises((SpecError, ValueError), match=r"verification\.pin_shapes"):
        BuildSpec.model_validate(fields)
