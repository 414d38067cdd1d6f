"""What a figure was measured on: without it two figures cannot be compared, or only seem to be."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from neuron_spec.artifacts import Artifact, ModelRecord
from neuron_spec.bench.http import Remote
from neuron_spec.bench.rounds import ON
from neuron_spec.bench.workload import WorkloadRow, workload_digest
from neuron_spec.version import __version__

NOT_TOLD = "not told"
"""What an endpoint keeps to itself: it is never taken to be the same as another's."""


def record_of(
    artifact: Artifact, rows: Sequence[WorkloadRow], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The record of a run: target, draft, rule with claims, shapes, libraries, machine, workload.

    Args:
        options: of every request: output limit and sampling.
    """
    manifest, spec = artifact.manifest, artifact.spec
    draft = spec.draft
    return {
        "created_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "neuron_spec_version": __version__,
        "artifact": {"name": manifest.name, "fingerprint": manifest.fingerprint},
        "target": _model(manifest.models["target"]),
        "speculation": manifest.speculation,
        "draft": {
            "method": draft.method,
            **(_model(manifest.models["draft"]) if "draft" in manifest.models else {}),
            "num_draft_tokens": manifest.num_draft_tokens,
            "tree": [list(path) for path in draft.tree] or None,
            "dynamic_tree": draft.dynamic_tree.model_dump() if draft.dynamic_tree else None,
            "sampled": draft.sampled,
            "lookup": draft.lookup.model_dump() if draft.lookup else None,
            "by_load": [list(band) for band in draft.by_load],
        },
        "rule": {"name": spec.verification.rule, **spec.verification.parameters},
        "claims": [claim.model_dump() for claim in manifest.claims],
        "numerics": manifest.numerics,
        "backend": manifest.backend,
        "libraries": manifest.libraries,
        "shape": spec.shape.model_dump(),
        "precision": precision_of(artifact),
        "machine": machine_of(artifact),
        "workload": _workload(rows),
        "options": dict(options),
        "measured": "in process",
    }


def record_of_endpoints(
    ways: Mapping[str, Remote], rows: Sequence[WorkloadRow], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The same of servers: what their model cards tell, and `NOT_TOLD` for the rest."""
    main = ways.get(ON) or next(iter(ways.values()))
    card = main.card
    return {
        "created_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "neuron_spec_version": __version__,
        "artifact": {
            "name": main.client.name,
            "fingerprint": card.get("fingerprint", NOT_TOLD),
        },
        "target": {"source": main.client.model, "sha256": NOT_TOLD},
        "speculation": card.get("speculation", NOT_TOLD),
        "draft": {
            "method": card.get("draft_method", NOT_TOLD),
            "num_draft_tokens": card.get("num_draft_tokens", NOT_TOLD),
            "tree": NOT_TOLD,
            "dynamic_tree": NOT_TOLD,
        },
        "rule": {"name": card.get("verification_rule", NOT_TOLD)},
        "claims": card.get("claims", []),
        "numerics": card.get("numerics", NOT_TOLD),
        "backend": card.get("backend", NOT_TOLD),
        "libraries": NOT_TOLD,
        "shape": NOT_TOLD,
        "precision": NOT_TOLD,
        "machine": {
            "server": NOT_TOLD,
            "client": {"processor": _processor(), "num_cores": os.cpu_count()},
        },
        "workload": _workload(rows),
        "options": dict(options),
        "measured": "over HTTP",
        "endpoints": {
            way: {
                "url": remote.client.base_url,
                "model": remote.client.model,
                "extra_fields": dict(remote.extra),
                "card": dict(remote.card),
                "tokens_counted_by": "usage" if remote.tokenizer is None else "tokenizer",
            }
            for way, remote in ways.items()
        },
    }


def machine_of(artifact: Artifact) -> dict[str, Any]:
    """Where the run took place."""
    spec = artifact.spec
    machine: dict[str, Any] = {
        "processor": _processor(),
        "num_cores": os.cpu_count(),
        "system": platform.system(),
    }
    if artifact.manifest.backend == "neuron" and spec.neuron is not None:
        neuron = spec.neuron.model_dump(mode="json")
        return {**machine, **{key: neuron.get(key) for key in ("instance", "tp_degree")}}
    import torch

    machine |= {"device": spec.reference.device, "num_threads": torch.get_num_threads()}
    if spec.reference.device == "cuda":
        machine["device_name"] = torch.cuda.get_device_name()
    return machine


def _workload(rows: Sequence[WorkloadRow]) -> dict[str, Any]:
    return {
        "num_prompts": len(rows),
        "sha256": workload_digest(rows),
        "kinds": sorted({row.category for row in rows}),
    }


def precision_of(artifact: Artifact) -> str:
    """The dtype that its backend computes in."""
    on_neuron = artifact.manifest.backend == "neuron"
    if on_neuron:
        return artifact.spec.target.dtype
    reference = artifact.spec.reference
    return reference.dtype + (", int8 weights" if reference.target_weights == "int8" else "")


def weights_of(model: ModelRecord) -> dict[str, str]:
    """Digests of a model's weights by file; of all files where none holds weights."""
    digests = {entry.name: entry.sha256 for entry in model.files}
    weights = {n: d for n, d in digests.items() if Path(n).suffix in (".safetensors", ".bin")}
    return weights or digests


def _model(model: ModelRecord) -> dict[str, Any]:
    return {"source": model.source, "sha256": weights_of(model)}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model n"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
