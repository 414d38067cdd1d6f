"""Does the build fit the memory behind each logical core?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neuron_spec.platforms.instances import TP_SOURCE
from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, error, info, warning
from neuron_spec.preflight.neuron.memory_estimate import GIB, MemoryEstimate, estimate

# Above this share nothing is known of: graphs, spilled intermediates and DMA rings need some, too.
_TIGHT = 0.9
_NUM_SHOWN = 5


def check_memory(build: NeuronBuild) -> Iterator[Finding]:
    """Weights, KV caches and buffers against the memory of a core, the largest parts by name."""
    instance, found = build.instance, estimate(build)
    if instance is None or found is None or build.lnc not in instance.chip.lncs:
        return
    room = instance.core_gib(build.lnc)
    needed = found.core_bytes / GIB
    share = f"about {_size(found.core_bytes)} of {room:g} GiB a logical core of {instance.name}"
    counted = f"{share}: {_parts(found)}"
    if needed > room:
        yield error("memory", counted, _remedy(build, room), f"{TP_SOURCE}; {instance.source}")
    elif needed > _TIGHT * room:
        yield warning(
            "memory-tight",
            f"{counted}; code, spilled intermediates and DMA rings of the graphs come on top",
            _remedy(build, room),
            f"{TP_SOURCE}; AWS Neuron release notes 2.24, known issues",
        )
    else:
        yield info(
            "memory-estimate",
            counted,
            "nothing to do",
            "neuron_spec.preflight.neuron.memory_estimate",
        )


def _parts(found: MemoryEstimate) -> str:
    return ", ".join(f"{p.name} {_size(p.num_bytes)}" for p in found.largest(_NUM_SHOWN))


def _size(num_bytes: float) -> str:
    is_small = num_bytes < GIB / 10
    return f"{num_bytes * 1024 / GIB:.1f} MiB" if is_small else f"{num_bytes / GIB:.2f} GiB"


def _remedy(build: NeuronBuild, room: float) -> str:
    """The smallest TP degree of the instance that would do."""
    instance = build.instance
    for degree in instance.tp_degrees(build.lnc) if instance else ():
        other = replace(build, neuron=build.neuron.model_copy(update={"tp_degree": degree}))
        found = estimate(other)
        is_enough = found is not None and found.core_bytes / GIB <= _TIGHT * room
        if degree > build.neuron.tp_degree and is_enough:
            return f"set neuron.tp_degree to {degree}, or shorten shape.max_total_tokens"
    return "use a larger instance, a smaller shape.batch_size or shape.max_total_tokens"


CONSTRAINTS: tuple[Constraint, ...] = (check_memory,)
