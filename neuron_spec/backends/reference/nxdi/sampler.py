"""NxDI's on-device sampler as pure functions (`modules/generation/sampling.py`).

Where it differs from `neuron_spec.sampling`: only the `global_topk` likeliest tokens are looked at;
`top_p` drops the token that crosses the threshold; `top_k` 0 or -1 hides every token alike, which
makes the list uniform; temperature 0 divides by zero and leaves NaN, of which the first comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED_LOGIT = -3000.0

Draw = Callable[[tuple[int, ...]], Tensor]
"""shape -> uniform random numbers in [0, 1)."""


@dataclass(frozen=True)
class Sampling:
    """NxDI's OnDeviceSamplingConfig as far as it decides what is computed."""

    do_sample: bool = False
    dynamic: bool = False
    deterministic: bool = False
    global_topk: int = 256

    @property
    def is_greedy(self) -> bool:
        """Whether the fused graph compares argmaxes: `dynamic` alone does not make it sample."""
        return not self.do_sample


GREEDY = Sampling()


def validated(params: Tensor, global_topk: int) -> Tensor:
    """Check a batch's [rows, 3] top_k, top_p and temperature, and infer what follows from them.

    Temperature 0 sets top_k and top_p to 1 and stays 0 (`validate_sampling_params`,
    `infer_sampling_params`).

    Raises:
        ValueError: a value that NxDI refuses.
    """
    params = params.float()
    top_k, top_p, temperature = params.unbind(dim=1)
    is_all = (top_k == 0) | (top_k == -1)
    faults = {
        f"top_k: expected -1 … {global_topk}": ~(is_all | (top_k > 0) & (top_k <= global_topk)),
        "top_k: expected whole numbers": top_k != top_k.floor(),
        "top_p: expected above 0 and at most 1": ~((top_p > 0) & (top_p <= 1)),
        "temperature: expected 0 or more": ~(temperature >= 0),
        "temperature 0 is greedy: expected top_k 1": (temperature == 0) & is_all,
    }
    for message, is_wrong in faults.items():
        if bool(is_wrong.any()):
            raise ValueError(f"{message}, found {params.tolist()}")
    greedy = params.new_tensor([1.0, 1.0, 0.0])
    return torch.where(temperature[:, None] == 0, greedy, params)


def candidates(logits: Tensor, params: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """The likeliest tokens and their probabilities after all filters, likeliest first.

    Args:
        logits: [rows, vocab] or [rows, n, vocab].
        params: [rows, 3] top_k, top_p, temperature.

    Returns:
        Ids and probabilities [..., global_topk]; of the whole vocabulary with `global_topk` 0.

    Raises:
        RuntimeError: `global_topk` is larger than the vocabulary.
    """
    shape = (-1, *[1] * (logits.ndim - 1))
    top_k, top_p, temperature = (column.reshape(shape) for column in params.unbind(dim=1))
    if sampling.global_topk > 0:
        values, ids = logits.topk(sampling.global_topk, dim=-1)
    else:
        values, ids = logits.sort(dim=-1, descending=True)
    values = values.masked_fill(torch.arange(values.shape[-1]) >= top_k, IGNORED_LOGIT)
    if sampling.dynamic or bool((temperature != 1).any()):
        values = values / temperature
    if sampling.dynamic or bool((top_p < 1).any()):
        values = values.masked_fill(beyond_top_p(values, top_p), IGNORED_LOGIT)
    return ids, values.softmax(dim=-1)


def draw_index(probs: Tensor, uniform: Tensor) -> Tensor:
    """Where in each row of probs [..., n] the uniform numbers [..., 1] fall: [..., 1].

    A step of several positions has one number a row of the batch, [rows, 1, 1]: all its positions
    share it.
    """
    sums = probs.cumsum(dim=-1)
    sums = sums / sums[..., -1:]
    sums[..., -1:] = 1  # whatever rounding did to it
    return (uniform > sums).sum(dim=-1, keepdim=True)


def draw_token(ids: Tensor, probs: Tensor, uniform: Tensor) -> Tensor:
    """One of `ids` [..., n] with their probabilities: [...]."""
    return ids.gather(-1, draw_index(probs, uniform)).squeeze(-1)


def selector(sampling: Sampling, draw: Draw, shape: tuple[int, ...]) -> Tensor:
    """The number that picks a token: 0.5 where the config says `deterministic`."""
    return torch.full(shape, 0.5) if sampling.deterministic else draw(shape)


def beyond_top_p(values: Tensor, top_p: Tensor) -> Tensor:
    """Which tokens take the sum above `top_p`, their own share included; never the first.

    Sums are rounded, and can be above 1: with `dynamic` a `top_p` of 1 drops a last token now and
    then, depending on the last bit of the logits. The smallest sum of the whole batch is the least
    that counts as `top_p`, as NxDI has it; as the first token stays anyway, nothing follows.
    """
    sums = values.softmax(dim=-1).cumsum(dim=-1)
    beyond = sums > torch.maximum(sums.min(), top_p)
    beyond[..., 0] = False
    return beyond
