"""Machines and releases as data: figures of AWS's tables, and how they hang together."""

from __future__ import annotations

import pytest

from neuron_spec.platforms.instances import CHIPS, INSTANCES
from neuron_spec.platforms.nxdi_keywords import recorded_releases, release_number
from neuron_spec.platforms.nxdi_models import FAMILIES, RUN_BY_LLAMA, family_of
from neuron_spec.platforms.nxdi_releases import RELEASES


@pytest.mark.parametrize(
    ("name", "physical", "logical", "total_gib", "core_gib", "degrees"),
    [
        ("inf2.xlarge", 2, 2, 32, 16, (1, 2)),
        ("inf2.8xlarge", 2, 2, 32, 16, (1, 2)),
        ("inf2.24xlarge", 12, 12, 192, 16, (1, 2, 4, 8)),
        ("inf2.48xlarge", 24, 24, 384, 16, (1, 2, 4, 8, 24)),
        ("trn1.2xlarge", 2, 2, 32, 16, (1, 2)),
        ("trn1.32xlarge", 32, 32, 512, 16, (1, 2, 8, 16, 32)),
        ("trn1n.32xlarge", 32, 32, 512, 16, (1, 2, 8, 16, 32)),
        ("trn2.3xlarge", 8, 4, 96, 24, (1, 2, 4)),
        ("trn2.48xlarge", 128, 64, 1536, 24, (1, 2, 4, 8, 16, 32, 64)),
        ("trn2u.48xlarge", 128, 64, 1536, 24, (1, 2, 4, 8, 16, 32, 64)),
        ("trn3-gen1", 128, 64, 2304, 36, (1, 2, 4, 8, 16, 32, 64)),
        ("trn3-gen2", 32, 16, 576, 36, (1, 2, 4, 8, 16)),
    ],
)
def test_the_rows_of_the_hardware_pages(
    name: str, physical: int, logical: int, total_gib: int, core_gib: int, degrees: tuple[int, ...]
) -> None:
    instance = INSTANCES[name]
    lnc = instance.default_lnc
    assert (instance.physical_cores, instance.logical_cores(lnc)) == (physical, logical)
    assert (instance.hbm_gib, instance.core_gib(lnc)) == (total_gib, core_gib)
    assert instance.tp_degrees(lnc) == degrees
    assert name.startswith(instance.family) and instance.source


def test_host_memory() -> None:
    """A server of an UltraServer has its share: 8,192 GiB of 4 servers, 27,648 of 36."""
    assert {name: instance.host_gib for name, instance in INSTANCES.items()} == {
        "inf2.xlarge": 16, "inf2.8xlarge": 128, "inf2.24xlarge": 384, "inf2.48xlarge": 768,
        "trn1.2xlarge": 32, "trn1.32xlarge": 512, "trn1n.32xlarge": 512,
        "trn2.3xlarge": None, "trn2.48xlarge": 2048, "trn2u.48xlarge": 2048,
        "trn3-gen1": 8192 // 4, "trn3-gen2": 27648 // 36,
    }  # fmt: skip


def test_logical_cores_of_one_or_two() -> None:
    assert {chip.family: chip.lncs for chip in CHIPS} == {
        "inf2": (1,), "trn1": (1,), "trn2": (2, 1), "trn3": (2, 1),
    }  # fmt: skip


def test_single_physical_cores_of_trainium2() -> None:
    small = INSTANCES["trn2.3xlarge"]
    assert small.logical_cores(1) == 8 and small.core_gib(1) == 12
    assert small.tp_degrees(1) == (1, 2, 4, 8)


def test_every_instance_has_a_release_and_every_release_an_instance() -> None:
    for chip in CHIPS:
        assert any(chip.family in release.chips for release in RELEASES.values())
    for sdk, release in RELEASES.items():
        assert release.sdk == sdk and release.source
        assert set(release.chips) <= {chip.family for chip in CHIPS}
    assert list(RELEASES) == sorted(RELEASES, key=release_number)


def test_what_was_read_is_what_was_recorded() -> None:
    read = tuple(sdk for sdk, release in RELEASES.items() if release.is_read)
    assert read == recorded_releases()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.family)
def test_families_are_told_with_their_sources(family: object) -> None:
    from neuron_spec.platforms.nxdi_models import FamilySupport

    assert isinstance(family, FamilySupport)
    assert set(family.shown) <= set(family.paths) and "alone" in family.paths
    assert family.since in RELEASES and family.refusal
    assert family.source == f"NxDI models/{family.family}/modeling_{family.family}.py"
    assert all(family_of(kind) is family for kind in family.model_types)


def without(attribute: str) -> set[str]:
    """Families that speculate and lack something, so that nobody changes one in passing."""
    speculating = [family for family in FAMILIES if len(family.paths) > 1]
    return {family.family for family in speculating if not getattr(family, attribute)}


def test_what_the_classes_leave_out() -> None:
    """Read in `models/*/modeling_*.py`: `pad=`, `get_rope`, `head_dim=`, `sliding_window=`."""
    assert without("pads_lm_head") == {"mixtral", "dbrx", "qwen3_moe"}
    assert without("pads_embedding") == {"mixtral", "dbrx", "qwen3_moe", "gemma3"}
    assert without("reads_head_dim") == {"mistral", "mixtral", "dbrx", "qwen2"}
    assert without("reads_window") == {"mixtral", "dbrx", "qwen2", "qwen3", "qwen3_moe"}
    scaled = without("reads_rope_scaling")
    assert scaled == {f.family for f in FAMILIES if len(f.paths) > 1} - {"llama", "gpt_oss"}


def test_only_llama_has_every_way() -> None:
    """Medusa heads and shown EAGLE drafts are Llama's; Mistral has its tensors."""
    ways = {family.family: set(family.paths) for family in FAMILIES}
    everything = set().union(*ways.values())
    assert [name for name, paths in ways.items() if paths == everything] == ["llama"]
    assert all(family_of(name) is not None for name in RUN_BY_LLAMA)
