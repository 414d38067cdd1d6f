"""`neuron-spec prepare` against `cp` of the same bytes, and against loading and saving everything.

The checkpoint is generated: an EAGLE v1 head of a 70B model's width in shards, and a target of one
layer in shards. Every candidate runs as a process of its own with its inputs in the page cache, in
an order that changes from round to round. Ends with 1 and says which bound is broken, if one is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

# This process stays small (rich comes at the end): the system counts the parent's memory as the
# child's peak.

MAX_RATIO = 1.3  # of the time that cp and a flush take
MAX_RSS_MB = 400
HIDDEN, INTERMEDIATE, SMALL_INTERMEDIATE = 8192, 28672, 1024
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
ITEM_BYTES = {"BF16": 2, "F32": 4}
TORCH_DTYPES = {"BF16": "bfloat16", "F32": "float32"}
BLOCK_BYTES = 4 << 20
PREPARE, CAST, COPY = "neuron-spec prepare", "prepare with a cast", "cp, then fsync"
PLAIN_COPY, LOAD_AND_SAVE = "cp alone", "load_file, save_file, fsync"
SAVE = """
import os, sys
from safetensors.torch import load_file, save_file
output, *sources = sys.argv[1:]
tensors = {}
for source in sources:
    for name, tensor in load_file(source).items():
        tensors[name.removeprefix("model.")] = tensor
save_file(tensors, output)
with open(output, "rb") as file:
    os.fsync(file.fileno())
"""
SPEC = """
[target]
model = "target"
dtype = "{dtype}"
[draft]
method = "eagle"
model = "{draft}"
num_draft_tokens = 4
[shape]
max_prompt_tokens = 64
max_total_tokens = 128
batch_size = 1
"""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Candidate:
    """One way to make the output: a command, and the files that it reads."""

    name: str
    command: Sequence[str]
    inputs: Sequence[Path]


@dataclass(frozen=True)
class Measurement:
    """One run of a candidate."""

    seconds: float
    cpu_seconds: float
    rss_mb: float
    num_bytes: int


# The checkpoints


def layer_shapes(prefix: str, intermediate: int) -> dict[str, tuple[int, ...]]:
    """The matrices of one Llama layer."""
    key_value = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "self_attn.k_proj.weight": (key_value, HIDDEN),
        "self_attn.v_proj.weight": (key_value, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "mlp.gate_proj.weight": (intermediate, HIDDEN),
        "mlp.up_proj.weight": (intermediate, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, intermediate),
        "post_attention_layernorm.weight": (HIDDEN,),
    }
    return {prefix + name: shape for name, shape in shapes.items()}


def draft_shards(intermediate: int) -> list[Shapes]:
    """An EAGLE v1 head without LM head and embedding, in two files of about one size."""
    layer = layer_shapes("layers.0.", intermediate)
    first = {name: shape for name, shape in layer.items() if "gate" in name or "up_proj" in name}
    rest = {name: shape for name, shape in layer.items() if name not in first}
    return [{"fc.weight": (HIDDEN, 2 * HIDDEN), **rest}, first]


def target_shards(vocab_size: int) -> list[Shapes]:
    """Embedding and LM head in files of their own, so that `cp` can copy just them."""
    prefix = "model.layers.0."
    layer = layer_shapes(prefix, SMALL_INTERMEDIATE)
    norms = {f"{prefix}input_layernorm.weight": (HIDDEN,), "model.norm.weight": (HIDDEN,)}
    return [
        {"model.embed_tokens.weight": (vocab_size, HIDDEN)},
        {**layer, **norms},
        {"lm_head.weight": (vocab_size, HIDDEN)},
    ]


def write_checkpoint(
    directory: Path, shards: Sequence[Shapes], dtype: str, **config: Any
) -> list[Path]:
    """A sharded checkpoint of random bytes; returns its shards."""
    directory.mkdir()
    fields = {**CONFIG, "torch_dtype": TORCH_DTYPES[dtype], **config}
    (directory / "config.json").write_text(json.dumps(fields))
    paths, places = [], {}
    for number, shapes in enumerate(shards, start=1):
        path = directory / f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_shard(path, shapes, dtype)
        paths.append(path)
        places.update(dict.fromkeys(shapes, path.name))
    index = json.dumps({"weight_map": places})
    (directory / "model.safetensors.index.json").write_text(index)
    return paths


def write_shard(path: Path, shapes: Shapes, dtype: str) -> None:
    """A safetensors file; one random block repeated, which no file system stores as holes."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    block = os.urandom(BLOCK_BYTES)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, end, BLOCK_BYTES):
            file.write(memoryview(block)[: end - begin])


