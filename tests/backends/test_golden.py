"""The reference backend reproduces what NxDI's own code computed: tokens, counts, logits."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from neuron_spec.backends.base import Limits
from neuron_spec.backends.decisions import Decided, Decisions, Scored
from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.models import HEADS, Target
from neuron_spec.backends.reference.speculator import ReferenceSpeculator
from neuron_spec.checkpoints.model_config import read_config
from neuron_spec.drafters import CHAIN_DRAFTERS

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = 1e-4
K = 4
# Recorded case -> (target, draft method).
CASES = {
    "eagle1": ("target", "eagle"),
    "eagle1_norm": ("target", "eagle"),
    "eagle3": ("target3", "eagle3"),
    "fused_draft": ("target", "model"),
}
DIRECTORIES = {"fused_draft": "draft"}  # where the draft's name is not the case's
TARGETS = {"target_alone": "target", "target3_alone": "target3"}


class Watched(Decisions):
    """Greedy decisions whose logits can be looked at."""

    def __init__(self, seen: list[Tensor]) -> None:
        super().__init__("greedy", {}, draws_drafts=False, vocab_size=128)
        self._seen = seen

    def judge(
        self, tokens: Tensor, parents: Tensor | None, draft_probs: Tensor | None, scored: Scored
    ) -> list[Decided]:
        self._seen.append(scored.logits)
        return super().judge(tokens, parents, draft_probs, scored)


class Recorder:
    """A reference speculator whose draft and target logits can be looked at."""

    def __init__(self, target: str, draft: str | None = None, batch_size: int = 1) -> None:
        limits = Limits(batch_size, 32, 96, K if draft else 0)
        placement = Placement(batch_size, 110, torch.float32, torch.device("cpu"))
        kind = HEADS[CASES[draft][1]] if draft else None
        num_layers = read_config(GOLDEN / target).num_hidden_layers
        taps = (
            kind.taps(GOLDEN / DIRECTORIES.get(draft, draft), num_layers) if draft and kind else ()
        )
        self.target = Target(GOLDEN / target, placement, taps=taps)
        self.draft_logits: list[Tensor] = []  # one entry a drafted position, [rows, 1, vocab]
        self.target_logits: list[Tensor] = []  # one entry a step, [rows, k + 1, vocab]
        drafter = None
        if draft and kind:
            head = kind.load(GOLDEN / DIRECTORIES.get(draft, draft), placement)
            drafter = CHAIN_DRAFTERS[CASES[draft][1]](
                head.forward, lambda hidden: self._draft(head.logits(hidden))
            )
        self.speculator = ReferenceSpeculator(
            self.target,
            drafter,
            Watched(self.target_logits),
            limits=limits,
            device=placement.device,
        )

    def _draft(self, logits: Tensor) -> Tensor:
        self.draft_logits.append(logits)
        return logits


@cache
def recorded(case: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((GOLDEN / f"{case}.json").read_text())
    return data


@cache
def tensors(case: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / f"{case}.safetensors")


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", TARGETS)
@pytest.mark.parametrize("run", range(len(recorded("target_alone")["runs"])))
def test_target_alone(case: str, run: int) -> None:
    data = recorded(case)["runs"][run]
    recorder = Recorder(TARGETS[case])
    first = recorder.speculator.prefill(0, data["prompt"])
    tokens = [first.token]
    while len(tokens) < len(data["new_tokens"]):
        tokens += recorder.speculator.step(0)[0].tokens
    assert tokens == data["new_tokens"]
    logits = torch.stack([first.logits, *(step[0, 0] for step in recorder.target_logits)])
    rows = tensors(case)[f"r{run}.logits"]
    assert_close(logits[: len(rows)], rows[: len(logits)])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("run", range(5))
def test_eagle_steps(case: str, run: int) -> None:
    data, expected = recorded(case)["runs"][run], tensors(case)
    recorder = Recorder(CASES[case][0], case)
    first = recorder.speculator.prefill(0, data["prompt"])
    assert [first.token] == data["context_encoding"]["next_input_ids"]
    assert first.logits is not None
    assert_close(first.logits, expected[f"r{run}.cte.target_logits"])
    for index, step in enumerate(data["steps"]):
        recorder.draft_logits.clear()
        result = recorder.speculator.step(K)[0]
        drafted = torch.cat(recorder.draft_logits, dim=1)[0]  # [k, vocab]
        assert drafted.argmax(dim=-1).tolist() == step["draft_tokens"]
        assert recorder.target_logits[-1][0].argmax(dim=-1).tolist() == step["target_tokens"]
        assert result.num_accepted == step["num_draft_accepted"]
        # NxDI cuts what it emits at an EOS; here the engine does that.
        assert list(result.tokens)[: len(step["emitted"])] == step["emitted"]
        if index < data["logits_steps"]:
            key = f"r{run}.s{index}"
            # NxDI runs a plain draft once more than it verifies: its last row has no use.
            assert_close(drafted, expected[f"{key}.draft_logits"][:K])
            assert_close(recorder.target_logits[-1][0], expected[f"{key}.target_logits"])


def test_eagle_batch_of_unequal_prompts() -> None:
    data = recorded("eagle1_batch2")
    recorder = Recorder("target", "eagle1", batch_size=2)
    for slot, prompt in enumerate(data["prompts"]):
        recorder.speculator.prefill(slot, prompt)
    for step in data["steps"]:
        recorder.draft_logits.clear()
        results = recorder.speculator.step(K)
        drafted = torch.cat(recorder.draft_logits, dim=1).argmax(dim=-1)  # [rows, k]
        assert drafted.tolist() == step["draft_tokens"]
        for result, padded in zip(results, step["accepted_tokens_padded"], strict=True):
            assert list(result.tokens) == [token for token in padded if token >= 0]
