"""The models that are timed, as sessions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tiny

from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.bench.slices import rows_of
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.checkpoints.prepare import PreparedCheckpoint, prepare
from neuron_spec.engine.session import Session
from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.spec import BuildSpec, load_spec

ROOT = Path(__file__).parents[3]
DRAFT_LENGTH = 4
WAYS = {"plain": "none", "eagle": "eagle", "ngram": "ngram"}
"""Name -> draft method."""


@dataclass(frozen=True)
class Model:
    """The demo target, or a tiny random one in its place; picklable.

    Attributes:
        folder: where prepared drafts and tiny models are written.
    """

    folder: Path
    dtype: str
    is_tiny: bool

    def spec(self, way: str, *, batch_size: int, length: int, prompt: int) -> BuildSpec:
        """Of slots that hold `length` tokens, `prompt` of them at first."""
        loaded = load_spec(self._spec_file(way))
        shape = {
            "max_prompt_tokens": prompt, "max_total_tokens": length, "batch_size": batch_size
        }  # fmt: skip
        changes: dict[str, Any] = {
            "shape": loaded.shape.model_copy(update=shape),
            "reference": loaded.reference.model_copy(update={"dtype": self.dtype}),
        }
        if way != "plain":
            changes["draft"] = loaded.draft.model_copy(update={"num_draft_tokens": DRAFT_LENGTH})
        return loaded.model_copy(update=changes)

    def prepared(self, spec: BuildSpec) -> PreparedCheckpoint:
        """The directories of its target and draft."""
        return prepare(spec, self.folder / f"prepared-{spec.draft.method}")

    def session(self, spec: BuildSpec) -> Session:
        """Loaded."""
        prepared = self.prepared(spec)
        speculator = open_speculator(spec, prepared.target, prepared.draft)
        return Session(speculator, ModelTokenizer(prepared.target))

    @cached_property
    def rows(self) -> list[WorkloadRow]:
        """Real prompts, of all kinds of work."""
        rows = list(rows_of(None, "all", None))
        return rows[:: max(1, len(rows) // 16)]

    def _spec_file(self, way: str) -> Path:
        if not self.is_tiny:
            name = "smollm2-135m" if way == "plain" else f"smollm2-135m-{way}"
            return ROOT / "compile" / f"{name}.cpu.toml"
        path = self.folder / f"{way}.toml"
        if not path.exists():
            tiny.write_target(self.folder / "target", max_position_embeddings=512)
            tiny.write_eagle(self.folder / "eagle", max_position_embeddings=512)
            draft: dict[str, Any] = {"method": WAYS[way]}
            if way != "plain":
                draft["num_draft_tokens"] = DRAFT_LENGTH
            if way == "eagle":
                draft["model"] = "eagle"
            tiny.write_spec(path, target={"model": "target"}, draft=draft)
        return path
