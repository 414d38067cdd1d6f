"""What NxDI's applications return (`models/model_base.py`, `_construct_output`,
`NeuronFusedSpecModel._cte_postprocessor` and `_tkg_postprocessor`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor

from neuron_spec.errors import BackendError

_ACCEPTED, _NEXT_POSITIONS = 0, 3
"""Places in `fused_outputs`: accepted tokens, next input, next attention mask, next position, and
logits behind them where they were asked for."""


def fused_tokens(outputs: Any, starts: Sequence[int], *, most: int) -> list[tuple[int, ...]]:
    """What a fused graph accepted, row by row, the target's own token last.

    How many there are is the distance of the positions: the accepted tokens are filled up with -1,
    but a count of the others would take a padding id for a token.

    Args:
        starts: [rows] the positions of the inputs, of a prompt one before its end.
        most: tokens that one call can give.

    Raises:
        BackendError: outputs that no step can have.
    """
    accepted, after = outputs.fused_outputs[_ACCEPTED], outputs.fused_outputs[_NEXT_POSITIONS]
    rows = accepted.reshape(len(starts), -1).tolist()
    found = []
    for row, start, end in zip(rows, starts, after.flatten().tolist(), strict=True):
        count = end - start
        if not 1 <= count <= most or min(row[:count]) < 0:
            raise BackendError(
                f"the fused graph went from position {start} to {end} with the tokens {row}: "
                f"expected 1 … {most} tokens"
            )
        found.append(tuple(row[:count]))
    return found


def without_filling(
    tokens: tuple[int, ...], pad_token_id: int, stop_token_ids: Collection[int]
) -> tuple[int, ...]:
    """A sampling step's tokens without a padding id that nobody sampled.

    Where the token drawn after a rejection equals the rejected draft, NxDI takes it for accepted
    and the padding behind it for the target's token. What is dropped here is sampled again.
    """
    is_filling = tokens[-1] == pad_token_id and pad_token_id not in stop_token_ids
    return tokens[:-1] if is_filling and len(tokens) > 1 else tokens


def sampled_tokens(outputs: Any, num_rows: int) -> list[tuple[int, ...]]:
    """One token a row, of a target that samples on the device."""
    tokens = outputs.tokens.flatten().tolist()
    if len(tokens) != num_rows:
        raise BackendError(f"the target gave {len(tokens)} tokens for {num_rows} rows")
    return [(token,) for token in tokens]


def logits_of(outputs: Any, shape: tuple[int, int], vocab_size: int) -> Tensor:
    """[rows, n, vocab] float32, without the columns that fill a sharded LM head up."""
    logits: Tensor = outputs.logits
    if logits is None or logits.shape[:2] != shape or logits.shape[-1] < vocab_size:
        found = None if logits is None else tuple(logits.shape)
        raise BackendError(f"logits of shape {found}: expected {[*shape, vocab_size]}")
    return logits[..., :vocab_size].float()
