"""Which of NxDI's classes run target and draft: by config.json, or by name where it is not here."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_spec.backends.neuron.facts import CheckpointFacts
from neuron_spec.backends.neuron.families import CLASSES, LLAMA, ModelClasses, guess_model_type
from neuron_spec.platforms.nxdi_keywords import release_number
from neuron_spec.platforms.nxdi_models import Path, family_of, path_of, runner_of
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
    neuron, draft = spec.neuron, spec.draft
    assert neuron is not None
    path = path_of(draft.method, has_tree=bool(draft.tree), is_fused=neuron.fused)
    choice = _by_type("target", spec.target.model, facts.target.model_type, path, neuron.sdk)
    family = family_of(choice.classes.family) if choice.classes else None
    if family is None or path in family.paths:
        return choice
    fault = (
        f"draft.method '{draft.method}': NxDI's '{family.family}' class {family.refusal} "
        f"({family.source})"
    )
    return Choice(faults=(fault,))


def draft_choice(spec: BuildSpec, facts: CheckpointFacts) -> Choice:
    """Of the second model; Medusa heads and the host's own drafters are none."""
    method, model = spec.draft.method, spec.draft.model
    if method in HEADS_OF_LLAMA:
        return Choice(LLAMA)
    if method != "model" or model is None:
        return Choice()
    assert spec.neuron is not None
    return _by_type("draft", model, facts.draft.model_type, None, spec.neuron.sdk)


def _by_type(role: str, model: str, model_type: str | None, path: Path | None, sdk: str) -> Choice:
    known = model_type or guess_model_type(model)
    if known is None:
        return Choice(
            faults=(
                f"{role}.model '{model}': NxDI's class follows from model_type in its config.json, "
                "which is not here; name a directory that holds it",
            )
        )
    family = runner_of(known, path, sdk)
    if family is None or family.family not in CLASSES:
        return Choice(
            faults=(
                f"{role}.model '{model}': nothing here is known of NxDI's class for a '{known}' "
                f"model, if there is one; known are {', '.join(CLASSES)}",
            )
        )
    if release_number(family.since) > release_number(sdk):
        fault = f"neuron.sdk {sdk}: NxDI has '{family.family}', of the {role}, since {family.since}"
        return Choice(faults=(fault,))
    assumed = f"{role} model_type '{known}': by its name; config.json is not here and decides"
    return Choice(CLASSES[family.family], assumptions=() if model_type else (assumed,))
