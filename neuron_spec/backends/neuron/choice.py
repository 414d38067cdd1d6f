"""Which of NxDI's classes run target and draft: by config.json, or by name where it is not here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from neuron_spec.backends.neuron.facts import CheckpointFacts
from neuron_spec.backends.neuron.families import CLASSES, LLAMA, ModelClasses, guess_model_type
from neuron_spec.platforms.nxdi_keywords import release_number
from neuron_spec.platforms.nxdi_models import RUN_BY_LLAMA, Path, family_of
from neuron_spec.spec.schema import BuildSpec

HEADS_OF_LLAMA = ("eagle", "eagle3")  # only the Llama classes have such drafts, for any target


@dataclass(frozen=True)
class Choice:
    """NxDI's classes for a model, or the faults that leave none; all empty where there is no model.

    Attributes:
        assumptions: what was taken for granted.
    """

    classes: ModelClasses | None = None
    faults: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


def target_choice(spec: BuildSpec, facts: CheckpointFacts) -> Choice:
    """The target's family, or Llama where its own class cannot do what is asked."""
    choice = _by_type("target", spec.target.model, facts.target.model_type)
    if choice.classes is None:
        return choice
    return _able(spec, facts, choice.classes, choice.assumptions)


def draft_choice(spec: BuildSpec, facts: CheckpointFacts) -> Choice:
    """Of the second model; Medusa heads and the host's own drafters are none."""
    method, model = spec.draft.method, spec.draft.model
    if method in HEADS_OF_LLAMA:
        return Choice(LLAMA)
    if method != "model" or model is None:
        return Choice()
    return _by_type("draft", model, facts.draft.model_type)


def _by_type(role: str, model: str, model_type: str | None) -> Choice:
    known = model_type or guess_model_type(model)
    if known is None:
        return Choice(
            faults=(
                f"{role}.model '{model}': NxDI's class follows from model_type in its config.json, "
                "which is not here; name a directory that holds it",
            )
        )
    family = family_of(known)
    if family is None or family.family not in CLASSES:
        return Choice(
            faults=(
                f"{role}.model '{model}': nothing here is known of NxDI's class for a '{known}' "
                f"model, if there is one; known are {', '.join(CLASSES)}",
            )
        )
    assumed = f"{role} model_type '{known}': by its name; config.json is not here and decides"
    return Choice(CLASSES[family.family], assumptions=() if model_type else (assumed,))


_PATHS: dict[str, Path] = {"none": "alone", "ngram": "host", "suffix": "host"}


def _path(spec: BuildSpec) -> Path:
    """The way of a spec through NxDI, as `nxdi_models` counts them."""
    method = spec.draft.method
    if method == "model":
        return "fused" if spec.neuron and spec.neuron.fused else "unfused"
    if method == "eagle" and spec.draft.tree:
        return "eagle-tree"
    return cast(Path, _PATHS.get(method, method))


def _able(
    spec: BuildSpec, facts: CheckpointFacts, classes: ModelClasses, assumptions: tuple[str, ...]
) -> Choice:
    neuron, family = spec.neuron, family_of(classes.family)
    assert neuron is not None and family is not None
    is_too_new = release_number(family.since) > release_number(neuron.sdk)
    is_unable = _path(spec) not in family.paths
    if (is_too_new or is_unable) and family.family in RUN_BY_LLAMA:
        return _as_llama(classes, facts, assumptions)
    if is_too_new:
        fault = f"neuron.sdk {neuron.sdk}: NxDI has '{family.family}' since {family.since}"
        return Choice(faults=(fault,))
    if is_unable:
        fault = (
            f"draft.method '{spec.draft.method}': NxDI's '{family.family}' class {family.refusal} "
            f"({family.source})"
        )
        return Choice(faults=(fault,))
    return Choice(classes, assumptions=assumptions)


def _as_llama(
    classes: ModelClasses, facts: CheckpointFacts, assumptions: tuple[str, ...]
) -> Choice:
    """Mistral has Llama's tensors and arithmetic, but for the window that some versions have."""
    if facts.target.has_sliding_window:
        fault = (
            f"target: '{classes.family}' with a sliding window; NxDI's Llama class, which would "
            "have to run it here, has none"
        )
        return Choice(faults=(fault,))
    assumed = f"'{classes.family}' run by NxDI's Llama class: its sliding_window is null"
    known = facts.target.has_sliding_window is not None
    return Choice(LLAMA, assumptions=assumptions if known else (*assumptions, assumed))
