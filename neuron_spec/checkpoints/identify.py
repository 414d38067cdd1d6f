"""What a directory holds, from headers alone: family, sizes, what is there, what is missing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuron_spec.checkpoints.formats import FORMATS, Format, hf
from neuron_spec.checkpoints.formats.base import DERIVED_SUFFIXES, Shapes
from neuron_spec.checkpoints.model_config import ModelConfig, read_raw_config
from neuron_spec.checkpoints.tensors import (
    DRAFT_FILES,
    WEIGHT_FILES,
    CheckpointFiles,
    StoredTensor,
)
from neuron_spec.errors import CheckpointError


@dataclass(frozen=True)
class Identity:
    """One checkpoint, identified.

    Attributes:
        names: canonical name of every tensor -> its name in the file.
        missing: keys without which neither NxDI nor the reference backend can load it.
        unexpected: keys that no table of the family knows.
        misshapen: one sentence for every key whose shape contradicts the config.
        preparation: what `prepare` will do, in order; empty when it can be loaded as it is.
    """

    directory: Path
    format: Format
    config: ModelConfig
    files: CheckpointFiles
    names: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: tuple[str, ...]
    preparation: tuple[str, ...]

    @property
    def family(self) -> str:
        """The format's family: a draft method's name, or `causal-lm`."""
        return self.format.FAMILY

    @property
    def shapes(self) -> Shapes:
        """Canonical name -> shape."""
        return {name: self.tensor(name).shape for name in self.names}

    def tensor(self, canonical: str) -> StoredTensor:
        """Where the tensor of that canonical name lies."""
        return self.files.tensors[self.names[canonical]]

    def refusals(self, target: Identity | None = None) -> list[tuple[str, str]]:
        """(code, sentence) of what no preparation can mend; see `Format.refusals`."""
        config = target.config if target else None
        return self.format.refusals(self.config, self.shapes, config)

    @property
    def dtypes(self) -> dict[str, int]:
        """How many tensors each dtype has."""
        return dict(Counter(tensor.dtype for tensor in self.files.tensors.values()))

    @property
    def num_parameters(self) -> int:
        """Stored values, buffers included."""
        shapes = (tensor.shape for tensor in self.files.tensors.values())
        return sum(math.prod(shape) for shape in shapes)

    @property
    def num_bytes(self) -> int:
        """Size of the stored values."""
        return sum(tensor.num_bytes for tensor in self.files.tensors.values())

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
            "num_bytes": self.num_bytes,
            "dtypes": self.dtypes,
            "files": [path.name for path in self.files.files],
            "missing": list(self.missing),
            "unexpected": list(self.unexpected),
            "misshapen": list(self.misshapen),
            "preparation": list(self.preparation),
            "is_prepared": self.is_prepared,
        }


def identify(directory: Path) -> Identity:
    """Identify a checkpoint directory; heads beside a whole model are what it is identified by.

    Raises:
        CheckpointError: no directory, no config, no weights, damaged files, or no known family.
    """
    return _identify(directory, DRAFT_FILES, FORMATS)


def identify_target(directory: Path) -> Identity:
    """Identify a target: a language model, whatever heads lie beside or in its weights.

    A directory without a language model is identified as what it is; see `identify`.
    """
    return _identify(directory, WEIGHT_FILES, (hf, *FORMATS))


def _identify(directory: Path, file_names: Sequence[str], forms: Sequence[Format]) -> Identity:
    raw = read_raw_config(directory)
    files = CheckpointFiles(directory, file_names)
    stored = {name: tensor.shape for name, tensor in files.tensors.items()}
    form = next((form for form in forms if form.matches(raw, stored)), None)
    if form is None:
        raise CheckpointError(
            "no known checkpoint family",
            where=directory,
            found=f"{len(stored)} tensors, among them {', '.join(sorted(stored)[:4])}",
            expected=" or ".join(form.DESCRIPTION for form in reversed(FORMATS)),
        )
    names = _canonical_names(directory, form, stored)
    found = {canonical: stored[name] for canonical, name in names.items()}
    config = form.parse_config(raw, directory, found)
    required = form.required_shapes(config, found)
    optional = form.optional_shapes(config, found)
    return Identity(
        directory,
        form,
        config,
        files,
        names,
        missing=tuple(sorted(required.keys() - found.keys())),
        unexpected=tuple(sorted(_unexpected(found, required | optional))),
        misshapen=_misshapen(found, required | optional),
        preparation=(*_renaming(names), *form.preparation(config, found)),
    )


def _canonical_names(directory: Path, form: Format, stored: Shapes) -> dict[str, str]:
    """Canonical name -> stored name."""
    names: dict[str, str] = {}
    for name in stored:
        canonical = form.canonical_name(name)
        if canonical in names:
            raise CheckpointError(
                f"stored twice, under two names: {names[canonical]}, {name}", where=directory
            )
        names[canonical] = name
    return names


def _renaming(names: Mapping[str, str]) -> Iterator[str]:
    """The step of preparation that all families share; NxDI itself strips a leading `model.`."""
    renamed = [
        (name, canonical)
        for canonical, name in names.items()
        if name not in (canonical, f"model.{canonical}")
    ]
    if renamed:
        name, canonical = renamed[0]
        yield f"rename {len(renamed)} tensors to NxDI's names ({name} to {canonical}, …)"


def _unexpected(found: Shapes, expected: Shapes) -> set[str]:
    unknown = found.keys() - expected.keys()
    return {name for name in unknown if not name.endswith(DERIVED_SUFFIXES)}


def _misshapen(found: Shapes, expected: Shapes) -> tuple[str, ...]:
    return tuple(
        f"{name}: found {list(found[name])}, expected {list(shape)} by config.json"
        for name, shape in sorted(expected.items())
        if name in found and found[name] != shape
    )
