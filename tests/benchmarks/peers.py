"""Our reference backend against what people would use instead, on the demo model, in one run.

    python tests/benchmarks/peers.py --dtype bfloat16 --llama-python PATH --json run.json

Every configuration has a process of its own, blocked while others work. They take turns, prompt by
prompt, repetition by repetition, in another order each turn. All get the same token ids and make as
many tokens; an end of text does not stop them. Needs about 1 GB of memory a configuration. What is
not installed is listed, not measured; peer_engines/requirements-*.txt tell how to install it. Ends
with 1 if one of ours failed, or, in float32, if an output of ours depends on speculation.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from peer_engines.engines import LLAMA, PLAIN, VLLM, Engine, all_engines, chosen
from peer_engines.figures import Spread
from peer_engines.process import EngineFailedError, Worker
from peer_engines.prompts import prompts
from peer_engines.report import is_ours_wrong, report_of
from peer_engines.rounds import opened, take_turns
from peer_engines.tables import remarks, tables, title
from rich.console import Console
from safetensors import safe_open

from neuron_spec.bench.record import _processor
from neuron_spec.checkpoints import demo_target
from neuron_spec.engine.tokenizer import ModelTokenizer

ROOT = Path(__file__).parents[2]
ASSISTANT = ROOT / "checkpoints/smollm2-135m-instruct-draft"
BUILD = ROOT / "build" / "peers"
"""llama.cpp's weights, and what every engine said."""
MEMORY = Engine("memory", "bandwidth", {"num_bytes": 1 << 30})
BYTES = {"float32": 4, "bfloat16": 2}


def main() -> int:
    """Measure and print; see above."""
    options = _options()
    try:
        report = _measured(options)
    except EngineFailedError as error:
        _say(f"error: {PLAIN}, which all are compared with: {error}")
        return 2
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 180)
    console.print(title(report), soft_wrap=True, markup=False)
    for table in tables(report):
        console.print(table)
    for remark in remarks(report):
        console.print(remark, soft_wrap=True, markup=False)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(is_ours_wrong(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", choices=tuple(BYTES), default="float32")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--engines", default="*", help='such as "ours *,llama.cpp *"')
    parser.add_argument("--llama-python", default=sys.executable, metavar="PATH")
    parser.add_argument("--vllm-python", default=sys.executable, metavar="PATH")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    target = demo_target.ensure(f"{demo_target.SCHEME}{demo_target.NAME}")
    tokenizer = ModelTokenizer(target)
    ids = {name: list(tokenizer.encode(row.prompt)) for name, row in prompts().items()}
    engines = chosen(all_engines(ROOT / "compile", ROOT / "build", ASSISTANT), options.engines)
    start = partial(_started, options, target)
    bandwidths: list[float] = []
    with closing(start(MEMORY)) as memory, opened(engines, start) as loaded:
        begun = time.monotonic()

        def measure_memory() -> None:
            _say(f"repetition {len(bandwidths) + 1} of {options.repetitions}")
            bandwidths.append(memory.ask([], 0)["bytes_per_s"])

        results, absent = take_turns(
            loaded,
            list(ids.values()),
            num_tokens=options.max_new_tokens,
            repetitions=options.repetitions,
            before_each=measure_memory,
        )
        seconds = time.monotonic() - begun
    record = {**_record(options, ids), "seconds": seconds}
    return report_of(record, results, absent, _bounds(target, options.dtype, bandwidths))


def _started(options: argparse.Namespace, target: Path, engine: Engine) -> Worker:
    _say(f"loading {engine.name}")
    pythons = {LLAMA: options.llama_python, VLLM: options.vllm_python}
    settings = {
        "dtype": options.dtype,
        "threads": options.threads,
        "target": str(target),
        "gguf": str(demo_target._find_gguf()),
        "gguf_folder": str(BUILD),
        **engine.settings,
    }
    BUILD.mkdir(parents=True, exist_ok=True)
    log = BUILD / f"{engine.name.replace(' ', '-')}.log"
    return Worker(pythons.get(engine.family, sys.executable), engine.family, settings, log)


def _record(options: argparse.Namespace, ids: dict[str, list[int]]) -> dict[str, Any]:
    return {
        "model": demo_target.NAME,
        "dtype": options.dtype,
        "threads": options.threads,
        "max_new_tokens": options.max_new_tokens,
        "repetitions": options.repetitions,
        "prompts": list(ids),
        "num_prompt_tokens": list(map(len, ids.values())),
        "processor": _processor(),
        "num_cores": os.cpu_count(),
    }


def _bounds(target: Path, dtype: str, bandwidths: list[float]) -> dict[str, Any]:
    """What reading every weight once a token allows; the embedding is the head's matrix too."""
    with safe_open(str(target / "model.safetensors"), framework="pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    weight_bytes = BYTES[dtype] * sum(map(math.prod, shapes))
    bytes_per_s = Spread.of(bandwidths)
    return {
        "weight_bytes": weight_bytes,
        "bytes_per_s": bytes_per_s.as_dict(),
        "tokens_per_s": bytes_per_s.median / weight_bytes,
    }


def _say(text: str) -> None:
    Console(stderr=True, highlight=False).print(text)


if __name__ == "__main__":
    sys.exit(main())
