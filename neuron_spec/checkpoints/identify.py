"""What a directory holds, from headers alone: family, sizes, what is there, what is missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from neuron_spec.checkpoints.formats import eagle, hf
from neuron_spec.checkpoints.formats.hf import Shape
from neuron_spec.checkpoints.model_config import ModelConfig, read_config
from neuron_spec.checkpoints.tensors import CheckpointFiles
from neuron_spec.errors import CheckpointError

Family = Literal["causal-lm", "eagle"]


@dataclass(frozen=True)
class Identity:
    """One checkpoint, identified.

    Attributes:
        missing: keys without which neither NxDI nor the reference backend can load it.
        unexpected: keys that no table of the family knows.
        misshapen: one sentence for every key whose shape contradicts the config.
        preparation: what `prepare` will do, in order; empty when it can be loaded as it is.
    """

    directory: Path
    family: Family
    config: ModelConfig
    files: CheckpointFiles
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: tuple[str, ...]
    preparation: tuple[str, ...]

    @property
    def dtypes(self) -> dict[str, int]:
        """How many tensors each dtype has."""
        return dict(Counter(tensor.dtype for tensor in self.files.tensors.values()))

    @property
    def num_parameters(self) -> int:
        """Stored values, buffers included."""
        shapes = (tensor.shape for tensor in self.files.tensors.values())
        return sum(_product(shape) for shape in shapes)

    @property
    def is_prepared(self) -> bool:
        """Whether it can be loaded as it is."""
        return not self.preparation and not self.missing

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "directory": str(self.directory),
            "family": self.family,
            "model_type": self.config.model_type,
            "hidden_size": self.config.hidden_size,
            "num_hidden_layers": self.config.num_hidden_layers,
            "vocab_size": self.config.vocab_size,
            "num_tensors": len(self.files.tensors),
            "num_parameters": self.num_parameters,
            "dtypes": self.dtypes,
            "files": [path.name for path in self.files.files],
            "missing": list(self.missing),
            "unexpected": list(self.unexpected),
            "misshapen": list(self.misshapen),
            "preparation": list(self.preparation),
            "is_prepared": self.is_prepared,
        }


def identify(directory: Path) -> Identity:
    """Identify a checkpoint directory.

    Raises:
        CheckpointError: no directory, no config, no weights, damaged files, or no known family.
    """
    config = read_config(directory)
    files = CheckpointFiles(directory)
    shapes = {name: tensor.shape for name, tensor in files.tensors.items()}
    fc = shapes.get(eagle.FC_WEIGHT) or shapes.get("model." + eagle.FC_WEIGHT)
    if eagle.looks_like(shapes, fc):
        return _identify_eagle(directory, config, files)
    if "model.embed_tokens.weight" in shapes:
        return _identify_causal_lm(directory, config, files)
    raise CheckpointError(
        "no known checkpoint family",
        where=directory,
        found=f"{len(shapes)} tensors, among them {', '.join(sorted(shapes)[:4])}",
        expected="a causal language model (model.embed_tokens.weight) or an EAGLE v1 head "
        "(fc.weight of width 2 x hidden and layers.0.*)",
    )


def _identify_causal_lm(directory: Path, config: ModelConfig, files: CheckpointFiles) -> Identity:
    expected = hf.model_shapes(config)
    found = {name: tensor.shape for name, tensor in files.tensors.items()}
    ignored = {"lm_head.weight"} if config.tie_word_embeddings else set()
    return Identity(
        directory, "causal-lm", config, files,
        missing=tuple(sorted(expected.keys() - found.keys())),
        unexpected=tuple(sorted(_unexpected(found, expected) - ignored)),
        misshapen=_misshapen(found, expected),
        preparation=(),
    )  # fmt: skip


def _identify_eagle(directory: Path, config: ModelConfig, files: CheckpointFiles) -> Identity:
    required, optional = eagle.required_shapes(config), eagle.optional_shapes(config)
    found = {eagle.canonical_name(name): t.shape for name, t in files.tensors.items()}
    if len(found) < len(files.tensors):
        twice = sorted(name for name in found if {name, f"model.{name}"} <= files.tensors.keys())
        raise CheckpointError(
            f"stored twice, with and without 'model.': {', '.join(twice)}", where=directory
        )
    return Identity(
        directory, "eagle", config, files,
        missing=tuple(sorted(required.keys() - found.keys())),
        unexpected=tuple(sorted(_unexpected(found, required | optional))),
        misshapen=_misshapen(found, required | optional),
        preparation=_eagle_preparation(config, found),
    )  # fmt: skip


def _eagle_preparation(config: ModelConfig, found: dict[str, Shape]) -> tuple[str, ...]:
    steps = []
    if eagle.LM_HEAD not in found:
        steps.append("copy lm_head.weight from the target (its LM head, or its tied embedding)")
    if eagle.EMBEDDING not in found:
        steps.append("copy embed_tokens.weight from the target")
    has_bias = eagle.FC_BIAS in found
    if bool(config.raw.get("fc_bias", False)) != has_bias:
        steps.append(f"write fc_bias: {str(has_bias).lower()} (NxDI drops fc.bias otherwise)")
    if config.tie_word_embeddings:
        steps.append("write tie_word_embeddings: false (NxDI would overwrite the LM head)")
    return tuple(steps)


def _unexpected(found: dict[str, Shape], expected: dict[str, Shape]) -> set[str]:
    unknown = found.keys() - expected.keys()
    return {name for name in unknown if not name.endswith(eagle.DERIVED_SUFFIXES)}


def _misshapen(found: dict[str, Shape], expected: dict[str, Shape]) -> tuple[str, ...]:
    return tuple(
        f"{name}: found {list(found[name])}, expected {list(shape)} by config.json"
        for name, shape in sorted(expected.items())
        if name in found and found[name] != shape
    )


def _product(shape: Shape) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
