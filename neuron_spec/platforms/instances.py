"""EC2 instances with Inferentia or Trainium chips: cores, memory, and the TP degrees they run.

Sources, in the AWS Neuron SDK documentation (2.32.0, August 2026): cores and memory from
`about-neuron/arch/neuron-hardware/{inf2,trn1,trn2,trn3}-arch.rst` and `{inferentia2,trainium,
trainium2,trainium3}.rst`; logical cores from `neuron-features/logical-neuroncore-config.rst`; TP
degrees from `libraries/nxd-inference/developer_guides/feature-guide.rst`, Tensor-parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_ARCH = "AWS Neuron documentation, about-neuron/arch/neuron-hardware"
TP_SOURCE = "AWS Neuron documentation, NxD Inference feature guide, Tensor-parallelism"
LNC_SOURCE = "AWS Neuron documentation, logical-neuroncore-config"


@dataclass(frozen=True)
class Chip:
    """One generation of chips.

    Attributes:
        family: what instances, and NxDI's platform strings, are called after.
        cores: physical NeuronCores a chip.
        lncs: how many physical cores may make one logical core; the first is the default.
        tp_degrees: those that the runtime supports; empty where no page lists them.
    """

    family: str
    name: str
    cores: int
    hbm_gib: int
    lncs: tuple[int, ...]
    tp_degrees: tuple[int, ...]
    source: str


INFERENTIA2 = Chip(
    "inf2", "Inferentia2", 2, 32, (1,), (1, 2, 4, 8, 24), f"{_ARCH}/inferentia2.rst"
)  # 12 is not listed, though inf2.24xlarge has 12 cores
TRAINIUM1 = Chip(
    "trn1", "Trainium", 2, 32, (1,), (1, 2, 8, 16, 32), f"{_ARCH}/trainium.rst"
)  # 4 is not listed
TRAINIUM2 = Chip(
    "trn2", "Trainium2", 8, 96, (2, 1), (1, 2, 4, 8, 16, 32, 64), f"{_ARCH}/trainium2.rst"
)
TRAINIUM3 = Chip("trn3", "Trainium3", 8, 144, (2, 1), (), f"{_ARCH}/trainium3.rst")
CHIPS = (INFERENTIA2, TRAINIUM1, TRAINIUM2, TRAINIUM3)


@dataclass(frozen=True)
class Instance:
    """One instance type, or one server of an UltraServer.

    Attributes:
        host_gib: memory of the host; None where no page says it.
    """

    name: str
    chip: Chip
    num_chips: int
    host_gib: int | None
    source: str

    @property
    def family(self) -> str:
        """inf2, trn1, trn2 or trn3: trn1n and trn2u are their families' chips."""
        return self.chip.family

    @property
    def physical_cores(self) -> int:
        """NeuronCores of all chips."""
        return self.num_chips * self.chip.cores

    @property
    def hbm_gib(self) -> int:
        """Device memory of all chips."""
        return self.num_chips * self.chip.hbm_gib

    @property
    def default_lnc(self) -> int:
        """Physical cores that make one logical core if nobody says otherwise."""
        return self.chip.lncs[0]

    def logical_cores(self, lnc: int) -> int:
        """What TP degrees count."""
        return self.physical_cores // lnc

    def core_gib(self, lnc: int) -> float:
        """Memory behind one logical core. Two physical cores share a bank: with one physical core
        a logical core, each has half of it where both are used."""
        return self.hbm_gib / self.logical_cores(lnc)

    def tp_degrees(self, lnc: int) -> tuple[int, ...]:
        """TP degrees that fit on it, of those that the runtime supports. Where a page lists degrees
        of the default logical cores only, or none at all: powers of two."""
        listed = self.chip.tp_degrees
        if not listed or lnc != self.default_lnc:
            listed = tuple(_powers_of_two(self.logical_cores(lnc)))
        return tuple(degree for degree in listed if degree <= self.logical_cores(lnc))


def _powers_of_two(largest: int) -> Iterator[int]:
    power = 1
    while power <= largest:
        yield power
        power *= 2


_INF2, _TRN1 = f"{_ARCH}/inf2-arch.rst", f"{_ARCH}/trn1-arch.rst"
_TRN2, _TRN3 = f"{_ARCH}/trn2-arch.rst", f"{_ARCH}/trn3-arch.rst"
# One chip, four logical cores; the rest is that chip's row.
_SMALL_TRN2 = "vllm-project/vllm-neuron examples/vllm_neuron/models/llama3/dflash/README.md"

INSTANCES: dict[str, Instance] = {
    instance.name: instance
    for instance in (
        Instance("inf2.xlarge", INFERENTIA2, 1, 16, _INF2),
        Instance("inf2.8xlarge", INFERENTIA2, 1, 128, _INF2),
        Instance("inf2.24xlarge", INFERENTIA2, 6, 384, _INF2),
        Instance("inf2.48xlarge", INFERENTIA2, 12, 768, _INF2),
        Instance("trn1.2xlarge", TRAINIUM1, 1, 32, _TRN1),
        Instance("trn1.32xlarge", TRAINIUM1, 16, 512, _TRN1),
        Instance("trn1n.32xlarge", TRAINIUM1, 16, 512, _TRN1),
        Instance("trn2.3xlarge", TRAINIUM2, 1, None, _SMALL_TRN2),
        Instance("trn2.48xlarge", TRAINIUM2, 16, 2048, _TRN2),
        Instance("trn2u.48xlarge", TRAINIUM2, 16, 2048, _TRN2),
        # No EC2 size of Trn3 is named; these are servers of its two UltraServers.
        Instance("trn3-gen1", TRAINIUM3, 16, 2048, _TRN3),
        Instance("trn3-gen2", TRAINIUM3, 4, 768, _TRN3),
    )
}
