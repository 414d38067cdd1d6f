"""What a step costs on the demo model, and what it is made of.

    python tests/benchmarks/steps.py --dtype bfloat16
    python tests/benchmarks/steps.py --quick --tiny --parts overhead prefill

overhead   a step of the decode loop beyond forward passes and LM heads: plain, EAGLE head, n-grams
batch      a step against how many requests run
context    a step against the length of the sequence
memory     KV caches as predicted, as allocated and as the system sees them
prefill    a prompt against transformers' model with the same threads

Nothing is asserted. Medians; what is compared takes turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/benchmarks")]

from step_costs.memory import cache_memory  # noqa: E402
from step_costs.opening import WAYS, Model  # noqa: E402
from step_costs.tables import tables  # noqa: E402
from step_costs.timing import (  # noqa: E402
    Figures,
    batch_costs,
    context_costs,
    overheads,
    prefill_costs,
)

PARTS = ("overhead", "batch", "context", "memory", "prefill")


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    ends: tuple[int, ...] = (1, 16)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    contexts: tuple[int, ...] = (256, 1024, 4096, 8192)
    prompts: tuple[int, ...] = (128, 512, 2048)
    cached_tokens: int = 2048
    num_steps: int = 50
    num_turns: int = 20
    num_rounds: int = 4
    num_repeats: int = 3


QUICK = Sizes((1, 4), (1, 2), (128, 384), (32, 128), 384, 5, 3, 1, 2)


def measured(model: Model, sizes: Sizes, part: str) -> Figures:
    """One part of the report."""
    measures: dict[str, Callable[[], Figures]] = {
        "overhead": lambda: [
            each for way in WAYS for each in overheads(model, way, sizes.ends, sizes.num_steps)
        ],
        "batch": lambda: batch_costs(model, sizes.batches, sizes.num_turns),
        "context": lambda: context_costs(model, sizes.contexts, sizes.num_rounds),
        "memory": lambda: [cache_memory(model, batch, sizes.cached_tokens) for batch in sizes.ends],
        "prefill": lambda: prefill_costs(model, sizes.prompts, sizes.num_repeats),
    }
    return measures[part]()


def main() -> int:
    """Measure the parts asked for, one after another."""
    options = _options()
    console = Console(stderr=True)
    report: dict[str, Any] = {
        "model": "tiny" if options.tiny else "smollm2-135m",
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
    }
    with tempfile.TemporaryDirectory() as folder:
        model = Model(Path(folder), options.dtype, options.tiny)
        for part in options.parts:
            console.print(f"{part} …")
            report[part] = measured(model, QUICK if options.quick else Sizes(), part)
    out = Console()
    out.print(f"{report['model']}, {report['dtype']}, {report['threads']} threads")
    for table in tables(report):
        out.print(table)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures for machines")
    parser.add_argument("--quick", action="store_true", help="few sizes and few repeats")
    parser.add_argument("--tiny", action="store_true", help="a random model of 30,000 parameters")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
