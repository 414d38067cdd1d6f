"""What each draft method asks of NxDI: settings of the target's NeuronConfig, changes to the
draft's, which starts as a copy of the target's (NxDI `inference_demo.py: run_inference`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from neuron_spec.backends.neuron.facts import CheckpointFacts
from neuron_spec.backends.neuron.settings import Setting, Settings
from neuron_spec.platforms.nxdi_models import MEDUSA_TOP_K
from neuron_spec.spec.graphs import step_length, tree_of
from neuron_spec.spec.schema import BuildSpec
from neuron_spec.trees import Tree


@dataclass(frozen=True)
class Speculation:
    """A method on NxDI.

    Attributes:
        target: settings of the target's NeuronConfig.
        draft: changes to the copy of it that the draft gets; None without a second model.
        is_fused: whether the draft runs in the target's graph.
        verifies_on_device: whether the graph accepts and rejects; else the host does, on logits.
        sampling: settings of OnDeviceSamplingConfig beside those of the rule.
        assumptions: what was taken for granted about files that are not here.
    """

    target: Settings = field(default_factory=dict)
    draft: Settings | None = None
    is_fused: bool = False
    verifies_on_device: bool = False
    sampling: Settings = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


def speculation_of(spec: BuildSpec, facts: CheckpointFacts) -> Speculation:
    """The method of a spec; `refusals.py` says which there are."""
    return METHODS[spec.draft.method](spec, facts)


def _alone(spec: BuildSpec, facts: CheckpointFacts) -> Speculation:
    return Speculation()


def _verified_by_host(spec: BuildSpec, facts: CheckpointFacts) -> Speculation:
    return Speculation({"speculation_length": _step(spec)})


def _model(spec: BuildSpec, facts: CheckpointFacts) -> Speculation:
    assert spec.neuron is not None
    draft = {
        "speculation_length": Setting(0, "the draft itself decodes token by token"),
        "enable_fused_speculation": Setting(False, "the draft is what is fused"),
    }
    if not spec.neuron.fused:
        return Speculation({"speculation_length": _step(spec)}, draft)
    target = {
        "speculation_length": _step(spec),
        "enable_fused_speculation": Setting(True, "neuron.fused: one graph drafts and verifies"),
    }
    return Speculation(target, draft, is_fused=True, verifies_on_device=True)


_INPUT_NORM = {
    True: "layers.0.input_layernorm is in the draft's file; only this makes NxDI apply it",
    False: "layers.0.input_layernorm is not in the draft's file",
    None: "assumed: public EAGLE v1 heads have no input norm",
}


def _eagle(spec: BuildSpec, facts: CheckpointFacts) -> Speculation:
    known = facts.draft.has_input_norm
    norm = Setting(bool(known), _INPUT_NORM[known])
    assumed = ("enable_eagle_draft_input_norm false: the draft is not here, and its file decides",)
    target = {**_eagle_target(spec), "enable_eagle_draft_input_norm": norm}
    if spec.draft.tree:
        target["token_tree_config"] = Setting(
            token_tree_config(tree_of(spec)), "draft.tree, nodes breadth-first, root 0"
        )
    return Speculation(
        target,
        _eagle_draft(),
        is_fused=True,
        verifies_on_device=True,
        assumptions=assumed if known is None else (),
    )


def _eagle3(spec: BuildSpec, facts: CheckpointFacts) -> Speculation:
    target = {
        **_eagle_target(spec),
        "is_eagle3": Setting(True, "the target gives, the draft takes three layers' states"),
        "enable_eagle_draft_input_norm": Setting(
            True,
            "without it NxDI skips input_layernorm and hidden_norm silently "
            "(models/llama/modeling_llama.py)",
        ),
        "sequence_parallel_enabled": Setting(
            True, "context encoding of EAGLE-3 fails without it in NxDI 0.9.0 (recorded on a CPU)"
        ),
    }
    return Speculation(target, _eagle_draft(), is_fused=True, verifies_on_device=True)


def _eagle_target(spec: BuildSpec) -> Settings:
    return {
        "speculation_length": _step(spec),
        "enable_eagle_speculation": Setting(True),
        "enable_fused_speculation": Setting(True, "NxDI sets it with enable_eagle_speculation"),
    }


def _eagle_draft() -> Settings:
    return {
        "enable_fused_speculation": Setting(False, "the draft is what is fused"),
        "is_eagle_draft": Setting(True),
        "sequence_parallel_enabled": Setting(
            False, "as in the SDK's EAGLE example (NxD Inference feature guide)"
        ),
    }


def _medusa(spec: BuildSpec, facts: CheckpointFacts) -> Speculation:
    tree, known = tree_of(spec), facts.draft.num_medusa_heads
    heads = tree.max_depth if known is None else known
    target = {
        "is_medusa": Setting(True),
        "medusa_speculation_length": Setting(
            step_length(spec),
            "the tree's nodes, its root, and a node at position 0 that nobody sees, where the "
            "graph begins to gather (models/model_base.py); NxDI's own loop would have none",
        ),
        "num_medusa_heads": Setting(heads, "" if known is None else "heads in the prepared file"),
        "medusa_tree": Setting([list(path) for path in tree.paths]),
        "max_new_tokens": Setting(
            spec.shape.max_total_tokens - 1,
            "NxDI's Medusa loop counts up to it and cannot do without (utils/hf_adapter.py)",
        ),
    }
    top_k = Setting(
        MEDUSA_TOP_K, "NxD's Medusa tables take 10 candidates a head (utils/medusa_utils.py: TOPK)"
    )
    assumed = f"num_medusa_heads {heads}: the depth of the tree; the prepared file decides"
    return Speculation(
        target,
        verifies_on_device=True,
        sampling={"global_topk": top_k},
        assumptions=(assumed,) if known is None else (),
    )


METHODS: dict[str, Callable[[BuildSpec, CheckpointFacts], Speculation]] = {
    "none": _alone,
    "model": _model,
    "medusa": _medusa,
    "eagle": _eagle,
    "eagle3": _eagle3,
    "ngram": _verified_by_host,
    "suffix": _verified_by_host,
}


def _step(spec: BuildSpec) -> Setting:
    name = "the tree's nodes, root included" if spec.draft.tree else "draft.num_draft_tokens + 1"
    return Setting(step_length(spec), f"{name}: the positions of one step")


def token_tree_config(tree: Tree) -> dict[str, list[str]]:
    """Node -> children, leaves left out (`modules/eagle/token_tree.py`)."""
    return {
        str(node): [str(child) for child in children]
        for node, children in enumerate(tree.children)
        if children
    }
