"""What a chip can do at most: memory bandwidth and arithmetic, for estimates before a measurement.

Source: AWS Neuron SDK documentation, `about-neuron/arch/neuron-hardware/{inferentia2,trainium,
trainium2,trainium3}.rst`. Peaks: no kernel reaches them.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_spec.platforms.instances import Instance

_GIB, _TERA = 2.0**30, 1e12


@dataclass(frozen=True)
class Throughput:
    """Peaks of a chip, or of a part of it.

    Attributes:
        hbm_bytes_per_s: device memory, read.
        bf16_flops: dense bfloat16 operations a second, multiply and add as two.
    """

    hbm_bytes_per_s: float
    bf16_flops: float


CHIP_THROUGHPUT = {
    "inf2": Throughput(820 * _GIB, 190 * _TERA),
    "trn1": Throughput(820 * _GIB, 190 * _TERA),
    "trn2": Throughput(2.9 * _TERA, 667 * _TERA),
    "trn3": Throughput(4.9 * _TERA, 671 * _TERA),
}
"""By the chips' family."""


def core_throughput(instance: Instance, lnc: int) -> Throughput:
    """Of one logical core of `lnc` physical ones, where all cores of its chip work."""
    chip = CHIP_THROUGHPUT[instance.family]
    share = lnc / instance.chip.cores
    return Throughput(chip.hbm_bytes_per_s * share, chip.bf16_flops * share)
