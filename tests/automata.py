"""Grammars without xgrammar: finite automata over token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

END = -1  # the state after an end-of-sequence token


@dataclass(frozen=True)
class Automaton:
    """`edges[state][token]` is the next state; `END` ends the output. It begins in state 0."""

    edges: Mapping[int, Mapping[int, int]]
    vocab: int

    def begin(self) -> AutomatonMatcher:
        return AutomatonMatcher(self)

    def accepts(self, tokens: list[int]) -> bool:
        """Whether tokens are a beginning of an output; what follows the end is free."""
        state = 0
        for token in tokens:
            if state == END:
                return True
            if token not in self.edges[state]:
                return False
            state = self.edges[state][token]
        return True

    def after(self, tokens: tuple[int, ...]) -> list[int]:
        """Which tokens may follow."""
        state = 0
        for token in tokens:
            state = self.edges[state][token]
        return sorted(self.edges[state])


@dataclass
class AutomatonMatcher:
    grammar: Automaton
    states: list[int] = field(default_factory=lambda: [0])

    @property
    def is_ended(self) -> bool:
        return self.states[-1] == END

    def accept(self, token: int) -> bool:
        assert not self.is_ended
        after = self.grammar.edges[self.states[-1]].get(token)
        if after is not None:
            self.states.append(after)
        return after is not None

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens < len(self.states)
        del self.states[len(self.states) - num_tokens :]

    def allowed(self) -> Tensor:
        assert not self.is_ended
        mask = torch.zeros(self.grammar.vocab, dtype=torch.bool)
        mask[list(self.grammar.edges[self.states[-1]])] = True
        return mask


def wandering(vocab: int, *, num_states: int = 5, share: float = 0.5, seed: int = 0) -> Automaton:
    """Every state allows a random part of the vocabulary, and where a token leads depends on it."""
    generator = torch.Generator().manual_seed(seed)
    edges = {}
    for state in range(num_states):
        mask = torch.rand(vocab, generator=generator) < share
        mask[state % vocab] = True
        edges[state] = {
            token: (state + token + 1) % num_states for token in mask.nonzero().flatten().tolist()
        }
    return Automaton(edges, vocab)
