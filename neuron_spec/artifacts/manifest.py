"""What an artifact says about itself: enough to compare two measurements, or to refuse to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FORMAT_VERSION = 2

# Of a model's directory, beside the weights: what a tokenizer and the model classes are made from.
SMALL_MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


class Record(BaseModel):
    """A part of the manifest: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class FileEntry(Record):
    """A file as it was when the artifact was made."""

    name: str
    num_bytes: int
    mtime_ns: int
    sha256: str


class ModelRecord(Record):
    """A model that the artifact links to: where it was, and its files with digests."""

    source: str
    directory: str
    files: tuple[FileEntry, ...]


class ClaimRecord(Record):
    """One level's claim, as in `neuron_spec.spec.guarantees`."""

    level: str
    status: str
    source: str


class NeuronRecord(Record):
    """What was compiled for Neuron, and with what.

    Attributes:
        graphs: compiled graphs, as `target context_encoding_model` -> its buckets in tokens.
        config: NxDI's configuration, as `NxdiConfig.as_dict` renders it.
        environment: variables that were set for the build; the work directory is left out.
        holds_weights: whether every rank's weights lie in the artifact, so that it loads without
            the checkpoints.
    """

    instance: str
    sdk: str
    tp_degree: int
    logical_nc_config: int
    batch_size: int
    graphs: dict[str, tuple[int | tuple[int, ...], ...]]
    config: dict[str, Any]
    environment: dict[str, str]
    holds_weights: bool
    compile_seconds: float


class PinnedShapesRecord(Record):
    """What was found when `verification.pin_shapes` was tried out.

    Attributes:
        num_rows, width: slots and positions of every pass.
        machine: what decides which kernels run.
        draft_lengths: the k at which tokens were compared with k = 0.
        num_checked: tokens whose logits were compared.
        identical: that all were bitwise the same; an artifact is not made otherwise.
    """

    num_rows: int
    width: int
    machine: str
    dtype: str
    num_threads: int
    draft_lengths: tuple[int, ...]
    num_checked: int
    identical: Literal[True]


class Manifest(Record):
    """The whole manifest; the spec is kept as plain data so that it can be loaded again.

    Attributes:
        compatibility: see `compatibility.py`; equal where two artifacts may serve as prefill and
            decode pool of one deployment.
        environment: variables that decide what is computed, as they were.
        neuron: of artifacts of that backend.
        pinned_shapes: where the spec pins them.
    """

    format_version: int
    neuron_spec_version: str
    name: str
    created_at: str
    backend: str
    fingerprint: str
    spec: dict[str, Any]
    speculation: bool
    num_draft_tokens: int
    claims: tuple[ClaimRecord, ...]
    numerics: str
    models: dict[str, ModelRecord]
    libraries: dict[str, str]
    files: tuple[FileEntry, ...]
    compatibility: str = ""
    environment: dict[str, str] = {}
    neuron: NeuronRecord | None = None
    pinned_shapes: PinnedShapesRecord | None = None

    @property
    def lookup_method(self) -> str | None:
        """Of the lookup before the draft, if there is one."""
        lookup = self.spec["draft"].get("lookup")
        return lookup["method"] if lookup else None

    @property
    def holds_weights(self) -> bool:
        """Whether it loads without the checkpoints it was made from."""
        return self.neuron is not None and self.neuron.holds_weights


@dataclass(frozen=True)
class Ingredients:
    """Everything that decides what an artifact computes.

    Attributes:
        spec: as plain data.
        libraries: name -> version.
        environment: variables that the backend's compiler reads, where they are set.
    """

    backend: str
    spec: dict[str, Any]
    models: dict[str, ModelRecord]
    libraries: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest) -> Ingredients:
        """Those of an artifact; the Python version is recorded there, but decides nothing."""
        libraries = {k: v for k, v in manifest.libraries.items() if k != "python"}
        return cls(
            manifest.backend, manifest.spec, manifest.models, libraries, manifest.environment
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The spec without the models' places, whose digests count, and without the table of
        another backend."""
        other = {"neuron": "reference", "reference": "neuron"}.get(self.backend)
        tables = {name: table for name, table in self.spec.items() if name != other}
        for role in ("target", "draft"):
            tables[role] = {**tables[role], "model": None}
        return tables

    @property
    def digests(self) -> dict[str, dict[str, str]]:
        """Role -> file name -> SHA-256."""
        return {role: digests_of(model) for role, model in self.models.items()}


def digests_of(model: ModelRecord) -> dict[str, str]:
    """File name -> SHA-256, wherever the model lies."""
    return {entry.name: entry.sha256 for entry in model.files}


def fingerprint_of(ingredients: Ingredients) -> str:
    """SHA-256 over everything that decides what the artifact computes.

    Paths and times are left out: the same inputs elsewhere give the same fingerprint.
    """
    i = ingredients
    return digest_of([FORMAT_VERSION, i.backend, i.settings, i.digests, i.libraries, i.environment])


def digest_of(content: Any) -> str:
    """SHA-256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
