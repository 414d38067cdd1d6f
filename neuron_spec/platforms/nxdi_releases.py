"""Which release of NxD Inference runs on which chips, and until when.

Sources: release notes of the AWS Neuron SDK (`release-notes/components/nxd-inference.rst`), its
announcements (`about-neuron/announcements/neuron2.x/`), and the tags of
aws-neuron/neuronx-distributed-inference.
"""

from __future__ import annotations

from dataclasses import dataclass

_NOTES = "AWS Neuron release notes, NxD Inference"
_OLD_CHIPS, _NEW_CHIPS = ("inf2", "trn1"), ("trn2", "trn3")
END_OF_SUPPORT = "2.34"
END_OF_SUPPORT_SOURCE = (
    "AWS Neuron announcement of October 16, 2026: announce-eos-nxdi-nxd-core-inference"
)


@dataclass(frozen=True)
class NxdiRelease:
    """One release line of the SDK with the NxDI it ships.

    Attributes:
        chips: families of chips its models are supported on.
        is_read: whether its source was read: what this package knows of NxDI is from there.
    """

    sdk: str
    nxdi: str
    chips: tuple[str, ...]
    source: str
    is_read: bool = False


RELEASES: dict[str, NxdiRelease] = {
    release.sdk: release
    for release in (
        NxdiRelease("2.26", "0.6.10598", (*_OLD_CHIPS, "trn2"), f"{_NOTES} 2.26.0"),
        NxdiRelease("2.27", "0.7.14366", (*_OLD_CHIPS, *_NEW_CHIPS), f"{_NOTES} 2.27.0"),
        NxdiRelease("2.28", "0.8.16251", (*_OLD_CHIPS, *_NEW_CHIPS), f"{_NOTES} 2.28.0", True),
        NxdiRelease("2.29", "0.9.17334", _NEW_CHIPS, f"{_NOTES} 2.29.0, Breaking Changes", True),
        NxdiRelease("2.30", "0.10", _NEW_CHIPS, f"{_NOTES} 2.30.0"),
        NxdiRelease("2.31", "0.10.18399", _NEW_CHIPS, f"{_NOTES} 2.31.0"),
        NxdiRelease("2.32", "0.10.18399", _NEW_CHIPS, f"{_NOTES} 2.32.0 (maintenance mode)"),
    )
}
