"""Drafts that need no checkpoint of their own kind: out of the target, out of earlier text, and out
of a model of another family. None of them changes the text, whatever happens around it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_heads
import tiny_vocabularies
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.opening import cache_length, open_speculator
from neuron_spec.backends.reference.self_drafts import EarlyExit, MtpLayer
from neuron_spec.backends.reference.speculator import ReferenceSpeculator
from neuron_spec.spec import BuildSpec

NUM_LAYERS, K, BATCH = 3, 3, 3
DRAFTS: dict[str, dict[str, Any]] = {
    "none": {"method": "none"},
    "early-exit": {"method": "early-exit", "exit_layer": 2},
    "early-exit-tree": {"method": "early-exit", "exit_layer": 1, "tree": [[0], [1], [0, 0]]},
    "mtp": {"method": "mtp"},
    "mtp-tree": {"method": "mtp", "dynamic_tree": {"depth": 2, "top_k": 2}},
    "suffix": {"method": "suffix", "suffix_depth": 6, "suffix_answers": 3},
    "translated": {"method": "model", "model": "x", "vocabulary": "intersection"},
    "foreign": {"method": "model", "model": "x", "vocabulary": "intersection"},
}
PROMPT = st.lists(st.integers(0, 258), min_size=1, max_size=10)
Open = dict[str, ReferenceSpeculator]


def build_spec(name: str) -> BuildSpec:
    shape = {"max_prompt_tokens": 40, "max_total_tokens": 60, "batch_size": BATCH}
    draft = {"num_draft_tokens": K, **DRAFTS[name]}
    return BuildSpec.model_validate({"target": {"model": "x"}, "draft": draft, "shape": shape})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    target = tiny_heads.write_mtp_target(folder / "target", num_hidden_layers=NUM_LAYERS)
    tiny_vocabularies.write_translated(folder / "translated", target)
    tiny_vocabularies.write_translated(
        folder / "foreign", target, merges=("aab", "ba"), missing="xyÃ"
    )
    return folder


@pytest.fixture(scope="module")
def opened(folder: Path) -> Open:
    directories = {name: folder / name if (folder / name).is_dir() else None for name in DRAFTS}
    return {
        name: open_speculator(build_spec(name), folder / "target", directory)
        for name, directory in directories.items()
    }


def serve(
    speculator: ReferenceSpeculator, prompts: Sequence[list[int]], ks: Sequence[int]
) -> list[list[int]]:
    """The answers to prompts that take free slots in turn; the i-th is left after 4 + 5 i % 17
    tokens, the j-th step drafts `ks[j % len(ks)]`."""
    lengths = [4 + 5 * index % 17 for index in range(len(prompts))]
    answers: list[list[int]] = [[] for _ in prompts]
    waiting, running = list(range(len(prompts))), dict[int, int]()
    step = 0
    while waiting or running:
        for slot in sorted(set(range(BATCH)) - running.keys())[: len(waiting)]:
            running[slot] = waiting.pop(0)
            answers[running[slot]].append(speculator.prefill(slot, prompts[running[slot]]).token)
        for result in speculator.step(ks[step % len(ks)]):
            index = running[result.slot]
            answers[index] += result.tokens
            if len(answers[index]) >= lengths[index]:
                speculator.release(result.slot)
                del running[result.slot]
        step += 1
    return [answer[:length] for answer, length in zip(answers, lengths, strict=True)]


@pytest.mark.parametrize("draft", [name for name in DRAFTS if name != "none"])
@settings(max_examples=6, deadline=None)
@given(
    prompts=st.lists(PROMPT, min_size=1, max_size=6),
    ks=st.lists(st.integers(0, K), min_size=1, max_size=5),
)
def test_rows_at_their_own_pace_in_reused_slots_get_the_targets_own_text(
    opened: Open, draft: str, prompts: list[list[int]], ks: list[int]
) -> None:
    plain = serve(opened["none"], prompts, [0])
    assert serve(opened[draft], prompts, ks) == plain


@pytest.mark.parametrize("draft", ["early-exit", "mtp"])
def test_the_draft_is_as_good_after_a_pause_as_without_one(opened: Open, draft: str) -> None:
    speculator, prompt = opened[draft], [70, 75, 80, 72]
    first = speculator.prefill(1, prompt).token
    plain = [speculator.step(0)[0].tokens[0] for _ in range(12)]
    drafter = speculator._drafter
    assert drafter is not None
    with torch.inference_mode():
        after_pause = drafter.propose(2, K).tokens[1]
        speculator.release(1)
        speculator.prefill(1, [*prompt, first, *plain[:-1]])  # the same history, as a prompt
        as_prompt = drafter.propose(2, K).tokens[1]
    speculator.release(1)
    assert after_pause.tolist() == as_prompt.tolist()


def test_the_same_model_in_another_vocabulary_is_always_right(opened: Open) -> None:
    speculator = opened["translated"]
    speculator.prefill(0, [70, 75, 80, 1, 72])
    results = [speculator.step(k)[0] for k in (K, K, 1, 0, 0, 0, 0, 0, 0, K, 2)]
    speculator.release(0)
    assert [result.num_accepted for result in results] == [K, K, 1, 0, 0, 0, 0, 0, 0, K, 2]


def test_a_foreign_draft_that_reads_everything_otherwise_is_still_sometimes_right(
    opened: Open,
) -> None:
    speculator = opened["foreign"]
    speculator.prefill(0, [70, 71, 70, 75, 80, 1, 72])
    results = [speculator.step(K)[0] for _ in range(10)]
    speculator.release(0)
    assert sum(result.num_accepted for result in results) > 0
    assert all(result.num_drafted == K for result in results)


def test_repeated_requests_are_drafted_from_earlier_answers(folder: Path) -> None:
    speculator = open_speculator(build_spec("suffix"), folder / "target", None)

    def answer() -> tuple[list[int], int]:
        tokens, accepted = [speculator.prefill(0, [90, 91, 92]).token], 0
        while len(tokens) < 30:
            result = speculator.step(K)[0]
            tokens, accepted = [*tokens, *result.tokens], accepted + result.num_accepted
        speculator.release(0)
        return tokens[:30], accepted

    (first, before), (second, after) = answer(), answer()
    assert first == second
    assert after > before and after >= 15


# Arithmetic


def placement(num_slots: int = 1) -> Placement:
    return Placement(num_slots, 64, torch.float32, torch.device("cpu"))


def test_an_early_exit_is_the_model_of_the_first_layers(folder: Path, tmp_path: Path) -> None:
    target = Target(folder / "target", placement())
    draft = EarlyExit(target, 2, placement())
    config = json.loads((folder / "target/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    save_file(load_file(folder / "target/model.safetensors"), tmp_path / "model.safetensors")
    ids, features = torch.tensor([[5, 9, 200, 7]]), torch.zeros(1, 4, 0)
    found = draft.logits(draft.forward(ids, features, [0]))
    expected_of = Target(tmp_path, placement())
    expected = expected_of.logits(expected_of.hidden(ids, [0])[0])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert all(a is b for a, b in zip(draft._decoder.layers, target.layers, strict=False))
    assert len(draft._decoder.layers) == 2


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.fixture
def mtp_states() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[5, 9, 200, 7]]), torch.randn(1, 4, 32, generator=generator())


def by_transformers(directory: Path, ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Logits of one MTP layer: its decoder layer in transformers' Llama, the rest spelled out."""
    tensors = load_file(directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    prefix = f"model.layers.{config['num_hidden_layers']}."
    one_layer = {**config, "num_hidden_layers": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**one_layer)).eval()
    of_layer = re.compile(re.escape(prefix) + r"(self_attn|mlp|\w+_layernorm)\.")
    own = {
        name.replace(prefix, "model.layers.0."): tensor
        for name, tensor in tensors.items()
        if of_layer.match(name)
    }
    own["model.norm.weight"] = tensors[prefix + "shared_head.norm.weight"]
    own["lm_head.weight"] = tensors[prefix + "shared_head.head.weight"]
    own["model.embed_tokens.weight"] = tensors[prefix + "embed_tokens.weight"]
    model.load_state_dict(own)
    embedded = F.embedding(ids, own["model.embed_tokens.weight"])

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (32,), tensors[f"{prefix}{name}.weight"], config["rms_norm_eps"])

    joined = torch.cat([normed(embedded, "enorm"), normed(states, "hnorm")], dim=-1)
    with torch.no_grad():
        projected = F.linear(joined, tensors[f"{prefix}eh_proj.weight"])
        return model(inputs_embeds=projected).logits


