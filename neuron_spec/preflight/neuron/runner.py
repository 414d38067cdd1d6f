"""Settings that NxDI compiles and this package's own runner cannot run.

They concern `compile --backend neuron` alone: an artifact would not open. What `export` writes for
other servers is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuron_spec.preflight.findings import Finding
from neuron_spec.preflight.neuron.build import NeuronBuild
from neuron_spec.preflight.neuron.findings import Constraint, error

_BLOCKS = "the cache is addressed by blocks, and the runner gives positions"
# Keyword of NeuronConfig -> what the runner would misread.
UNREAD = {
    "async_mode": "a step's outputs stay on the device, and the next step starts before they are "
    "read",
    "is_block_kv_layout": _BLOCKS,
    "is_prefix_caching": _BLOCKS,
}
NO_TOP_K = (
    "NxDI then refuses every top_k but 0, which makes all tokens alike "
    "(modules/generation/sampling.py)"
)
_COMPILE = "compile --backend neuron: the artifact would not open here"


def check_unread(build: NeuronBuild) -> Iterator[Finding]:
    """Inputs and outputs of another kind than the runner's."""
    for name, reason in UNREAD.items():
        if build.settings.get(name):
            yield error(
                f"runner-{name.removeprefix('is_').replace('_', '-')}",
                f"neuron.config.{name}: {reason}; {_COMPILE}",
                f"leave {name} out of the spec that is compiled; for vLLM, which can use it, keep "
                "a spec of its own and `export` that",
                "neuron_spec.backends.neuron.running",
            )


def check_global_top_k(build: NeuronBuild) -> Iterator[Finding]:
    """The sampler's list of candidates; greedy graphs ask it too."""
    top_k = build.neuron.sampling.get("global_topk", 1)
    if build.samples_on_device and type(top_k) is int and top_k < 1:
        yield error(
            "runner-global-top-k",
            f"neuron.sampling.global_topk {top_k}: {NO_TOP_K}; {_COMPILE}",
            "give the largest top_k that requests may ask for, or leave global_topk out",
            "NxDI modules/generation/sampling.py validate_sampling_params",
        )


CONSTRAINTS: tuple[Constraint, ...] = (check_unread, check_global_top_k)
