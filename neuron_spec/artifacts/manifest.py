"""What an artifact says about itself: enough to compare two measurements, or to refuse to."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict

FORMAT_VERSION = 1


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


class Manifest(Record):
    """The whole manifest; the spec is kept as plain data so that it can be loaded again."""

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


def fingerprint_of(
    backend: str, spec: dict[str, Any], models: dict[str, ModelRecord], libraries: dict[str, str]
) -> str:
    """SHA-256 over everything that decides what the artifact computes.

    Paths and times are left out: the same inputs elsewhere give the same fingerprint.
    """
    settings = {**spec, "target": {**spec["target"], "model": None}}
    settings["draft"] = {**spec["draft"], "model": None}
    digests = {
        role: {entry.name: entry.sha256 for entry in model.files} for role, model in models.items()
    }
    content = [FORMAT_VERSION, backend, settings, digests, libraries]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