def test_an_mtp_layer_agrees_with_transformers_layer(
    folder: Path, mtp_states: tuple[torch.Tensor, torch.Tensor]
) -> None:
    directory = folder / "target"
    layer = MtpLayer(Target(directory, placement()), directory, placement())
    ids, states = mtp_states
    found = layer.logits(layer.forward(ids, states, [0]))
    torch.testing.assert_close(found, by_transformers(directory, ids, states), rtol=1e-4, atol=1e-4)


def change_mtp(source: Path, directory: Path, name: str, tensor: torch.Tensor | None) -> Path:
    tensors = load_file(source / "model.safetensors")
    key = f"model.layers.{NUM_LAYERS}.{name}"
    if tensor is None:
        del tensors[key]
    else:
        tensors[key] = tensor
    directory.mkdir()
    (directory / "config.json").write_text((source / "config.json").read_text())
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("name", ["embed_tokens.weight", "shared_head.head.weight"])
def test_copies_are_in_memory_once_and_other_tables_are_used(
    folder: Path, tmp_path: Path, name: str, mtp_states: tuple[torch.Tensor, torch.Tensor]
) -> None:
    source, (ids, states) = folder / "target", mtp_states

    def layer_of(directory: Path) -> MtpLayer:
        return MtpLayer(Target(directory, placement()), directory, placement())

    layer = layer_of(source)
    assert layer._embedding is None and layer._lm_head is None
    without = layer_of(change_mtp(source, tmp_path / "without", name, None))
    expected = layer.logits(layer.forward(ids, states, [0]))
    found = without.logits(without.forward(ids, states, [0]))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    other = torch.randn(259, 32, generator=generator())
    directory = change_mtp(source, tmp_path / "other", name, other)
    changed = layer_of(directory)
    found = changed.logits(changed.forward(ids, states, [0]))
    torch.testing.assert_close(found, by_transformers(directory, ids, states), rtol=1e-4, atol=1e-4)


