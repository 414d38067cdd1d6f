"""Step costs of a Neuron build before anybody measured them: a roofline from platform facts.

A pass of a model takes as long as reading its weights and KV cache from device memory, or as its
arithmetic, whichever is longer, on cores that reach their peaks and do not wait for each other. A
step that drafts k tokens is k passes of the draft over one position and one of the target over
k + 1. That is a floor: published steps on Trn2 take four to five times as long, mostly in
what does not grow with a model's size, such as collectives and launches. A small draft has as much
of that as a large target, so that the speed-up is too high rather than too low. It orders draft
lengths and shows where arithmetic begins to count; a measurement replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neuron_spec.bench.plan import draft_lengths_of
from neuron_spec.bench.questions import ONE_LENGTH
from neuron_spec.bench.run import Run
from neuron_spec.checkpoints.model_config import read_config
from neuron_spec.errors import SpecError, UserError, nearest
from neuron_spec.metrics.costs import CostCurve, StepCost
from neuron_spec.metrics.estimates import Estimate
from neuron_spec.planner import make_plan
from neuron_spec.platforms.instances import INSTANCES
from neuron_spec.platforms.throughput import core_throughput
from neuron_spec.preflight.check import locate
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.memory_estimate import estimate
from neuron_spec.spec import BuildSpec

METHODS = ("model", "eagle", "eagle3")
ASSUMPTIONS = (
    "a pass takes as long as reading its weights and the whole compiled KV cache from device "
    "memory at peak bandwidth, or as its matrix products at bfloat16 peak, whichever is longer",
    "a step is k passes of the draft over one position and one of the target over k + 1",
    "as many requests run as shape.batch_size; one build for each number in flight",
    "collectives, launches, norms, sampling and the host take no time: published steps on Trn2 "
    "take four to five times as long, and the speed-up of a small draft is an upper bound",
    "acceptance is that of the run, on its prompts and its rule",
)
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_EAGLE_PARTS = ("draft fc", "draft attention, second half of its input")


@dataclass(frozen=True)
class Pass:
    """One pass of a model on one core.

    Attributes:
        read_bytes: weights and caches.
        values: of its matrices: each is multiplied and added once a position.
    """

    read_bytes: float
    values: float

    def seconds(self, num_positions: int, build: NeuronBuild) -> float:
        """On a core at its peak, over so many positions of all requests together."""
        assert build.instance is not None
        core = core_throughput(build.instance, build.lnc)
        arithmetic = 2 * self.values * num_positions / core.bf16_flops
        return max(self.read_bytes / core.hbm_bytes_per_s, arithmetic)


def estimated_plan(
    spec: BuildSpec, run: Run, concurrencies: Sequence[int], *, instance: str | None = None
) -> dict[str, Any]:
    """A plan for a Neuron spec: acceptance from a run on any backend, costs from platform facts.

    Args:
        instance: another than the spec's.

    Raises:
        UserError: the spec is none for Neuron or of a method without known passes, a model cannot
            be read, or the run drafted nothing.
    """
    build = _build(spec, instance)
    tokens = draft_lengths_of(run)
    plan = make_plan(tokens, estimated_costs(build, concurrencies, max(tokens)))
    assumptions, has_one_length = [*ASSUMPTIONS], build.is_fused
    recorded = run["record"]["draft"]["method"]
    if recorded != spec.draft.method:
        assumptions.append(f"the run's draft is of method {recorded}, the spec's is another")
    return {
        **plan.as_dict(),
        "toml": "" if has_one_length else plan.as_toml,
        "estimate": {
            "instance": build.neuron.instance,
            "tp_degree": build.neuron.tp_degree,
            "assumptions": assumptions,
        },
        "questions": [],
        "notes": [
            "an estimate, not a measurement",
            *([ONE_LENGTH] if has_one_length else []),
            *assumptions,
            *run["notes"],
        ],
    }


def estimated_costs(build: NeuronBuild, concurrencies: Sequence[int], longest: int) -> CostCurve:
    """Step costs for draft lengths 0 … longest; without intervals, since nothing was measured."""
    costs = []
    for concurrency in concurrencies:
        shape = build.spec.shape.model_copy(update={"batch_size": concurrency})
        own = replace(build, spec=build.spec.model_copy(update={"shape": shape}))
        passes = _passes(own)
        draft_s = passes["draft"].seconds(concurrency, own)
        for k in range(longest + 1):
            verify_s = passes["target"].seconds(concurrency * (k + 1), own)
            costs.append(
                StepCost(
                    concurrency,
                    k,
                    _figure(k * draft_s + verify_s),
                    _figure(k * draft_s),
                    _figure(verify_s),
                )
            )
    return CostCurve(tuple(costs))


def _figure(value: float) -> Estimate:
    return Estimate(value, None, None, 0)


def _passes(build: NeuronBuild) -> dict[str, Pass]:
    found = estimate(build)
    assert found is not None  # both configs are known
    parts = {part.name: part.num_bytes for part in found.parts}
    dtype_bytes = _DTYPE_BYTES[build.spec.target.dtype]
    return {
        "target": _pass("target", parts, dtype_bytes, bool(build.settings.get("quantized"))),
        "draft": _pass("draft", parts, dtype_bytes, False),
    }


def _pass(role: str, parts: Mapping[str, float], dtype_bytes: int, is_quantized: bool) -> Pass:
    layers, head = parts[f"{role} layers"], parts[f"{role} LM head"]
    extra = sum(parts.get(name, 0.0) for name in _EAGLE_PARTS) if role == "draft" else 0.0
    values = layers / (1 if is_quantized else dtype_bytes) + (head + extra) / dtype_bytes
    return Pass(layers + head + extra + parts[f"{role} KV cache"], values)


def _build(spec: BuildSpec, instance: str | None) -> NeuronBuild:
    if spec.neuron is None:
        raise SpecError("no [neuron] section: no platform to estimate", where=spec.name)
    if spec.draft.method not in METHODS or spec.draft.tree:
        raise SpecError(
            "no cost is known without a measurement",
            where="draft.method",
            found=f"a tree of {spec.draft.method}" if spec.draft.tree else spec.draft.method,
            expected=f"a chain of {', '.join(METHODS)}",
            mend="measure with `neuron-spec bench` on the instance",
        )
    neuron = spec.neuron.model_copy(update={"instance": instance} if instance else {})
    directories = locate(spec)
    assert directories.draft is not None  # these methods have one
    build = NeuronBuild(
        spec, neuron, read_config(directories.target), read_config(directories.draft)
    )
    _check(build)
    return build


def _check(build: NeuronBuild) -> None:
    instance, degree = build.instance, build.neuron.tp_degree
    if instance is None:
        name = build.neuron.instance
        raise UserError(f"no such instance: {name}", mend=nearest(name, list(INSTANCES)))
    if degree > instance.logical_cores(build.lnc):
        raise UserError(
            "more cores than the instance has",
            where="neuron.tp_degree",
            found=degree,
            expected=f"at most {instance.logical_cores(build.lnc)} on {instance.name}",
        )
    raw = build.target.raw if build.target else {}
    if raw.get("num_local_experts") or raw.get("num_experts"):
        raise UserError(
            "how many experts a step reads depends on its tokens: no estimate of mixtures",
            mend="measure with `neuron-spec bench` on the instance",
        )
