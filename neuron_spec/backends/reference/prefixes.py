"""Beginnings of prompts, kept for the next prompt that begins the same.

Prompts run in pieces whose borders are at the same multiples in every prompt, so that a kept piece
behind the same tokens is bit for bit what running it again would give. Answers are not kept: they
were scored in steps of other shapes, which may round differently.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from neuron_spec.backends.reference.cache import KVCache


@dataclass(frozen=True)
class _Piece:
    """What running one piece of a prompt left.

    Attributes:
        states: keys and values of every layer, [kv_heads, tokens, head_dim] each.
        features: [tokens, feature], the target's, for the drafter; None without one.
    """

    states: tuple[Tensor, ...]
    features: Tensor | None

    @property
    def num_bytes(self) -> int:
        tensors = self.states if self.features is None else (*self.states, self.features)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class PrefixCache:
    """Whole pieces by all tokens up to their end; those not used for longest leave first."""

    def __init__(self, cache: KVCache, *, piece_tokens: int, max_bytes: int) -> None:
        self._cache, self._piece_tokens, self._max_bytes = cache, piece_tokens, max_bytes
        self._pieces: OrderedDict[bytes, _Piece] = OrderedDict()
        self.num_bytes = 0

    def restore(self, slot: int, prompt_ids: Sequence[int]) -> list[Tensor | None]:
        """Fill a slot's cache with the longest beginning that is kept; at least the last token is
        left to run, since its logits choose the first new one.

        Returns:
            Features of every piece that was filled in, first one first.
        """
        found: list[bytes] = []
        for key in self._keys(prompt_ids[:-1]):
            if key not in self._pieces:
                break
            found.append(key)
        for index, key in enumerate(found):
            rows = slice(index * self._piece_tokens, (index + 1) * self._piece_tokens)
            for state, kept in zip(self._states(), self._pieces[key].states, strict=True):
                state[slot, :, rows] = kept
        self._refresh(found)
        return [self._pieces[key].features for key in found]

    def keep(
        self, slot: int, prompt_ids: Sequence[int], start: int, features: Tensor | None
    ) -> None:
        """Keep the piece that begins at `start` and has just been run, if it is a whole one.

        Args:
            features: [tokens, feature] of the piece.
        """
        end = start + self._piece_tokens
        if end > len(prompt_ids):
            return
        *before, key = self._keys(prompt_ids[:end])
        if key in self._pieces:
            return
        states = tuple(state[slot, :, start:end].clone() for state in self._states())
        piece = _Piece(states, None if features is None else features.clone())
        if piece.num_bytes > self._max_bytes:
            return
        self._pieces[key] = piece
        self.num_bytes += piece.num_bytes
        self._refresh([*before, key])
        while self.num_bytes > self._max_bytes:
            _, oldest = self._pieces.popitem(last=False)
            self.num_bytes -= oldest.num_bytes

    def _refresh(self, keys: Sequence[bytes]) -> None:
        """Note the use of pieces; later ones leave first, as they are of no use alone."""
        for key in reversed(keys):
            if key in self._pieces:
                self._pieces.move_to_end(key)

    def _states(self) -> Iterator[Tensor]:
        yield from self._cache.keys
        yield from self._cache.values

    def _keys(self, prompt_ids: Sequence[int]) -> Iterator[bytes]:
        """A key for every whole piece: a digest of all tokens up to its end. Nobody can make two
        prompts with one SHA-256, so that nobody is answered out of another's prompt."""
        digest = hashlib.sha256()
        borders = range(0, len(prompt_ids) + 1, self._piece_tokens)
        for start, end in pairwise(borders):
            digest.update(array("q", prompt_ids[start:end]).tobytes())
            yield digest.digest()
