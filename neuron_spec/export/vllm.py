"""Build spec -> `vllm serve` on GPUs.

Sources, vllm-project/vllm: `SpeculativeConfig` with its checks (vllm/config/speculative.py,
002e77c), docs/features/speculative_decoding/draft_model.md (04329df) and
dynamic_speculative_decoding.md (015a47e). `num_speculative_tokens` is k, the target scores k + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from neuron_spec.export.handover import Handover, Loss, Model, Models, refuse
from neuron_spec.export.losses import (
    chain_length,
    greedy_default,
    greedy_notes,
    rule_losses,
    shape_losses,
)
from neuron_spec.spec.schema import BuildSpec

_SYSTEM = "vLLM on GPUs (keys of vllm/config/speculative.py at 002e77c)"


def for_vllm(spec: BuildSpec, models: Models, *, tensor_parallel: int = 1) -> Handover:
    """The command for plain vLLM.

    Raises:
        SpecError: vLLM has no counterpart of the draft method.
    """
    speculation = speculative_config(spec, models.draft)
    options: dict[str, Any] = {
        **revision_option(models.target),
        "--dtype": spec.target.dtype,
        "--tensor-parallel-size": tensor_parallel,
        "--max-model-len": spec.shape.max_total_tokens,
        "--max-num-seqs": spec.shape.batch_size,
        **({"--speculative-config": speculation} if speculation else {}),
        **greedy_default(spec),
    }
    # Dynamic lengths with EAGLE are shown with the first model runner only.
    scheduled = "num_speculative_tokens_per_batch_size" in speculation
    return Handover(
        _SYSTEM,
        ("vllm", "serve", models.target.name),
        options,
        environment={"VLLM_USE_V2_MODEL_RUNNER": "0"} if scheduled else {},
        losses=tuple(_losses(spec)),
        notes=tuple(_notes(spec, tensor_parallel)),
    )


def revision_option(model: Model) -> dict[str, str]:
    """A hub id's revision, which vLLM takes apart from the name."""
    return {"--revision": model.revision} if model.revision else {}


def speculative_config(spec: BuildSpec, draft: Model | None) -> dict[str, Any]:
    """The value of `--speculative-config`; empty without a draft.

    Raises:
        SpecError: vLLM has no counterpart of the draft method.
    """
    method = spec.draft.method
    if not spec.speculates:
        return {}
    if method not in _METHODS:
        known = ", ".join(_METHODS)
        raise refuse(
            spec, f"vLLM has no '{method}' drafts", f"use one of {known}, or neuron-spec serve"
        )
    return {
        **draft_entry(draft),
        "num_speculative_tokens": chain_length(spec),
        **_METHODS[method](spec),
        **({"draft_sample_method": "probabilistic"} if spec.draft.sampled else {}),
        **_schedule(spec),
    }


def draft_entry(draft: Model | None) -> dict[str, str]:
    """The draft's checkpoint in `speculative_config`."""
    if draft is None:
        return {}
    return {"model": draft.name, **({"revision": draft.revision} if draft.revision else {})}


def _draft_model(spec: BuildSpec) -> dict[str, Any]:
    widened = spec.draft.vocabulary == "intersection"
    return {"method": "draft_model", **({"use_heterogeneous_vocab": True} if widened else {})}


def _ngram(spec: BuildSpec) -> dict[str, Any]:
    shortest, longest = spec.draft.ngram_sizes
    return {"method": "ngram", "prompt_lookup_min": shortest, "prompt_lookup_max": longest}


def _suffix(spec: BuildSpec) -> dict[str, Any]:
    return {
        "method": "suffix",
        "suffix_decoding_max_tree_depth": spec.draft.suffix_depth,
        "suffix_decoding_min_token_prob": spec.draft.suffix_min_probability,
        "suffix_decoding_max_cached_requests": spec.draft.suffix_answers,
    }


def _by_its_name(spec: BuildSpec) -> dict[str, Any]:
    return {"method": spec.draft.method}


_METHODS: dict[str, Callable[[BuildSpec], dict[str, Any]]] = {
    "model": _draft_model,
    "medusa": _by_its_name,
    "eagle": _by_its_name,
    "eagle3": _by_its_name,
    "mtp": _by_its_name,
    "ngram": _ngram,
    "suffix": _suffix,
}


def _schedule(spec: BuildSpec) -> dict[str, Any]:
    """Bands of load as [first, last, k]; bands above the batch size never come."""
    bands = [band for band in spec.draft.by_load if band[0] <= spec.shape.batch_size]
    if not bands:
        return {}
    starts = [first for first, _ in bands]
    lasts = [*(first - 1 for first in starts[1:]), spec.shape.batch_size]
    longest = chain_length(spec)
    rows = [[first, last, min(k, longest)] for (first, k), last in zip(bands, lasts, strict=True)]
    return {"num_speculative_tokens_per_batch_size": rows}


def _losses(spec: BuildSpec) -> Iterator[Loss]:
    yield from shape_losses(spec)
    yield from rule_losses(spec)
    yield Loss(
        "shape.max_prompt_tokens",
        "vLLM has no limit of its own for prompts: one may take the whole of --max-model-len",
    )
    if spec.neuron is not None:
        yield Loss("[neuron]", "a GPU has no use for it; --tensor-parallel-size counts GPUs")


def _notes(spec: BuildSpec, tensor_parallel: int) -> Iterator[str]:
    yield from greedy_notes(spec, is_enforced=False)
    if tensor_parallel == 1 and spec.neuron is not None and spec.neuron.tp_degree > 1:
        yield "one GPU; give --tensor-parallel if the target needs several"
    if spec.draft.method == "suffix":
        yield "suffix decoding needs the package arctic-inference, pinned in vLLM's own message"
    if spec.draft.method in ("eagle", "eagle3", "medusa"):
        yield "the draft is the published checkpoint, not the one that `prepare` makes for Neuron"
    if spec.draft.by_load and spec.draft.method not in ("eagle", "eagle3"):
        yield "vLLM tested lengths by load with EAGLE only; others may not work"
