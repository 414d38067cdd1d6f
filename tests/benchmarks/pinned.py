"""What `verification.pin_shapes` costs on the demo target, and what it buys.

    python tests/benchmarks/pinned.py --dtype bfloat16 --repeats 3

Four ways take turns on every prompt: plain and speculative decoding, as they are and with pinned
shapes. Ratios are of tokens a second within one turn, so that what else the machine does touches
both sides; their median is told, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from neuron_spec.backends.base import Speculator
from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.bench.workload import read_workload
from neuron_spec.checkpoints.prepare import prepare
from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.spec import BuildSpec, load_spec

ROOT = Path(__file__).parents[2]
PROMPTS = ROOT / "checkpoints/smollm2-135m-instruct-eagle/evaluation-prompts.jsonl"

Way = tuple[bool, bool]
"""(whether shapes are pinned, whether it speculates)"""
WAYS: tuple[Way, ...] = ((False, False), (True, False), (False, True), (True, True))


def main() -> int:
    """Run all turns; 1 if an output with pinned shapes depends on speculation."""
    options = _options()
    spec = load_spec(options.spec)
    prepared = prepare(spec, ROOT / "build" / Path(options.spec).stem / "draft")
    speculators = {
        pinned: open_speculator(
            _changed(spec, options.dtype, pinned=pinned), prepared.target, prepared.draft
        )
        for pinned in (False, True)
    }
    tokenizer = ModelTokenizer(prepared.target)
    rows = read_workload(PROMPTS)
    step = max(1, len(rows) // options.prompts)
    prompts = [tokenizer.encode(row.prompt) for row in rows[::step][: options.prompts]]
    turns = [
        _turn(speculators, prompt, options.max_new_tokens)
        for _ in track(range(options.repeats), "turns", console=Console(stderr=True))
        for prompt in prompts
    ]
    results = _results(turns, len(prompts))
    _print(results, options)
    return int(results["prompts_that_differ_pinned"] > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spec", default=str(ROOT / "compile/smollm2-135m-eagle.cpu.toml"))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _changed(spec: BuildSpec, dtype: str, *, pinned: bool) -> BuildSpec:
    verification = spec.verification.model_copy(update={"pin_shapes": pinned})
    reference = spec.reference.model_copy(update={"dtype": dtype})
    return spec.model_copy(update={"verification": verification, "reference": reference})


def _turn(
    speculators: dict[bool, Speculator], prompt: tuple[int, ...], limit: int
) -> dict[Way, tuple[tuple[int, ...], float]]:
    """Every way once: its tokens, and how many it made a second after the prompt."""
    return {
        (pinned, drafts): _decode(speculators[pinned], prompt, limit, drafts)
        for pinned, drafts in WAYS
    }


def _decode(
    speculator: Speculator, prompt: tuple[int, ...], limit: int, drafts: bool
) -> tuple[tuple[int, ...], float]:
    tokens = [speculator.prefill(0, prompt).token]
    begun = time.perf_counter()
    while len(tokens) <= limit:
        tokens += speculator.step(speculator.limits.num_draft_tokens * drafts)[0].tokens
    seconds = time.perf_counter() - begun
    speculator.release(0)
    return tuple(tokens[:limit]), (len(tokens) - 1) / seconds


def _results(turns: list[dict[Way, tuple[tuple[int, ...], float]]], count: int) -> dict[str, Any]:
    def differ(pinned: bool) -> int:
        return sum(turn[pinned, False][0] != turn[pinned, True][0] for turn in turns[:count])

    def compared(name: str, one: Way, other: Way) -> dict[str, Any]:
        ratios = [turn[one][1] / turn[other][1] for turn in turns]
        rates = [statistics.median(turn[way][1] for turn in turns) for way in (one, other)]
        return {
            "name": name,
            "tokens_per_s": rates,
            "ratio": statistics.median(ratios),
            "range": (min(ratios), max(ratios)),
        }

    return {
        "ratios": [
            compared("plain, pinned / not", (True, False), (False, False)),
            compared("speculative, pinned / not", (True, True), (False, True)),
            compared("pinned, speculative / plain", (True, True), (True, False)),
            compared("not pinned, speculative / plain", (False, True), (False, False)),
        ],
        "prompts": count,
        "prompts_that_differ_pinned": differ(True),
        "prompts_that_differ_not_pinned": differ(False),
    }


def _print(results: dict[str, Any], options: argparse.Namespace) -> None:
    console = Console()
    if options.json:
        console.print_json(json.dumps(results))
        return
    table = Table(
        title=f"pinned shapes, {Path(options.spec).stem}, {options.dtype}, "
        f"{torch.get_num_threads()} threads, {options.prompts} prompts x {options.repeats}, "
        f"{options.max_new_tokens} tokens"
    )
    for column in ("tokens a second", "ratio", "from … to", "rates"):
        table.add_column(column, justify="left" if column == "tokens a second" else "right")
    for row in results["ratios"]:
        low, high = row["range"]
        rates = " / ".join(f"{rate:.1f}" for rate in row["tokens_per_s"])
        table.add_row(row["name"], f"{row['ratio']:.2f}", f"{low:.2f} … {high:.2f}", rates)
    console.print(table)
    for name, key in (("pinned", "pinned"), ("not pinned", "not_pinned")):
        different = results[f"prompts_that_differ_{key}"]
        console.print(
            f"{name}: {different} of {results['prompts']} outputs differ between speculation on "
            "and off"
        )


if __name__ == "__main__":
    sys.exit(main())
