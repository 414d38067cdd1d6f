"""Trying out, on this machine, whether a pinned pass gives a token the same logits everywhere.

The kernels are not ours: whether they treat all rows of a product alike is found out, not assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neuron_spec.backends.base import Limits
from neuron_spec.backends.reference.machine import machine
from neuron_spec.backends.reference.pinned import PinnedShape
from neuron_spec.backends.reference.scoring import Score
from neuron_spec.errors import BackendError
from neuron_spec.trees import ROOT, Tree

_PROMPT_TOKENS = (1, 130)  # the second across the border of a prompt's pieces
_PASSES_AT_LEAST = 8
_SEED = 0


@dataclass
class _Walk:
    """A text of random tokens that is read again and again: its prompt, then its continuation.

    Attributes:
        tokens: [prompt + continuation] ids.
        expected: [continuation, vocab] logits with nothing drafted and nobody beside.
    """

    tokens: Tensor
    num_prompt_tokens: int
    expected: Tensor


class PinCheck:
    """Reads texts in passes of all kinds and compares the logits bit for bit."""

    def __init__(self, score: Score, shape: PinnedShape, limits: Limits, tree: Tree | None) -> None:
        """`shape`: of the widest pass; `tree`: what is drafted where it is no chain."""
        self._score, self._shape, self._limits = score, shape, limits
        self._tree = tree or Tree.chain(limits.num_draft_tokens)
        self._is_tree = tree is not None
        self._random = torch.Generator().manual_seed(_SEED)
        self._device = score.target.cache.keys[0].device

    @torch.inference_mode()
    def run(self) -> dict[str, Any]:
        """What was found, as `PinnedShapesRecord` holds it.

        Raises:
            BackendError: logits that differ.
        """
        num_checked = 0
        for walk in self._walks():
            for k in self.draft_lengths:
                for slot in sorted({0, self._limits.batch_size - 1}):
                    num_checked += self._compare(walk, k, slot)
        shape = self._shape
        return {
            "num_rows": shape.num_rows,
            "width": shape.width,
            "machine": machine(self._device),
            "dtype": self._dtype,
            "num_threads": torch.get_num_threads(),
            "draft_lengths": self.draft_lengths,
            "num_checked": num_checked,
            "identical": True,
        }

    @property
    def draft_lengths(self) -> tuple[int, ...]:
        """The k that are tried; a tree is verified as a whole."""
        largest = self._tree.num_draft_tokens
        some = {0, largest} if self._is_tree else {0, 1, largest // 2, largest}
        return tuple(sorted(k for k in some if k <= largest))

    @property
    def _dtype(self) -> str:
        return str(self._score.target.cache.keys[0].dtype).removeprefix("torch.")

    def _walks(self) -> Iterator[_Walk]:
        length = max(_PASSES_AT_LEAST, 2 * (self._tree.max_depth + 1))
        length = min(length, self._limits.max_total_tokens - 1)
        longest = min(self._limits.max_prompt_tokens, self._limits.max_total_tokens - length)
        for prompt in sorted({min(tokens, longest) for tokens in _PROMPT_TOKENS}):
            tokens = self._tokens(prompt + length)
            walk = _Walk(tokens, prompt, torch.empty(0))
            expected = torch.cat(list(self._read(walk, 0, 0, beside=False)))
            yield _Walk(tokens, prompt, expected)

    def _compare(self, walk: _Walk, k: int, slot: int) -> int:
        """Read a text in one slot, all others filled; the number of tokens compared."""
        found = torch.cat(list(self._read(walk, k, slot, beside=True)))
        different = int((found != walk.expected).any(dim=1).sum())
        if different:
            shape = self._shape
            raise BackendError(
                f"passes of {shape.num_rows} x {shape.width} positions do not give a token the "
                f"same logits in every place: {different} of {len(found)} tokens differ between "
                f"k = 0 and k = {k} in slot {slot}, by up to "
                f"{(found - walk.expected).abs().max().item():.2g} "
                f"({self._dtype}, {torch.get_num_threads()} threads, {machine(self._device)})\n"
                "  mend: change reference.dtype, reference.num_threads, shape.batch_size or "
                "draft.num_draft_tokens, or leave verification.pin_shapes out"
            )
        return len(found)

    def _read(self, walk: _Walk, k: int, slot: int, *, beside: bool) -> Iterator[Tensor]:
        """Logits [n, vocab] after every token of the continuation, pass by pass.

        A pass drafts the text up to a random place and other tokens after it.
        """
        target, end = self._score.target, len(walk.tokens)
        target.hidden(walk.tokens[None, : walk.num_prompt_tokens], [0], slot)
        others = range(self._limits.batch_size) if beside else ()
        position = walk.num_prompt_tokens
        while position < end:
            tree, path = self._grown(k)
            path = path[: min(int(self._below(len(path))) + 1, end - position)]
            tokens = self._tokens(self._limits.batch_size, tree.num_draft_tokens + 1)
            tokens[slot, path] = walk.tokens[position : position + len(path)]
            starts = {other: int(self._below(position + 1)) for other in others}
            starts[slot] = position
            idle = {other: 0 for other in range(len(tokens)) if other not in starts}
            scores = self._score(tokens, starts, self._parents(tree), idle=idle)
            target.keep(slot, position, path)
            position += len(path)
            yield scores.logits[slot, path]

    def _grown(self, k: int) -> tuple[Tree, list[int]]:
        """What a pass drafts, and one branch of it down to a leaf, the root first."""
        if not self._is_tree or k == 0:
            return Tree.chain(k), list(range(k + 1))
        node, path = int(self._below(self._tree.num_draft_tokens)) + 1, []
        while node != ROOT:
            path.append(node)
            node = self._tree.parents[node]
        return self._tree, [ROOT, *reversed(path)]

    def _parents(self, tree: Tree) -> Tensor | None:
        if not self._is_tree or tree.num_draft_tokens == 0:
            return None
        parents = torch.tensor(tree.parents[1:], device=self._device)
        return parents.expand(self._limits.batch_size, -1)

    def _tokens(self, *shape: int) -> Tensor:
        vocab_size = self._score.target.config.vocab_size
        return torch.randint(vocab_size, shape, generator=self._random).to(self._device)

    def _below(self, end: int) -> Tensor:
        return torch.randint(end, (), generator=self._random)
