"""The Python walk of the README on tiny random models, against transformers' own decoding."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from neuron_spec import Session, check, compile_model, load, load_spec, prepare
from neuron_spec.engine.tokenizer import Prompt
from neuron_spec.equivalence import compare_greedy

PROMPTS: list[Prompt] = [
    "a",
    "The capital of France is",
    "né → 😀",
    [7, 8, 9, 250, 3],
    [{"role": "user", "content": "Hi!"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}],
]
LENGTH = 40


def walk(folder: Path, k: int) -> Session:
    """Spec to session, as the README does it."""
    path = tiny.write_spec(
        folder / f"k{k}.toml",
        target={"model": "target"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": k},
        shape={"max_prompt_tokens": 128, "max_total_tokens": 200, "batch_size": 3},
    )
    spec = load_spec(path)
    prepared = prepare(spec, folder / f"draft{k}")
    assert check(spec, prepared) == []
    return load(compile_model(spec, prepared, folder / f"artifact{k}").directory)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walk")
    tiny.write_target(folder / "target")
    tiny.write_eagle(folder / "eagle")
    return folder


@pytest.fixture(scope="module", params=[1, 3, 7])
def session(folder: Path, request: pytest.FixtureRequest) -> Session:
    return walk(folder, request.param)


@pytest.fixture(scope="module")
def by_transformers(folder: Path) -> list[tuple[int, ...]]:
    """Greedy output of every prompt, by transformers' `generate` on the same files."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    model = AutoModelForCausalLM.from_pretrained(folder / "target").eval()
    outputs = []
    for prompt in PROMPTS:
        if isinstance(prompt, str):
            ids = tokenizer(prompt)["input_ids"]
        elif isinstance(prompt[0], dict):
            ids = tokenizer.apply_chat_template(
                list(prompt), add_generation_prompt=True, return_dict=False
            )
        else:
            ids = list(prompt)
        tokens = torch.tensor([ids])
        with torch.inference_mode():
            output = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=LENGTH,
                do_sample=False,
            )
        outputs.append(tuple(output[0, len(ids) :].tolist()))
    return outputs


@pytest.mark.parametrize("speculate", [True, False])
def test_greedy_output_is_transformers_own(
    session: Session, by_transformers: list[tuple[int, ...]], speculate: bool
) -> None:
    generations = session.generate_many(PROMPTS, max_new_tokens=LENGTH, speculate=speculate)
    assert [g.token_ids for g in generations] == by_transformers
    for generation in generations:
        is_stopped = generation.token_ids[-1] == tiny.EOS
        assert generation.finish_reason == ("stop" if is_stopped else "length")


def test_alone_and_beside_others_a_prompt_gets_the_same(session: Session) -> None:
    together = session.generate_many(PROMPTS, max_new_tokens=LENGTH)
    alone = [session.generate(prompt, max_new_tokens=LENGTH) for prompt in PROMPTS]
    assert [g.token_ids for g in together] == [g.token_ids for g in alone]
    assert [g.text for g in together] == [g.text for g in alone]


def test_speculation_was_really_on(session: Session) -> None:
    k = session.speculator.limits.num_draft_tokens
    counts = session.generate("a", max_new_tokens=LENGTH, ignore_eos=True).acceptance
    assert counts.num_drafted == k * counts.num_steps > 0
    assert LENGTH - 1 <= counts.num_steps + counts.num_accepted <= LENGTH - 1 + k


def test_verification_finds_it_identical(session: Session) -> None:
    comparisons = compare_greedy(session, PROMPTS, max_new_tokens=LENGTH, near_tie_margin=0)
    assert all(comparison.is_identical for comparison in comparisons)


def test_the_text_is_the_tokens_text(session: Session) -> None:
    generation = session.generate("abc", max_new_tokens=LENGTH, ignore_eos=True)
    assert generation.text == session.tokenizer.decode(generation.token_ids)
    streamed = session.stream("abc", max_new_tokens=LENGTH, ignore_eos=True)
    assert "".join(event.text for event in streamed) == generation.text
