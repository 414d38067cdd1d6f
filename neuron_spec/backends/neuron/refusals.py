"""What a spec may ask and NxDI cannot do, in sentences; each with the place that shows it."""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.backends.neuron.facts import CheckpointFacts
from neuron_spec.backends.neuron.speculation import METHODS, Speculation
from neuron_spec.platforms.nxdi_models import MEDUSA_TOP_K
from neuron_spec.spec.graphs import tree_of
from neuron_spec.spec.schema import BuildSpec

_TREE_METHODS = ("eagle", "medusa")


def method_faults(spec: BuildSpec) -> Iterator[str]:
    """Methods and draft shapes without a counterpart in NxDI; nothing else is asked after these."""
    method = spec.draft.method
    if method not in METHODS:
        yield (
            f"draft.method '{method}': NxDI has no such drafts; "
            f"use one of {', '.join(METHODS)}, or the reference backend"
        )
    if spec.draft.dynamic_tree:
        yield (
            "draft.dynamic_tree: NxDI drafts chains and trees of fixed shape (nothing uses its "
            "modules/eagle/dynamic_token_tree.py); use draft.tree"
        )
    if spec.draft.vocabulary == "intersection":
        yield "draft.vocabulary: NxDI hands draft ids to the target as they are; use 'same'"
    if spec.draft.lookup:
        yield "draft.lookup: NxDI's graphs draft in every step; leave it out"
    if spec.draft.tree and method not in _TREE_METHODS:
        yield (
            f"draft.tree: NxDI has trees for {' and '.join(_TREE_METHODS)} only, and asserts that "
            "EAGLE-3 has none (models/model_base.py); leave draft.tree out"
        )


def speculation_faults(
    spec: BuildSpec, speculation: Speculation, facts: CheckpointFacts
) -> Iterator[str]:
    """Rules, samplers and trees that the fused graphs cannot do."""
    if speculation.verifies_on_device:
        yield from _rule_faults(spec)
    if spec.draft.sampled and speculation.verifies_on_device:
        yield (
            "draft.sampled: fused graphs take the draft's best token (models/model_base.py); "
            "leave it out"
        )
    if spec.draft.method in _TREE_METHODS:
        yield from _tree_faults(spec, facts)
    yield from _sampler_faults(spec, speculation)


def _rule_faults(spec: BuildSpec) -> Iterator[str]:
    rule, method = spec.verification.rule, spec.draft.method
    samples = method == "eagle3" or (method == "eagle" and not spec.draft.tree)
    rules = ("greedy", "rejection") if samples else ("greedy",)
    if rule in rules:
        return
    mend = "; with neuron.fused = false the host verifies, by any rule" * (method == "model")
    yield (
        f"verification.rule '{rule}': the fused graph of '{method}' can do "
        f"{' and '.join(rules)} only (models/model_base.py){mend}"
    )


def _tree_faults(spec: BuildSpec, facts: CheckpointFacts) -> Iterator[str]:
    tree = tree_of(spec)
    if spec.draft.method == "medusa":
        heads = facts.draft.num_medusa_heads
        if heads is not None and tree.max_depth > heads:
            yield f"draft.tree: {tree.max_depth} levels deep, the draft has {heads} Medusa heads"
        if max(tree.ranks) >= MEDUSA_TOP_K:
            yield (
                f"draft.tree: rank {max(tree.ranks)}; NxD's Medusa tables know the "
                f"{MEDUSA_TOP_K} best of a head (utils/medusa_utils.py)"
            )
        return
    if tree.ranks != tree.sibling_numbers:
        yield (
            "draft.tree: leaves out a better sibling of a node; in NxDI a node's rank is its place "
            "among its siblings (modules/eagle/token_tree.py)"
        )
    if len({len(route) for route in tree.leaf_routes}) > 1:
        yield (
            "draft.tree: leaves of different depth; NxDI pads the short paths with nodes of other "
            "paths, which changes the output (recorded with NxDI 0.9.0); end all paths at one depth"
        )


def _sampler_faults(spec: BuildSpec, speculation: Speculation) -> Iterator[str]:
    neuron = spec.neuron
    assert neuron is not None
    if neuron.sample_on_device and not speculation.verifies_on_device and spec.speculates:
        yield (
            "neuron.sample_on_device: the host verifies here and needs logits, which a graph that "
            "samples does not give (utils/hf_adapter.py); leave it out"
        )
    if neuron.sampling and not (speculation.verifies_on_device or neuron.sample_on_device):
        yield "neuron.sampling: nothing is sampled on the device here; leave it out"
    for name in speculation.sampling.keys() & neuron.sampling.keys():
        setting = speculation.sampling[name]
        if neuron.sampling[name] != setting.value:
            yield f"neuron.sampling.{name}: has to be {setting.value}: {setting.reason}"
