"""What each model family of NxD Inference can do, and what its class leaves out silently.

Sources: `utils/constants.py` (MODEL_TYPES) and `models/*/modeling_*.py` of
aws-neuron/neuronx-distributed-inference, commit 4bcdc54 (0.9.0, SDK 2.29), compared with cd3abf3
(0.8.0, SDK 2.28); which pairs AWS shows: NxD Inference feature guide, tutorials, release notes of
SDK 2.28.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from neuron_spec.platforms.nxdi_keywords import release_number

# The ways a build can take through NxDI; `host` has no second model, `unfused` has one.
Path = Literal["alone", "host", "unfused", "fused", "eagle", "eagle-tree", "eagle3", "medusa"]
FUSED: tuple[Path, ...] = ("fused", "eagle", "eagle-tree", "eagle3")
EAGLES: tuple[Path, ...] = ("eagle", "eagle-tree", "eagle3")
_WITHOUT_HEADS: tuple[Path, ...] = ("alone", "host", "unfused", *FUSED)

_MODELS = "NxDI models"
_EXPERTS = ("moe_neuron_config",)


@dataclass(frozen=True)
class FamilySupport:
    """One family as a target.

    Attributes:
        family: key of NxDI's MODEL_TYPES.
        model_types: what config.json calls it.
        paths: ways that its classes take.
        shown: those of them that AWS shows working in a guide, tutorial or release note.
        refusal: what happens on the other ways.
        pads_lm_head: whether the LM head's rows are padded to a multiple of the TP degree.
        pads_embedding: whether the embedding's columns are.
        reads_rope_scaling: whether config.json's rope_scaling is applied at all.
        reads_head_dim: whether config.json's head_dim is; else hidden size over heads.
        reads_window: whether a sliding window is applied.
        keyword_sections: what its NeuronConfig takes beside the keywords of all, as sections of
            `nxdi_keywords`.
        since: the first SDK release whose MODEL_TYPES has it, of those in `nxdi_releases`.
    """

    family: str
    model_types: tuple[str, ...]
    paths: tuple[Path, ...] = _WITHOUT_HEADS
    shown: tuple[Path, ...] = ("alone",)
    refusal: str = "has no Medusa heads: AttributeError while tracing"
    pads_lm_head: bool = True
    pads_embedding: bool = True
    reads_rope_scaling: bool = False
    reads_head_dim: bool = True
    reads_window: bool = False
    keyword_sections: tuple[str, ...] = ()
    since: str = "2.26"

    @property
    def source(self) -> str:
        """Where all of this is read."""
        return f"{_MODELS}/{self.family}/modeling_{self.family}.py"


_SILENT = (
    "switches speculation off with a warning and compiles a model without it: is_medusa and "
    "enable_fused_speculation are reset to false"
)

FAMILIES: tuple[FamilySupport, ...] = (
    FamilySupport(
        "llama",
        ("llama",),
        paths=(*_WITHOUT_HEADS, "medusa"),
        shown=("alone", "unfused", "fused", "eagle", "eagle3", "medusa"),
        reads_rope_scaling=True,
        reads_window=True,
    ),
    FamilySupport("mistral", ("mistral",), reads_head_dim=False, reads_window=True, since="2.29"),
    FamilySupport(
        "mixtral",
        ("mixtral",),
        pads_lm_head=False,
        pads_embedding=False,
        reads_head_dim=False,
        keyword_sections=_EXPERTS,
    ),
    FamilySupport(
        "dbrx",
        ("dbrx",),
        pads_lm_head=False,
        pads_embedding=False,
        reads_head_dim=False,
        keyword_sections=_EXPERTS,
    ),
    FamilySupport("qwen2", ("qwen2",), reads_head_dim=False),
    FamilySupport("qwen3", ("qwen3",)),
    FamilySupport(
        "qwen3_moe",
        ("qwen3_moe",),
        pads_lm_head=False,
        pads_embedding=False,
        keyword_sections=_EXPERTS,
    ),
    FamilySupport(
        "gemma3", ("gemma3_text", "gemma3"), pads_embedding=False, reads_window=True, since="2.29"
    ),
    FamilySupport(
        "gpt_oss",
        ("gpt_oss",),
        reads_rope_scaling=True,
        reads_window=True,
        keyword_sections=(*_EXPERTS, "gpt_oss_neuron_config"),
        since="2.27",
    ),
    FamilySupport(
        "llama4",
        ("llama4", "llama4_text"),
        ("alone",),
        refusal="raises for Medusa, fused and any other speculation while constructing",
        reads_rope_scaling=True,
        keyword_sections=_EXPERTS,
    ),
    FamilySupport(
        "pixtral", ("pixtral",), ("alone",), refusal="raises for fused and Medusa", since="2.28"
    ),
    FamilySupport(
        "qwen3_vl", ("qwen3_vl",), ("alone",), refusal="raises for fused and Medusa", since="2.28"
    ),
    FamilySupport("qwen2_vl", ("qwen2_vl",), ("alone",), refusal=_SILENT, since="2.28"),
    FamilySupport(
        "mllama", ("mllama",), ("alone",), refusal="asserts no Medusa and speculation_length 0"
    ),
)

# NxDI sets these for every Gemma 3, whatever config.json says: those of its larger sizes.
GEMMA3_VOCAB_SIZE, GEMMA3_ROPE_FACTOR = 262208, 8.0
# Mistral's tensors are Llama's, and the Llama class applies sliding_window as Mistral's does: it
# runs it where its own class is too new or lacks Medusa heads.
RUN_BY_LLAMA = ("mistral",)
# Families that keep `sliding_window` positions of every layer, in turn (`kv_cache_manager.py`);
# gpt-oss has a cache of its own.
ROLLING_CACHE = ("llama", "mistral")
MEDUSA_TOP_K = 10  # candidates a head in NxD's tables (`utils/medusa_utils.py`: TOPK)

_PATHS: dict[str, Path] = {
    "none": "alone",
    "ngram": "host",
    "suffix": "host",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "medusa": "medusa",
}
_WITH_TREE: dict[str, Path] = {"eagle": "eagle-tree", "medusa": "medusa"}


def path_of(method: str, *, has_tree: bool, is_fused: bool) -> Path | None:
    """The way through NxDI of a draft method; None where NxDI has none.

    Args:
        is_fused: of a draft model, whether it runs in the target's graph.
    """
    if has_tree:
        return _WITH_TREE.get(method)
    if method == "model":
        return "fused" if is_fused else "unfused"
    return _PATHS.get(method)


def family_of(model_type: str) -> FamilySupport | None:
    """The family that a config.json names; None if NxDI has none."""
    return next((family for family in FAMILIES if model_type in family.model_types), None)


def runner_of(model_type: str, path: Path | None, sdk: str) -> FamilySupport | None:
    """The family whose class runs a target: its own, or Llama's in its stead; None if NxDI has
    none for it."""
    own = family_of(model_type)
    if own is None or own.family not in RUN_BY_LLAMA:
        return own
    is_too_new = release_number(own.since) > release_number(sdk)
    is_unable = path is not None and path not in own.paths
    return family_of("llama") if is_too_new or is_unable else own
