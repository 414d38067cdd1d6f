"""From logits to probabilities, and from probabilities to a token, for any number of rows at once.

Order of application, that of vLLM (vllm-project/vllm `vllm/v1/sample/sampler.py`): forbidden ids,
logit bias, repetition, frequency and presence penalty, temperature, min_p, top_k, top_p. Hugging
Face (transformers `generation/utils.py`, `_get_logits_processor`) differs in one place: it applies
min_p after top_p, on what top_p has left. Each step keeps to the meaning that both share:

    top_k       keeps ties with the k-th logit.
    top_p       keeps the token that crosses the threshold. NxDI 0.9 on the device drops it, unless
                it is the first.
    min_p       keeps what has at least min_p times the probability of the likeliest.
    repetition  divides positive logits and multiplies negative ones, for ids in prompt or output.
    presence,   are subtracted for ids in the output: once, or once an occurrence (the OpenAI API).
    frequency
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from neuron_spec.errors import RequestError
from neuron_spec.sampling_params import SamplingParams
from neuron_spec.trees import Tree


def probabilities(
    logits: Tensor,
    params: SamplingParams,
    *,
    prompt_counts: Tensor | None = None,
    output_counts: Tensor | None = None,
    forbidden: Tensor | None = None,
) -> Tensor:
    """What a request makes of its logits: [..., vocab] float32 probabilities.

    Args:
        logits: [..., vocab] any float type; -inf is allowed.
        prompt_counts, output_counts: [..., vocab] how often each id occurs; None for not at all.
        forbidden: [..., vocab] bool, ids that must not come.

    Raises:
        RequestError: `logit_bias` names an id beyond the vocabulary.
    """
    adjusted = adjusted_logits(
        logits,
        params,
        prompt_counts=prompt_counts,
        output_counts=output_counts,
        forbidden=forbidden,
    )
    if params.is_greedy:
        best = best_ids(adjusted)[..., None]
        return torch.zeros_like(adjusted).scatter(-1, best, 1.0)
    # Relative to the largest, a division by a tiny temperature cannot overflow.
    scaled = (adjusted - adjusted.amax(dim=-1, keepdim=True)) / params.temperature
    if params.min_p > 0:
        scaled = scaled.masked_fill(scaled.exp() < params.min_p, -torch.inf)
    if 0 < params.top_k < scaled.shape[-1]:
        scaled = _keep_top_k(scaled, params.top_k)
    if params.top_p < 1:
        scaled = _keep_top_p(scaled, params.top_p)
    return scaled.softmax(dim=-1)


def adjusted_logits(
    logits: Tensor,
    params: SamplingParams,
    *,
    prompt_counts: Tensor | None = None,
    output_counts: Tensor | None = None,
    forbidden: Tensor | None = None,
) -> Tensor:
    """Logits [..., vocab] float32 after everything that can change the greedy choice.

    Arguments and errors as in `probabilities`.
    """
    adjusted = logits.float()
    if forbidden is not None:
        adjusted = adjusted.masked_fill(forbidden, -torch.inf)
    if params.logit_bias:
        adjusted = adjusted + _bias_row(params.logit_bias, adjusted)
    seen = [counts for counts in (prompt_counts, output_counts) if counts is not None]
    if params.repetition_penalty != 1 and seen:
        adjusted = _repetition(adjusted, torch.stack(seen).sum(dim=0), params.repetition_penalty)
    if output_counts is not None:
        adjusted = adjusted - params.frequency_penalty * output_counts
        adjusted = adjusted - params.presence_penalty * (output_counts > 0)
    return adjusted


def best_ids(logits: Tensor) -> Tensor:
    """The id of the largest of logits [..., vocab], the lowest on ties: [...] int64.

    As `torch.argmax`, which goes number by number on a CPU: several times slower than NumPy's.
    """
    if logits.device.type != "cpu" or logits.dtype == torch.float64:
        return logits.argmax(dim=-1)
    return torch.as_tensor(logits.detach().float().numpy().argmax(axis=-1))


def sample(probs: Tensor, uniform: Tensor) -> Tensor:
    """The id whose share of [0, 1) holds `uniform`, ids in rising order: the inverse CDF.

    Args:
        probs: [..., vocab] weights, at least 0; they need not sum to exactly 1.
        uniform: [...] in [0, 1).

    Returns:
        [...] int64; never an id of probability 0, whatever rounding does to the sums.

    Raises:
        ValueError: a row has no positive probability, or holds NaN.
    """
    probs = probs.to(torch.promote_types(probs.dtype, torch.float32))
    possible = probs > 0
    if bool(probs.isnan().any()) or not bool(possible.any(dim=-1).all()):
        raise ValueError("a row of probabilities is NaN or all zero: nothing can be drawn from it")
    sums = probs.cumsum(dim=-1)
    beyond = possible & (sums > (uniform * sums[..., -1])[..., None])
    first = beyond.long().argmax(dim=-1)  # the first of the largest
    # Rounding can put the point at the very end of the last share: then the last possible id.
    vocab = probs.shape[-1]
    last = vocab - 1 - possible.flip(-1).long().argmax(dim=-1)
    return torch.where(beyond.any(dim=-1), first, last)


def counts_after_drafts(output_counts: Tensor, tree: Tree, draft_tokens: Tensor) -> Tensor:
    """Counts as each node of a drafted tree has them: its ancestors and itself included.

    Args:
        output_counts: [batch, vocab] up to and with the root's token.
        draft_tokens: [batch, nodes - 1] ids; negative ones count for nothing.

    Returns:
        [batch, nodes, vocab] in the type of `output_counts`.
    """
    batch, vocab = output_counts.shape
    sees = torch.tensor(tree.attention_mask, device=output_counts.device)[:, 1:]
    drawn = (sees & (draft_tokens >= 0)[:, None, :]).to(output_counts.dtype)
    tokens = draft_tokens.clamp(min=0)[:, None, :].expand(batch, tree.num_nodes, -1)
    counts = output_counts[:, None, :].repeat(1, tree.num_nodes, 1)
    return counts.scatter_add(-1, tokens, drawn)


def ends_forbidden(
    params: SamplingParams, num_generated: Tensor, end_ids: Sequence[int], vocab: int
) -> Tensor:
    """Forbidden ids where `num_generated` [...] tokens came before: [..., vocab] bool."""
    is_end = torch.zeros(vocab, dtype=torch.bool, device=num_generated.device)
    is_end[list(end_ids)] = True
    return (num_generated < params.min_tokens)[..., None] & is_end


def _keep_top_k(logits: Tensor, top_k: int) -> Tensor:
    smallest = logits.topk(top_k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest, -torch.inf)


def _keep_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Keep an id iff those before it, likelier or of lower number, have less than `top_p`."""
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    reached = ordered.softmax(dim=-1).cumsum(dim=-1)
    before = torch.nn.functional.pad(reached[..., :-1], (1, 0))
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, ids, before >= top_p)
    return logits.masked_fill(dropped, -torch.inf)


def _repetition(logits: Tensor, counts: Tensor, penalty: float) -> Tensor:
    penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(counts > 0, penalised, logits)


def _bias_row(logit_bias: Mapping[int, float], logits: Tensor) -> Tensor:
    vocab = logits.shape[-1]
    beyond = [token for token in logit_bias if token >= vocab]
    if beyond:
        raise RequestError(
            "not a token of this model",
            field="logit_bias",
            found=min(beyond),
            expected=f"ids 0 … {vocab - 1}",
        )
    row = logits.new_zeros(vocab)
    ids = torch.tensor(list(logit_bias), device=logits.device)
    row[ids] = logits.new_tensor(list(logit_bias.values()))
    return row
