"""Can the target draft for itself as the spec says: with its first layers, or with MTP layers?"""

from __future__ import annotations

from neuron_spec.checkpoints.formats import hf, mtp
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.preflight.findings import Finding, error
from neuron_spec.spec.schema import BuildSpec

_REFERENCE = "neuron_spec.backends.reference.self_drafts"
_MTP = "neuron_spec.checkpoints.formats.mtp (with its sources)"


def check_self_draft(spec: BuildSpec, target: Identity) -> list[Finding]:
    """What the drafting part of the target needs."""
    if spec.draft.method == "early-exit":
        return _check_exit(spec, target)
    if spec.draft.method == "mtp":
        return _check_mtp(target)
    return []


def _check_exit(spec: BuildSpec, target: Identity) -> list[Finding]:
    num_layers, exit_layer = target.config.num_hidden_layers, spec.draft.exit_layer or 0
    if exit_layer < num_layers:
        return []
    return [
        error(
            "draft-exit-layer",
            f"exit_layer {exit_layer}, but the target has {num_layers} layers: the draft would be "
            "as slow as the target",
            f"set draft.exit_layer to at most {num_layers - 1}",
            _REFERENCE,
        )
    ]


def _check_mtp(target: Identity) -> list[Finding]:
    """Only layers of the target's own kind are computed; a target of another kind is told first."""
    config = target.config
    if config.model_type not in hf.SUPPORTED_MODEL_TYPES:
        return []
    prefixes = mtp.prefixes(config)
    if not prefixes:
        return [
            error(
                "draft-mtp-none",
                f"{target.directory} has no MTP layers (config.json {mtp.FIELD}: "
                f"{config.raw.get(mtp.FIELD)!r})",
                "use a target that was published with them, or another draft.method",
                _MTP,
            )
        ]
    findings = []
    missing = sorted(hf.mtp_shapes(config, prefixes[0]).keys() - target.names.keys())
    if missing:
        findings.append(
            error(
                "draft-mtp-keys-missing",
                f"{target.directory}: the MTP layer {prefixes[0]}* has no "
                + ", ".join(name.removeprefix(prefixes[0]) for name in missing[:6])
                + "; only layers of the target's own kind (dense, Llama's attention) are computed",
                "use the complete checkpoint as published, or another draft.method",
                _MTP,
            )
        )
    if len(prefixes) > 1:
        findings.append(
            Finding(
                "draft-mtp-layers-unused",
                "warning",
                f"the target has {len(prefixes)} MTP layers; the first one drafts every token, as "
                "in vLLM",
                "nothing to do: later tokens may be accepted less often",
                _REFERENCE,
            )
        )
    return findings