def test_a_tied_target_shares_its_embedding_with_the_mtp_layer(tmp_path: Path) -> None:
    directory = tiny_heads.write_mtp_target(tmp_path / "tied", tie_word_embeddings=True)
    layer = MtpLayer(Target(directory, placement()), directory, placement())
    assert layer._embedding is None and layer._lm_head is None


def test_a_draft_in_its_own_tokens_may_outgrow_the_cache(tmp_path: Path) -> None:
    """The target has a token for `aaa`, the draft reads three: it stops drafting, and nothing else
    happens."""
    target = tiny.write_target(tmp_path / "draft")
    tiny_vocabularies.write_translated(tmp_path / "target", target, merges=("aaa",))
    spec = build_spec("translated")
    speculator = open_speculator(spec, tmp_path / "target", tmp_path / "draft")
    alone = open_speculator(build_spec("none"), tmp_path / "target", None)
    triple = 3 + 256 + 1  # special tokens, bytes, `aa`
    prompt = [triple] * 44
    speculator.prefill(0, prompt)
    drafted = [speculator.step(K)[0].num_drafted for _ in range(6)]
    speculator.release(0)
    assert cache_length(spec) == 128 and len(prompt) * 3 > 128
    assert drafted == [0] * 6
    assert serve(speculator, [prompt, [7, 8]], [K]) == serve(alone, [prompt, [7, 8]], [0])
