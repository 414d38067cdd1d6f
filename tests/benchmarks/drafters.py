"""Acceptance of every drafter of the demo target, by kind of work, on rows none was trained on.

    python tests/benchmarks/drafters.py --rows-per-category 2

Every spec of the demo target in compile/ is prepared and run; a draft length of its own. The output
of all is the same greedy text, which is checked against plain decoding.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.bench.workload import WorkloadRow, read_workload
from neuron_spec.checkpoints.prepare import prepare
from neuron_spec.engine.session import Session
from neuron_spec.engine.tokenizer import ModelTokenizer
from neuron_spec.metrics import AcceptanceCounts
from neuron_spec.spec import load_spec

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "checkpoints/smollm2-135m-instruct-eagle/evaluation-prompts.jsonl"
PLAIN = ROOT / "compile/smollm2-135m.cpu.toml"

Counts = dict[str, AcceptanceCounts]
"""Kind of work -> counts."""


def main() -> int:
    """Run all drafters; 1 if any output differs from plain decoding."""
    options = _options()
    rows = list(_some_rows(options.rows_per_category))
    expected = _texts(_session(PLAIN), rows, options.max_new_tokens, {})
    results: dict[str, Counts] = {}
    num_different = 0
    for path in sorted((ROOT / "compile").glob("smollm2-135m-*.cpu.toml")):
        counts: Counts = defaultdict(AcceptanceCounts)
        texts = _texts(_session(path), rows, options.max_new_tokens, counts, path.stem)
        num_different += sum(a != b for a, b in zip(texts, expected, strict=True))
        results[path.stem.removeprefix("smollm2-135m-").removesuffix(".cpu")] = counts
    _print(results, len(rows), options)
    if num_different:
        Console(stderr=True).print(f"{num_different} outputs differ from plain decoding")
    return int(num_different > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows-per-category", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _some_rows(per_category: int) -> Iterator[WorkloadRow]:
    taken: dict[str, int] = defaultdict(int)
    for row in read_workload(ROWS):
        taken[row.category] += 1
        if taken[row.category] <= per_category:
            yield row


def _session(path: Path) -> Session:
    spec = load_spec(path)
    prepared = prepare(spec, ROOT / "build" / path.stem / "draft")
    speculator = open_speculator(spec, prepared.target, prepared.draft)
    return Session(speculator, ModelTokenizer(prepared.target))


def _texts(
    session: Session, rows: list[WorkloadRow], limit: int, counts: Counts, label: str = "plain"
) -> list[tuple[int, ...]]:
    outputs = []
    for row in track(rows, label, console=Console(stderr=True), transient=True):
        generation = session.generate(row.prompt, max_new_tokens=limit)
        outputs.append(generation.token_ids)
        if label != "plain":
            counts[row.category].add(generation.acceptance)
            counts["all"].add(generation.acceptance)
    return outputs


def _print(results: dict[str, Counts], num_rows: int, options: argparse.Namespace) -> None:
    if options.json:
        plain: dict[str, Any] = {
            name: {kind: counts.as_dict() for kind, counts in kinds.items()}
            for name, kinds in results.items()
        }
        Console().print_json(json.dumps({"num_rows": num_rows, "drafters": plain}))
        return
    kinds = sorted({kind for counts in results.values() for kind in counts} - {"all"})
    table = Table(
        title=f"acceptance length (tokens a step), {num_rows} rows, greedy, at most "
        f"{options.max_new_tokens} tokens"
    )
    table.add_column("kind of work")
    for name in results:
        table.add_column(name, justify="right")
    for kind in (*kinds, "all"):
        lengths = [counts[kind].length for counts in results.values()]
        table.add_row(kind, *(f"{length:.2f}" if length else "-" for length in lengths))
    rates = [counts["all"].rate for counts in results.values()]
    table.add_row("acceptance rate", *(f"{rate:.2f}" if rate else "-" for rate in rates))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
