"""Draft length and request lengths: what is known to work, cut to what the models bear."""

from __future__ import annotations

from neuron_spec.errors import UserError
from neuron_spec.preflight.neuron.memory_estimate import stored_bytes
from neuron_spec.preflight.neuron.windows import window_of
from neuron_spec.proposal.models import Models
from neuron_spec.proposal.values import Table, Value
from neuron_spec.spec.graphs import TILE

_GUIDE = "NxD Inference feature guide"
_PRACTICE: dict[str, tuple[int, str]] = {
    "eagle": (4, f"speculation_length 5: {_GUIDE}, EAGLE"),
    "eagle3": (3, "as in vLLM Neuron's EAGLE-3 tutorial"),
    "ngram": (5, "wrong guesses cost little: a lookup drafts for nothing"),
    "suffix": (8, "at most; a short match proposes less"),
}
# From this ratio of weights on, a draft model is as cheap as in the SDK's tutorial (70B with 1B).
_CHEAP_DRAFT = 20
_LONGEST_CACHE = 4096
_FEWEST_POSITIONS = 4  # two tokens, and a step of two positions
_SHORTEST_WINDOW = 1024  # below it a request within the window would be too short to be of use


def draft_length(models: Models) -> Value:
    """k, by the method; of heads, as many as there are."""
    if models.method in _PRACTICE:
        return Value(*_PRACTICE[models.method])
    if models.method == "model" and models.draft is not None:
        sizes = (stored_bytes(m.config, "bfloat16") for m in (models.target, models.draft))
        ratio = next(sizes) / next(sizes)
        if ratio >= _CHEAP_DRAFT:
            return Value(6, "speculation_length 7: SDK tutorial, 70B target and 1B draft")
        return Value(4, f"the target is {ratio:.0f} times the draft: longer drafts rarely pay")
    return Value(models.num_heads, "one token a head; a tree (draft.tree) accepts more")


def lengths(models: Models, k: Value) -> tuple[Value, Table]:
    """(k, shape): a request and a step behind it fit what the models were trained for.

    Raises:
        UserError: too few positions for any request.
    """
    limit, whose = models.positions
    if (window := _window(models)) is not None and window - 1 < limit:
        limit, whose = window - 1, "window"
    if limit < _FEWEST_POSITIONS:
        raise UserError(
            f"the {whose} has {limit} positions (max_position_embeddings): no room for a step",
            expected=f"at least {_FEWEST_POSITIONS}",
        )
    speculates = models.method != "none"
    if speculates and k.value > limit - 3:
        k = Value(limit - 3, f"the {whose} has {limit} positions")
    step = k.value + 1 if speculates else 0
    cache = min(_LONGEST_CACHE, limit)
    cache = cache // TILE * TILE if cache > TILE else cache
    total = min(cache - step, limit - 1)  # one more position is always asked for
    prompt = cache // 2 // TILE * TILE if cache >= 2 * TILE else max(1, total // 2)
    return k, {
        "max_prompt_tokens": Value(prompt),
        "max_total_tokens": Value(total, _why(cache, step, whose if cache < 4096 else "")),
        "batch_size": Value(1),
    }


def _why(cache: int, step: int, whose: str) -> str:
    room = f"with a step of {step} positions a cache of {cache}" if step else ""
    cut = {
        "": "",
        "window": "steps need the target's window not to be full",
        "target": f"the target's max_position_embeddings end at {cache}" if not step else
        "as many as the target has positions for",
        "draft": "past the draft's max_position_embeddings acceptance falls",
    }[whose]  # fmt: skip
    return "; ".join(part for part in (room, cut) if part)


def _window(models: Models) -> int | None:
    """The window that requests have to stay in; see `preflight.neuron.windows`."""
    if models.method not in ("ngram", "suffix", "model"):
        return None
    window = window_of(models.target.config)
    return window if window and window >= _SHORTEST_WINDOW else None
