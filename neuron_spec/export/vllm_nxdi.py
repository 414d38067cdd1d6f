"""Build spec -> vLLM with the plugin over NxD Inference (vllm-neuron up to 0.5, vLLM 0.13).

Sources: vllm-project/vllm-neuron, vllm_neuron/worker/neuronx_distributed_model_loader.py (0d6b1cb)
and vllm_neuron/platform.py (61abf3f); aws-neuron-sdk,
libraries/nxd-inference/developer_guides/vllm-user-guide-v1.rst; on draft models docs.vllm.ai,
v0.14.0, features/spec_decode. What they fix:

- The plugin's defaults are updated by `override_neuron_config`, so that all of our keywords go in.
- Its default `speculation_length` is `num_speculative_tokens`, one less than k + 1: without the
  override the device would draft one token less than asked.
- It sets `enable_eagle_speculation` for the method eagle and not for eagle3: the override does.
- `draft_overrides` inside it are set on the draft's copy of the NeuronConfig, one by one.
- With a local model and no NEURON_COMPILED_ARTIFACTS it empties its folder and compiles at every
  start; with a compiled model there, overrides are ignored with a warning.
- Without prefix caching a block is a whole sequence, and there are as many as sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neuron_spec.backends.neuron.config import NxdiConfig, render
from neuron_spec.backends.neuron.facts import NOTHING_KNOWN, CheckpointFacts
from neuron_spec.export.handover import UNTRIED, Handover, Loss, Models, refuse
from neuron_spec.export.losses import greedy_default, greedy_notes, rule_losses, schedule_losses
from neuron_spec.export.vllm import revision_option
from neuron_spec.spec.schema import BuildSpec

_SYSTEM = "vLLM 0.13 with vllm-neuron up to 0.5, over NxD Inference"
_PLUGINS = {"2.28": "0.4.1", "2.29": "0.5.0"}
_METHODS = ("none", "eagle", "eagle3")
_REFUSALS = {
    "model": "vLLM 0.13 has no draft models: NotImplementedError (only AWS's fork of vLLM 0 had)",
    "medusa": "the plugin makes every speculation a fused one, which Medusa is not",
}
_SAID_BY_OPTIONS = ("tp_degree", "batch_size", "torch_dtype")


def for_vllm_nxdi(
    spec: BuildSpec,
    models: Models,
    artifact: str,
    *,
    facts: CheckpointFacts = NOTHING_KNOWN,
) -> Handover:
    """The command for vLLM over NxD Inference.

    Args:
        artifact: folder of the compiled model: `target` of an artifact, or one that the first
            start fills.
        facts: what is known of the checkpoints, as for `render`.

    Raises:
        SpecError: no [neuron] table, NxDI cannot do what the spec says, or the plugin cannot.
    """
    _check_method(spec)
    config = render(spec, facts)
    assert spec.neuron is not None
    options: dict[str, Any] = {
        **revision_option(models.target),
        "--dtype": spec.target.dtype,
        "--tensor-parallel-size": spec.neuron.tp_degree,
        "--max-model-len": spec.shape.max_total_tokens,
        "--max-num-seqs": spec.shape.batch_size,
        "--num-gpu-blocks-override": spec.shape.batch_size,
        "--no-enable-prefix-caching": None,
        **_speculation(spec, config),
        "--additional-config": additional_config(config),
        **greedy_default(spec),
    }
    return Handover(
        _SYSTEM,
        ("vllm", "serve", models.target.name),
        options,
        environment={"NEURON_COMPILED_ARTIFACTS": artifact},
        losses=tuple(_losses(spec)),
        notes=tuple(_notes(spec, config)),
    )


def _check_method(spec: BuildSpec) -> None:
    method = spec.draft.method
    if method not in _METHODS:
        why = _REFUSALS.get(method, "the plugin drafts with EAGLE v1 and EAGLE-3 only")
        raise refuse(
            spec,
            f"draft.method '{method}': {why}",
            "use eagle, eagle3 or none, or serve the artifact with neuron-spec serve",
        )


def _speculation(spec: BuildSpec, config: NxdiConfig) -> dict[str, Any]:
    if config.draft is None:
        return {}
    return {
        "--speculative-config": {
            "method": spec.draft.method,
            "model": str(Path(config.draft.path).absolute()),
            "num_speculative_tokens": spec.num_draft_tokens,
            "max_model_len": spec.shape.max_total_tokens,
        }
    }


def additional_config(config: NxdiConfig) -> dict[str, Any]:
    """Our NeuronConfig as overrides of the plugin's defaults."""
    arguments = config.neuron_arguments
    override = {name: arguments[name] for name in arguments if name not in _SAID_BY_OPTIONS}
    # The plugin samples on the device unless told otherwise.
    override.setdefault("on_device_sampling_config", None)
    if config.draft is not None:
        override["draft_overrides"] = {
            name: setting.value for name, setting in config.draft.changes.items()
        }
    return {
        "max_prompt_length": arguments["max_context_length"],
        "override_neuron_config": override,
    }


def _losses(spec: BuildSpec) -> Iterator[Loss]:
    yield from rule_losses(spec)
    yield from schedule_losses(spec, "the compiled graph has one length")


def _notes(spec: BuildSpec, config: NxdiConfig) -> Iterator[str]:
    assert spec.neuron is not None
    plugin = _PLUGINS.get(spec.neuron.sdk)
    if plugin is None:
        yield f"for SDK {spec.neuron.sdk} the plugin's version is not recorded here"
    else:
        yield f"SDK {spec.neuron.sdk}: vllm-neuron {plugin}"
    yield (
        "where NEURON_COMPILED_ARTIFACTS holds a compiled model, the overrides are ignored: remove "
        "it when the spec changes; if it fails to load, vLLM compiles anew without asking"
    )
    if spec.shape.batch_size > 1:
        yield (
            "--artifact ARTIFACT/target hands over what `compile --backend neuron` compiled: the "
            "same NxDI configuration, so that vLLM need not compile"
        )
    yield from greedy_notes(spec, is_enforced=config.sampling is not None)
    if config.draft is not None:
        yield "the draft is the prepared one: run `neuron-spec prepare` first"
    if spec.draft.tree:
        yield "nothing of the plugin shows a token tree: compare with neuron-spec verify first"
    if spec.draft.method == "eagle3":
        yield "the plugin itself switches EAGLE on for method eagle only; the overrides do it here"
    yield UNTRIED
    yield from (f"assumed: {assumption}" for assumption in config.assumptions)
