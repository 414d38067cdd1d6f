"""A lookup before a draft: row by row the one or the other, and what they learn."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from neuron_spec.drafters import NO_PROPOSAL, NgramDrafter
from neuron_spec.drafters.base import Choose, Proposal, choose_best
from neuron_spec.drafters.combined import CombinedDrafter

NONE = torch.zeros(0, 8)
VOCAB = 12


@dataclass
class Constant:
    """A draft that proposes 7 again and again, and notes what it is told."""

    told: list[tuple[str, int, list[int]]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def begin(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        self.told.append(("begin", slot, tokens.tolist()))

    def observe(self, slot: int, tokens: Tensor, features: Tensor) -> None:
        self.told.append(("observe", slot, tokens.tolist()))

    def release(self, slot: int) -> None:
        self.told.append(("release", slot, []))

    def propose(
        self, num_rows: int, num_draft_tokens: int, choose: Choose = choose_best
    ) -> Proposal:
        self.asked.append(num_draft_tokens)
        tokens, probs = [], []
        for _ in range(num_draft_tokens):
            logits = torch.zeros(num_rows, 1, VOCAB)
            logits[:, :, 7] = 5.0
            token, prob = choose(logits)
            tokens.append(token)
            probs.append(prob)
        given = [prob for prob in probs if prob is not None]
        return Proposal(torch.cat(tokens, dim=1), probs=torch.cat(given, dim=1) if given else None)


def combined(draft: Constant, *, shortest: int = 2) -> CombinedDrafter:
    lookup = NgramDrafter(min_size=1, max_size=3)
    return CombinedDrafter(lookup, draft, num_draft_tokens=2, shortest=shortest)


def begin(drafter: CombinedDrafter, *prompts: list[int]) -> None:
    for slot, prompt in enumerate(prompts):
        drafter.begin(slot, torch.tensor(prompt), NONE)


def test_what_repeats_is_looked_up_and_the_draft_rests() -> None:
    draft = Constant()
    drafter = combined(draft)
    begin(drafter, [1, 2, 3, 4, 5, 6, 1, 2])
    assert drafter.propose(1, 4).tokens.tolist() == [[3, 4, 5, 6]]
    assert draft.asked == []


def test_what_is_new_is_drafted_as_far_as_the_draft_goes() -> None:
    draft = Constant()
    drafter = combined(draft)
    begin(drafter, [1, 2, 3, 4])
    assert drafter.propose(1, 4).tokens.tolist() == [[7, 7]]
    assert drafter.propose(1, 1).tokens.tolist() == [[7]]
    assert draft.asked == [2, 1]


def test_rows_are_padded_to_each_other() -> None:
    drafter = combined(Constant())
    begin(drafter, [1, 2, 3, 4, 5, 6, 1, 2], [1, 2, 3, 4])
    none = NO_PROPOSAL
    assert drafter.propose(2, 4).tokens.tolist() == [[3, 4, 5, 6], [7, 7, none, none]]


def test_a_short_find_is_left_to_the_draft_unless_as_few_are_asked_for() -> None:
    drafter = combined(Constant(), shortest=3)
    begin(drafter, [1, 2, 1])
    assert drafter.propose(1, 4).tokens.tolist() == [[7, 7]]
    assert drafter.propose(1, 2).tokens.tolist() == [[2, 1]]


def test_free_slots_ask_nothing_of_the_draft() -> None:
    draft = Constant()
    drafter = combined(draft)
    begin(drafter, [1, 2, 3, 4], [1, 2, 3, 4, 1])
    drafter.release(0)
    assert drafter.propose(2, 2).tokens[1].tolist() == [2, 3]
    assert draft.asked == []


def test_what_was_looked_up_was_drawn_from_itself_alone() -> None:
    def draw(logits: Tensor) -> tuple[Tensor, Tensor]:
        return logits.argmax(dim=-1), logits.softmax(dim=-1)

    drafter = combined(Constant())
    begin(drafter, [1, 2, 3, 4, 5, 1, 2], [1, 2, 3, 4])
    proposal = drafter.propose(2, 3, draw)
    assert proposal.tokens.tolist() == [[3, 4, 5], [7, 7, NO_PROPOSAL]]
    assert proposal.probs is not None
    assert proposal.probs.shape == (2, 3, VOCAB)
    assert torch.equal(proposal.probs[0], torch.eye(VOCAB)[[3, 4, 5]])
    drawn = torch.zeros(VOCAB)
    drawn[7] = 5.0
    assert torch.equal(proposal.probs[1, :2], drawn.softmax(dim=-1).expand(2, -1))


def test_both_learn_what_is_committed() -> None:
    draft = Constant()
    drafter = combined(draft)
    begin(drafter, [1, 2, 3, 4])
    drafter.observe(0, torch.tensor([5, 1, 2]), NONE)
    assert drafter.propose(1, 3).tokens.tolist() == [[3, 4, 5]]
    drafter.release(0)
    assert draft.told == [
        ("begin", 0, [1, 2, 3, 4]), ("observe", 0, [5, 1, 2]), ("release", 0, []),
    ]  # fmt: skip