def generate(directory: Path, num_bytes: int) -> list[Candidate]:
    """Write the checkpoints such that the prepared draft has `num_bytes`; how to make it."""
    own = sum(math.prod(s) for shapes in draft_shards(INTERMEDIATE) for s in shapes.values())
    vocab = (num_bytes // ITEM_BYTES["BF16"] - own) // (2 * HIDDEN)
    if vocab < 1000:
        raise SystemExit(f"the head alone has {own * 2:,} bytes: ask for more --gigabytes")
    sizes = {"vocab_size": vocab, "tie_word_embeddings": False}
    target = write_checkpoint(
        directory / "target", target_shards(vocab), "BF16",
        intermediate_size=SMALL_INTERMEDIATE, **sizes,
    )  # fmt: skip
    drafts = {}
    for dtype, intermediate in (("BF16", INTERMEDIATE), ("F32", SMALL_INTERMEDIATE)):
        name, shards = f"draft-{dtype}", draft_shards(intermediate)
        paths = write_checkpoint(
            directory / name, shards, dtype, intermediate_size=intermediate, **sizes
        )
        (directory / f"{name}.toml").write_text(SPEC.format(draft=name, dtype=TORCH_DTYPES[dtype]))
        drafts[dtype] = paths
    return list(candidates(directory, [target[0], target[2]], drafts))


def candidates(
    directory: Path, heads: list[Path], drafts: Mapping[str, list[Path]]
) -> Iterator[Candidate]:
    """Everything that is measured; `heads` are the target's files whose content is copied."""
    output = str(directory / "out")
    copied = [*drafts["BF16"], *heads]
    files = [str(path) for path in copied]
    copy = 'out=$1; shift; mkdir "$out" && cp "$@" "$out"'
    flush = f'{copy} && sync "$out"/* "$out"'  # `sync FILE` is fsync
    save = 'out=$1/model.safetensors; mkdir "$1"; shift; exec "$python" -c "$code" "$out" "$@"'
    program = str(Path(sys.executable).with_name("neuron-spec"))
    prepare = [program, "prepare", "--output", output]
    yield Candidate(PREPARE, [*prepare, str(directory / "draft-BF16.toml")], copied)
    yield Candidate(COPY, ["sh", "-c", flush, "sh", output, *files], copied)
    yield Candidate(PLAIN_COPY, ["sh", "-c", copy, "sh", output, *files], copied)
    yield Candidate(LOAD_AND_SAVE, ["sh", "-c", save, "sh", output, *files], copied)
    yield Candidate(CAST, [*prepare, str(directory / "draft-F32.toml")], [*drafts["F32"], *heads])


# Measuring


def measure(candidate: Candidate, output: Path) -> Measurement:
    """Run it once, its inputs warm and nothing of other runs waiting to be written."""
    for path in candidate.inputs:
        read_through(path)
    os.sync()
    environment = {**os.environ, "python": sys.executable, "code": SAVE}
    begin = time.perf_counter()
    process = subprocess.Popen(candidate.command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{candidate.name} ended with {process.returncode}")
    num_bytes = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    shutil.rmtree(output)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Measurement(seconds, cpu_seconds, usage.ru_maxrss * 1024 / 1e6, num_bytes)


def read_through(path: Path) -> None:
    """Bring a file into the page cache."""
    with path.open("rb", buffering=0) as file:
        block = bytearray(BLOCK_BYTES)
        while file.readinto(block):
            pass


def run_rounds(
    all_candidates: Sequence[Candidate], output: Path, num_rounds: int
) -> dict[str, list[Measurement]]:
    """Measurements of every candidate, one a round, each round beginning with another."""
    found: dict[str, list[Measurement]] = {item.name: [] for item in all_candidates}
    for number in range(num_rounds):
        first = number % len(all_candidates)
        for candidate in (*all_candidates[first:], *all_candidates[:first]):
            say(f"round {number + 1} of {num_rounds}: {candidate.name}")
            found[candidate.name].append(measure(candidate, output))
    return found


# Reporting


def say(line: str) -> None:
    """Progress, apart from the result."""
    sys.stderr.write(f"{line}\n")


def summarise(found: Mapping[str, list[Measurement]]) -> list[dict[str, Any]]:
    """One row a candidate. The ratio is the median over the rounds, so that a load that comes and
    goes meets both sides of it."""
    rows = []
    for name, runs in found.items():
        ratios = [run.seconds / copy.seconds for run, copy in zip(runs, found[COPY], strict=True)]
        rows.append(
            {
                "name": name,
                "num_bytes": runs[0].num_bytes,
                "seconds": [round(run.seconds, 2) for run in runs],
                "median_seconds": round(statistics.median(run.seconds for run in runs), 2),
                "cpu_seconds": round(statistics.median(run.cpu_seconds for run in runs), 2),
                "ratio_to_cp": round(statistics.median(ratios), 2),
                "peak_rss_mb": round(max(run.rss_mb for run in runs), 1),
            }
        )
    return rows


def broken_bounds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences on what is over its bound."""
    broken = [
        f"{row['name']}: peak RSS {row['peak_rss_mb']} MB, bound {MAX_RSS_MB} MB"
        for row in rows
        if row["name"] in (PREPARE, CAST) and row["peak_rss_mb"] >= MAX_RSS_MB
    ]
    return broken + [
        f"{PREPARE}: {row['ratio_to_cp']} x the time of '{COPY}', bound {MAX_RATIO} x"
        for row in rows
        if row["name"] == PREPARE and row["ratio_to_cp"] > MAX_RATIO
    ]


def table_of(rows: Sequence[Mapping[str, Any]], num_rounds: int) -> Table:
    """What a person reads."""
    from rich.table import Table

    table = Table(title=f"medians of {num_rounds} round(s), inputs in the page cache", box=None)
    for heading in ("", "time s", "x cp+fsync", "CPU s", "RSS MB", "GB"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"], f"{row['median_seconds']:.2f}", f"{row['ratio_to_cp']:.2f}",
            f"{row['cpu_seconds']:.2f}", f"{row['peak_rss_mb']:,.0f}",
            f"{row['num_bytes'] / 1e9:.2f}",
        )  # fmt: skip
    return table


def main() -> None:
    """Generate, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.5, help="size of the prepared draft")
    parser.add_argument("--rounds", type=int, default=3)
    where = "for the files, removed at the end; about 4 times the size  [default: the system's]"
    parser.add_argument("--directory", type=Path, help=where)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        say("writing the checkpoints")
        all_candidates = generate(Path(folder), int(arguments.gigabytes * 1e9))
        found = run_rounds(all_candidates, Path(folder) / "out", arguments.rounds)
    rows = summarise(found)
    broken = broken_bounds(rows)
    from rich.console import Console

    if arguments.json:
        Console().print_json(data={"candidates": rows, "broken_bounds": broken})
    else:
        Console().print(table_of(rows, arguments.rounds))
    for sentence in broken:
        say(f"bound broken: {sentence}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
