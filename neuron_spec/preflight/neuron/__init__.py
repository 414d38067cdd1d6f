"""Every constraint of a build for Neuron, in one list.

NxDI cannot be imported without the Neuron packages, not even to check a configuration, so that its
rules are written down here: one function or row a rule, each with its source.
"""

from __future__ import annotations

from neuron_spec.checkpoints.formats import medusa
from neuron_spec.checkpoints.identify import Identity
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron import (
    arithmetic,
    behaviours,
    flags,
    keywords,
    memory,
    packages,
    parallelism,
    runner,
    sampling,
    shapes,
    support,
    trees,
    windows,
)
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint
from neuron_spec.spec.schema import BuildSpec

CONSTRAINTS: tuple[Constraint, ...] = (
    *support.CONSTRAINTS,
    *arithmetic.CONSTRAINTS,
    *windows.CONSTRAINTS,
    *keywords.CONSTRAINTS,
    *flags.CONSTRAINTS,
    *trees.CONSTRAINTS,
    *sampling.CONSTRAINTS,
    *runner.CONSTRAINTS,
    *shapes.CONSTRAINTS,
    *parallelism.CONSTRAINTS,
    *memory.CONSTRAINTS,
    *behaviours.CONSTRAINTS,
)


def check_neuron(
    spec: BuildSpec,
    target: Identity | None,
    draft: Identity | None,
    target_type: str | None = None,
) -> list[Finding]:
    """Findings about the [neuron] table of a spec; nothing where it has none.

    Args:
        target, draft: None where there is none, or it cannot be read.
        target_type: the target's model_type, if that at least can be read.
    """
    if spec.neuron is None:
        return []
    return [
        *packages.check_packages(),
        *check_build(neuron_build(spec, target, draft, target_type)),
    ]


def neuron_build(
    spec: BuildSpec,
    target: Identity | None,
    draft: Identity | None,
    target_type: str | None = None,
) -> NeuronBuild:
    """The build of a spec with a [neuron] table, with what is known of its models."""
    assert spec.neuron is not None
    return NeuronBuild(
        spec,
        spec.neuron,
        target=target.config if target else None,
        draft=draft.config if draft else None,
        target_type=target.config.model_type if target else target_type,
        draft_type=draft.config.model_type if draft else None,
        draft_names=frozenset(draft.names if draft else ()),
        num_medusa_heads=_num_medusa_heads(draft),
    )


def check_build(build: NeuronBuild) -> list[Finding]:
    """What the constraints say of a build whose models are described, on disk or not."""
    return [finding for constraint in CONSTRAINTS for finding in constraint(build)]


def _num_medusa_heads(draft: Identity | None) -> int | None:
    if draft is None or draft.family != medusa.FAMILY:
        return None
    return medusa.num_heads(draft.shapes)
