"""Where a Neuron build runs: SDK release, TP degree, one graph or two, by asking the preflight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neuron_spec.errors import SpecError, nearest
from neuron_spec.platforms.instances import INSTANCES, Instance
from neuron_spec.platforms.nxdi_models import ROLLING_CACHE
from neuron_spec.platforms.nxdi_releases import RELEASES
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.memory_estimate import GIB, stored_bytes
from neuron_spec.preflight.neuron.windows import window_of
from neuron_spec.proposal.models import Models
from neuron_spec.proposal.values import Table, Value
from neuron_spec.spec.neuron import NeuronSpec

Checked = Callable[[Table], list[Finding]]
"""[neuron] table -> findings of the build that it makes."""

# What the SDK's tutorials leave to a core: 16 GB of an 8B target on 8, 141 GB of a 70B one on 64.
_WEIGHTS_A_CORE_GIB = 2.5
_LARGE_GIB = 64


def find_instance(name: str) -> Instance:
    """An instance by its name.

    Raises:
        SpecError: none of that name is known.
    """
    if name not in INSTANCES:
        raise SpecError(
            f"--instance '{name}' is none that is documented with Neuron cores: "
            f"{nearest(name, list(INSTANCES))}",
            expected=", ".join(INSTANCES),
        )
    return INSTANCES[name]


def place(models: Models, instance: Instance, dtype: str, checked: Checked) -> Table:
    """The [neuron] table: of the TP degrees that the runtime supports there, the one that suits."""
    weights = stored_bytes(models.target.config, dtype) / GIB
    table: Table = {"instance": Value(instance.name), **_release(instance)}
    extra = {**_graphs(models), **_sharded(weights)}
    options = [
        _Option(degree, tuple(checked({**table, "tp_degree": Value(degree), **extra})), weights)
        for degree in instance.tp_degrees(instance.default_lnc)
    ]
    best = min(options, key=lambda option: option.rank)
    return {**table, "tp_degree": Value(best.degree, best.reason(options, instance)), **extra}


@dataclass(frozen=True)
class _Option:
    """One TP degree with what the preflight says of it."""

    degree: int
    findings: tuple[Finding, ...]
    weights_gib: float

    def _has(self, code: str) -> bool:
        return any(finding.code == f"neuron-{code}" for finding in self.findings)

    @property
    def errors(self) -> frozenset[str]:
        return frozenset(f.code for f in self.findings if f.severity == "error")

    @property
    def share_gib(self) -> float:
        """Of the target's weights, a core's."""
        return self.weights_gib / self.degree

    @property
    def rank(self) -> tuple[bool | int, ...]:
        """Smallest is best: possible, with room, heads whole; then as few cores as are enough, or
        as many as there are where no degree is."""
        is_enough = self.share_gib <= _WEIGHTS_A_CORE_GIB
        return (
            len(self.errors),
            self._has("memory-tight"),
            self._has("target-heads"),
            not is_enough,
            self.degree if is_enough else -self.degree,
        )

    def reason(self, options: list[_Option], instance: Instance) -> str:
        """Why this one."""
        share = f"{self.share_gib:.1f} GiB of weights a core"
        if self.errors:
            return "no degree passes the preflight; see its findings"
        if self.share_gib <= _WEIGHTS_A_CORE_GIB:
            return f"{share} (SDK tutorials: 8B on 8, 70B on 64)"
        if self.degree == instance.logical_cores(instance.default_lnc):
            return f"all logical cores; {share}"
        larger = [option for option in options if option.degree > self.degree]
        if any(option.errors for option in larger):
            return f"the largest that passes the preflight; {share}"
        if larger:
            return f"the largest that divides heads and fits; {share}"
        return f"the largest that the runtime supports there; {share}"


def _release(instance: Instance) -> Table:
    """The newest release whose NxDI was read, if the default one has left the chips."""
    default = str(NeuronSpec.model_fields["sdk"].default)
    if instance.family in RELEASES[default].chips:
        return {}
    release = next(
        r for r in reversed(RELEASES.values()) if r.is_read and instance.family in r.chips
    )
    reason = f"later ones do not support {instance.family}: NxDI {release.nxdi}"
    return {"sdk": Value(release.sdk, reason)}


def _graphs(models: Models) -> Table:
    """A draft model runs in the target's graph, unless a window keeps it out."""
    config = models.target.config
    if models.method != "model" or config.model_type not in ROLLING_CACHE or not window_of(config):
        return {}
    return {"fused": Value(False, "fused steps cannot keep the target's sliding window")}


def _sharded(weights_gib: float) -> Table:
    if weights_gib <= _LARGE_GIB:
        return {}
    return {
        "save_sharded_checkpoint": Value(
            True, f"loading need not split {weights_gib:.0f} GiB every time"
        )
    }
