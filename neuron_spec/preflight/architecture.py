"""Can this target be computed, and is this draft of the kind that the spec names and complete?"""

from __future__ import annotations

from neuron_spec.checkpoints.contradictions import is_quantized
from neuron_spec.checkpoints.formats.hf import (
    SUPPORTED_ACTIVATIONS,
    SUPPORTED_MODEL_TYPES,
    SUPPORTED_ROPE_SCALINGS,
)
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.errors import shown
from neuron_spec.preflight.findings import Finding, ForBackend, error
from neuron_spec.spec.schema import BuildSpec

# Draft methods whose checkpoints have another name than the method.
FAMILIES = {"model": "causal-lm"}
FAMILIES_WITHOUT_LAYERS = ("medusa", "hydra")  # the prefix layer of Hydra++ is of the target's kind

_IDENTIFY = "neuron_spec.checkpoints.identify"
_REFERENCE = "neuron_spec.backends.reference"
_NXDI_LLAMA = "NxDI models/llama/modeling_llama.py"
_NXD_LOADING = "NxD trace/trace.py: unknown keys are removed, missing ones skipped"


def check_target(target: Identity) -> list[Finding]:
    """Family, completeness and arithmetic of the target."""
    findings = _quantized(target) or _complete(target, "target")
    if target.family != "causal-lm":
        findings.append(
            error(
                "target-family",
                f"the target {target.directory} is a draft head ({target.family})",
                "set target.model to the language model the head was trained for",
                _IDENTIFY,
            )
        )
    return findings + _arithmetic(target, "target")


def _quantized(target: Identity) -> list[Finding]:
    """Scaled and packed layers would be read as plain numbers."""
    if not is_quantized(target):
        return []
    return [
        error(
            "target-quantized",
            f"{target.directory} is quantized, which the reference backend does not compute; its "
            "float LM head can still be copied by prepare",
            "use the unquantized target",
            _REFERENCE,
            "reference",
        )
    ]


def _arithmetic(model: Identity, role: str) -> list[Finding]:
    """Every field that the reference backend would have to approximate is refused by name."""
    if model.family in FAMILIES_WITHOUT_LAYERS:
        return []
    config = model.config
    fields = {
        "model_type": (config.model_type, SUPPORTED_MODEL_TYPES),
        "hidden_act": (config.hidden_act, SUPPORTED_ACTIVATIONS),
        "rope_scaling": (config.rope_kind, SUPPORTED_ROPE_SCALINGS),
        "sliding_window": (config.sliding_window, (None,)),
    }
    return [
        error(
            f"{role}-{field.replace('_', '-')}",
            f"the {role}'s {field} {shown(found)} is not computed by the reference backend",
            f"use a {role} whose {field} is one of {', '.join(map(str, known))}",
            _REFERENCE,
            "reference",
        )
        for field, (found, known) in fields.items()
        if found not in known
    ]


def check_draft(draft: Identity, spec: BuildSpec) -> list[Finding]:
    """Family and completeness of the draft, and what preparation still has to do."""
    findings = _complete(draft, "draft") + _arithmetic(draft, "draft")
    if draft.family != FAMILIES.get(spec.draft.method, spec.draft.method):
        findings.append(
            error(
                "draft-family",
                f"draft.method is '{spec.draft.method}' but {draft.directory} is a "
                f"{draft.family} checkpoint",
                "correct draft.method or draft.model",
                _IDENTIFY,
            )
        )
    elif draft.preparation:
        findings.append(
            error(
                "draft-unprepared",
                f"{draft.directory} is not prepared: " + "; ".join(draft.preparation),
                f"run: neuron-spec prepare {spec.base_directory / spec.name}.toml",
                f"{_NXDI_LLAMA} (is_eagle_draft), models/application_base.py get_state_dict",
            )
        )
    return findings


def _complete(identity: Identity, role: str) -> list[Finding]:
    """Keys that are missing or of another shape; unknown ones, which a target may carry.

    The keys of a model type that the reference backend does not compute are known to NxDI only.
    """
    is_known = identity.family != "causal-lm" or identity.config.model_type in SUPPORTED_MODEL_TYPES
    backend: ForBackend = "any" if is_known else "reference"
    findings = [
        error(
            f"{role}-keys-{kind}",
            f"{identity.directory}: {kind} tensors: {_some(names)}",
            "use the complete checkpoint as published",
            _NXD_LOADING,
            backend,
        )
        for kind, names in (("missing", identity.missing), ("misshapen", identity.misshapen))
        if names
    ]
    if identity.unexpected:
        findings.append(
            Finding(
                f"{role}-keys-unexpected",
                "error" if role == "draft" else "warning",
                f"{identity.directory}: unexpected tensors: {_some(identity.unexpected)}",
                "check that this is the kind of model it should be: unknown tensors are not used",
                _NXD_LOADING,
                backend,
            )
        )
    return findings


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more
