"""A speculator on a Markov chain: real rules, exact distributions, and defects to plant.

The target and the draft are matrices of logits [vocab, vocab]: the next token depends on the last
one only. Everything else is as in the reference backend: uniforms tied to seeds and positions,
drafts drawn or best, the package's own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from conftest import WordTokenizer
from torch import Tensor

from neuron_spec.backends.base import GREEDY, Decoding, Limits, PrefillResult, StepResult
from neuron_spec.engine import Session
from neuron_spec.rules import CHAIN_RULES, Uniforms, Verdict
from neuron_spec.rules.uniforms import DRAFT_STREAM, SAMPLE_STREAM, uniform_at
from neuron_spec.sampling import sample
from neuron_spec.trees import Tree

VOCAB = 8
LIMITS = Limits(
    batch_size=64,
    max_prompt_tokens=64,
    max_total_tokens=128,
    num_draft_tokens=3,
    can_sample=True,
    vocab_size=VOCAB,
)
Rule = Callable[[Tensor, "Tensor | None", Tensor, Uniforms], Verdict]


def chain_logits(seed: int, *, spread: float = 1.0) -> Tensor:
    """[vocab, vocab] random logits; the end token (2) never comes."""
    logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread
    logits[:, 2] = -torch.inf
    return logits


def near(logits: Tensor, *, seed: int = 9, noise: float = 0.7) -> Tensor:
    """A draft that is mostly right."""
    return logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed)) * noise


@dataclass
class _Row:
    token: int
    position: int
    seed: int
    temperature: float


class MarkovSpeculator:
    """See above. A defect is a method that a subclass overrides."""

    def __init__(self, target: Tensor, draft: Tensor, rule: str = "rejection", **parameters: Any):
        self.target, self.draft = target, draft
        self.rule: Rule = partial(CHAIN_RULES[rule], **parameters)
        self.rows: dict[int, _Row] = {}
        self.limits = LIMITS

    def prefill(
        self, slot: int, prompt_ids: Sequence[int], decoding: Decoding = GREEDY
    ) -> PrefillResult:
        params = decoding.sampling
        row = _Row(prompt_ids[-1], len(prompt_ids), params.seed or 0, params.temperature)
        logits = self.target[row.token]
        seed, position = torch.tensor([row.seed]), torch.tensor([row.position])
        probs = self.probs(logits[None], torch.tensor([row.temperature]))
        token = int(sample(probs, uniform_at(seed, position, SAMPLE_STREAM)))
        self.rows[slot] = _Row(token, row.position + 1, row.seed, row.temperature)
        return PrefillResult(token, logits)

    def step(self, num_draft_tokens: int) -> list[StepResult]:
        slots = sorted(self.rows)
        rows = [self.rows[slot] for slot in slots]
        temperatures = torch.tensor([row.temperature for row in rows])
        last = torch.tensor([row.token for row in rows])
        tokens, draft_probs = self.drafted(rows, last, temperatures, num_draft_tokens)
        context = torch.cat([last[:, None], tokens], dim=1)  # [rows, k + 1]
        target_probs = self.scored(context, temperatures)
        uniforms = Uniforms.at_positions(
            torch.tensor([row.seed for row in rows]),
            torch.tensor([row.position for row in rows]),
            Tree.chain(num_draft_tokens),
        )
        verdict = self.judged(tokens, draft_probs, target_probs, uniforms)
        results = []
        for place, slot in enumerate(slots):
            accepted = int(verdict.num_accepted[place])
            new = (*tokens[place, :accepted].tolist(), int(verdict.next_tokens[place]))
            rows[place].position += len(new)
            rows[place].token = self.kept(tokens[place].tolist(), new)
            results.append(StepResult(slot, new, num_draft_tokens, accepted))
        return results

    def release(self, slot: int) -> None:
        self.rows.pop(slot, None)

    # What defects change

    def probs(self, logits: Tensor, temperatures: Tensor) -> Tensor:
        """[rows, …, vocab] at each row's temperature; 0 is one-hot."""
        shape = [-1, *[1] * (logits.ndim - 1)]
        greedy = torch.nn.functional.one_hot(logits.argmax(dim=-1), VOCAB).float()
        warm = (logits / temperatures.clamp(min=1e-6).view(shape)).softmax(dim=-1)
        return torch.where(temperatures.view(shape) > 0, warm, greedy)

    def drafted(
        self, rows: Sequence[_Row], last: Tensor, temperatures: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        """Drawn tokens [rows, k] and what they were drawn from [rows, k, vocab]."""
        seeds = torch.tensor([row.seed for row in rows])
        positions = torch.tensor([row.position for row in rows])
        tokens, probs = [torch.empty(len(rows), 0, dtype=torch.long)], []
        for depth in range(k):
            drawn_from = self.probs(self.draft[last], temperatures)
            last = sample(drawn_from, uniform_at(seeds, positions + depth, DRAFT_STREAM))
            tokens.append(last[:, None])
            probs.append(self.told(drawn_from)[:, None])
        return torch.cat(tokens, dim=1), torch.cat([torch.empty(len(rows), 0, VOCAB), *probs], 1)

    def told(self, drawn_from: Tensor) -> Tensor:
        """What the rule is told that a token was drawn from."""
        return drawn_from

    def scored(self, context: Tensor, temperatures: Tensor) -> Tensor:
        """The target's probabilities after every token [rows, k + 1]."""
        return self.probs(self.target[context], temperatures)

    def judged(
        self, tokens: Tensor, draft_probs: Tensor, target_probs: Tensor, uniforms: Uniforms
    ) -> Verdict:
        return self.rule(tokens, draft_probs, target_probs, uniforms)

    def kept(self, drafts: Sequence[int], new: Sequence[int]) -> int:
        """What the next step goes on from."""
        return new[-1]


def session_of(speculator: Any) -> Session:
    return Session(speculator, WordTokenizer())
