"""What NxDI itself can do, and therefore what `reference.emulate = "nxdi"` can emulate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from neuron_spec.trees import Tree

if TYPE_CHECKING:
    from neuron_spec.spec.schema import BuildSpec

METHODS = ("none", "model", "eagle", "eagle3", "medusa")
RULES = ("greedy", "rejection")
METHODS_THAT_SAMPLE = ("none", "eagle", "eagle3")
METHODS_WITH_TREE = ("eagle", "medusa")


def emulation_faults(spec: BuildSpec) -> list[str]:
    """Everything in a spec that NxDI 0.9 has no equivalent of; empty if it can be emulated."""
    draft, rule = spec.draft, spec.verification.rule
    is_single = draft.method == "medusa" or is_unfused(spec)
    refused = {
        f"draft.method '{draft.method}' (NxDI has {', '.join(METHODS)})": draft.method
        not in METHODS,
        f"rule '{rule}' (NxDI has {', '.join(RULES)})": rule not in RULES,
        f"sampling with draft.method '{draft.method}'": rule == "rejection"
        and draft.method not in METHODS_THAT_SAMPLE,
        "sampling with a token tree": rule == "rejection" and bool(draft.tree),
        f"a tree with draft.method '{draft.method}'": bool(draft.tree)
        and draft.method not in METHODS_WITH_TREE,
        "a token tree that skips one of a node's best tokens": draft.method == "eagle"
        and _skips_ranks(draft.tree),
        "draft.dynamic_tree": draft.dynamic_tree is not None,
        "draft.sampled": draft.sampled,
        "draft.lookup": draft.lookup is not None,
        "draft.by_load": bool(draft.by_load),
        "verification.pin_shapes": spec.verification.pin_shapes,
        "draft.vocabulary 'intersection'": draft.vocabulary != "same",
        "a num_draft_tokens that cuts the tree": bool(draft.tree)
        and draft.num_draft_tokens != len(draft.tree),
        "a batch_size above 1 with Medusa or unfused speculation": is_single
        and spec.shape.batch_size > 1,
        "prompts padded to k + 1 tokens, which it takes for a step": spec.speculates
        and spec.shape.max_prompt_tokens == spec.num_draft_tokens + 1,
        "reference.device other than 'cpu'": spec.reference.device != "cpu",
    }
    return [f"reference.emulate: not with {what}" for what, applies in refused.items() if applies]


def _skips_ranks(paths: Sequence[Sequence[int]]) -> bool:
    tree = Tree.from_paths(paths) if paths else Tree.chain(0)
    return tree.ranks != tree.sibling_numbers


def is_unfused(spec: BuildSpec) -> bool:
    """Whether target and draft model are compiled apart: `neuron.fused = false`."""
    return spec.draft.method == "model" and spec.neuron is not None and not spec.neuron.fused
