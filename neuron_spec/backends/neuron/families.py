"""Names of NxDI's classes (`utils/constants.py`, `models/*/modeling_*.py`); what they can do stands
in `neuron_spec.platforms.nxdi_models`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MODELS = "neuronx_distributed_inference.models"


@dataclass(frozen=True)
class ModelClasses:
    """NxDI's classes of one family, by name: nothing of NxDI is imported here.

    Attributes:
        family: key of NxDI's MODEL_TYPES.
        causal_lm: the application class, which compiles and loads.
        model: the module class inside it (`_model_cls`), what FusedSpecNeuronConfig calls worker.
    """

    family: str
    causal_lm: str
    model: str

    @property
    def module(self) -> str:
        """Where both classes are defined."""
        return f"{_MODELS}.{self.family}.modeling_{self.family}"


def _family(family: str, name: str, *, inner: str = "") -> ModelClasses:
    model = inner or f"Neuron{name}Model"
    return ModelClasses(family, f"Neuron{name}ForCausalLM", model)


LLAMA = _family("llama", "Llama")
# Left out: what takes no speculation at all, and is more than a text model (llama4, mllama,
# pixtral, the Qwen vision models).
CLASSES: dict[str, ModelClasses] = {
    "llama": LLAMA,
    "mistral": _family("mistral", "Mistral"),
    "mixtral": _family("mixtral", "Mixtral"),
    "dbrx": _family("dbrx", "Dbrx"),
    "qwen2": _family("qwen2", "Qwen2"),
    "qwen3": _family("qwen3", "Qwen3"),
    "qwen3_moe": _family("qwen3_moe", "Qwen3Moe"),
    "gemma3": _family("gemma3", "Gemma3", inner="NeuronGemma3TextModel"),
    "gpt_oss": _family("gpt_oss", "GptOss"),
}

# What the makers' names say where no config.json is at hand; the first that is found counts.
_NAMES = (
    (r"mixtral", "mixtral"),
    (r"mistral", "mistral"),
    (r"qwen-?3.*-a\d+b", "qwen3_moe"),
    (r"qwen-?3", "qwen3"),
    (r"qwen-?2", "qwen2"),
    (r"gpt-oss", "gpt_oss"),
    (r"gemma-3", "gemma3_text"),
    (r"llama-?4", "llama4"),
    (r"llama|vicuna|smollm2", "llama"),
)


def guess_model_type(model: str) -> str | None:
    """The model_type that a model's name suggests; None where it suggests nothing."""
    name = model.rstrip("/").rpartition("/")[2].lower()
    return next((kind for pattern, kind in _NAMES if re.search(pattern, name)), None)
