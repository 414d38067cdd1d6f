"""What no vLLM carries over, whatever it runs on.

Source for all of it: `SpeculativeConfig` (vllm-project/vllm, vllm/config/speculative.py, 002e77c).
It drafts chains and verifies by `rejection_sample_method`: standard, synthetic or block. A newer
one, `fly`, changes the distribution in a way of its own and is neither lenience nor typical
acceptance (docs/features/speculative_decoding/draft_model.md, 04329df).
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.export.handover import Loss
from neuron_spec.spec.graphs import tree_of
from neuron_spec.spec.schema import BuildSpec

_STRICTER = (
    "vLLM has no such rule; its standard rejection sampling accepts less and keeps the target's "
    "distribution, so that the guarantee grows and the speed shrinks"
)
_RULES = {
    "lenient": _STRICTER,
    "typical": _STRICTER,
    "sample-match": "vLLM verifies by rejection sampling: the same distribution, but with a seed "
    "no longer the tokens of plain decoding",
}
GREEDY_DEFAULT = {"temperature": 0}


def chain_length(spec: BuildSpec) -> int:
    """k of the chain that stands for the drafted shape: the depth of a tree, the draft's own chain
    behind a lookup."""
    if spec.draft.dynamic_tree:
        return spec.draft.dynamic_tree.depth
    if spec.draft.lookup:
        return spec.draft.num_draft_tokens
    return tree_of(spec).max_depth


def shape_losses(spec: BuildSpec) -> Iterator[Loss]:
    """Trees become the chain of their best branch; a lookup has no counterpart."""
    if spec.draft.lookup:
        yield Loss("draft.lookup", "vLLM drafts in one way: the draft proposes in every step")
    name = "draft.dynamic_tree" if spec.draft.dynamic_tree else "draft.tree"
    if spec.draft.tree or spec.draft.dynamic_tree:
        yield Loss(
            name,
            f"vLLM drafts chains only: a chain of {chain_length(spec)}, the tree's depth, instead "
            f"of {spec.num_draft_tokens} nodes; fewer tokens are accepted a step",
        )


def rule_losses(spec: BuildSpec) -> Iterator[Loss]:
    """Rules that vLLM lacks; without drafts nothing is verified and nothing lost."""
    rule = spec.verification.rule
    is_rejection = rule == "lenient" and spec.verification.lenience == 1
    if spec.speculates and rule in _RULES and not is_rejection:
        yield Loss(f"verification.rule '{rule}'", _RULES[rule])


def schedule_losses(spec: BuildSpec, reason: str) -> Iterator[Loss]:
    """Draft lengths by load, where there is one compiled length."""
    if spec.draft.by_load:
        yield Loss("draft.by_load", f"k = {spec.num_draft_tokens} at every load: {reason}")


def greedy_default(spec: BuildSpec) -> dict[str, dict[str, int]]:
    """The option that makes requests greedy unless they say otherwise.

    vLLM would take the defaults of the model's generation_config.json, which often samples.
    """
    is_greedy = spec.verification.rule == "greedy"
    return {"--override-generation-config": dict(GREEDY_DEFAULT)} if is_greedy else {}


def greedy_notes(spec: BuildSpec, *, is_enforced: bool) -> Iterator[str]:
    """What becomes of a request that samples under the greedy rule."""
    if spec.verification.rule != "greedy":
        return
    if is_enforced:
        yield "rule 'greedy': the graph is greedy; no request's temperature makes it sample"
    else:
        yield (
            "rule 'greedy': requests are greedy by default, but one with a temperature is sampled, "
            "not refused as by `neuron-spec serve`"
        )
