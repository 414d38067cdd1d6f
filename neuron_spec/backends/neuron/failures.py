"""What is told of a build for Neuron that fails: which graph, the compiler's words, what to change.

Codes: AWS Neuron documentation, compiler/error-codes; F134 and F137 are neuronx-cc's own.
"""

from __future__ import annotations

import re
from pathlib import Path

from neuron_spec.backends.neuron.config import NxdiConfig
from neuron_spec.backends.neuron.graph_list import planned_graphs
from neuron_spec.backends.neuron.output import last_lines

COMPILER_LOG = "log-neuron-cc.txt"  # NxD `trace/model_builder.py`, beside each graph
GRAPH = "graph.neff"
GRAPH_FOLDERS = "*/_tp0_bk*"
_NUM_LINES = 12

_TOLD = (
    "tp_degree",
    "logical_nc_config",
    "torch_dtype",
    "batch_size",
    "seq_len",
    "context_encoding_buckets",
    "token_generation_buckets",
    "speculation_length",
)

_LESS_MEMORY = (
    "raise neuron.tp_degree, or lower shape.batch_size, shape.max_total_tokens or the longest of "
    "neuron.token_generation_buckets"
)
_FEWER_INSTRUCTIONS = (
    "raise neuron.tp_degree, or lower shape.max_prompt_tokens or the longest of "
    "neuron.context_encoding_buckets"
)
_MENDS = (
    (
        r"F137|forcibly killed",
        "the host ran out of memory: compile on a machine with more of it, or make fewer and "
        "shorter graphs (shape, neuron.context_encoding_buckets, neuron.token_generation_buckets)",
    ),
    (r"NCC_EOOM\d+|NCC_EVRF009|NCC_EXSP001", f"the graph does not fit on a core: {_LESS_MEMORY}"),
    (
        r"NCC_EVRF007|NCC_EBVF030|NCC_EXTP004",
        f"the graph has too many instructions: {_FEWER_INSTRUCTIONS}",
    ),
    (
        r"NCC_EVRF056|NCC_EVRF031",
        "a table is shorter than the compiled length: keep shape.max_total_tokens within the "
        "target's and the draft's max_position_embeddings",
    ),
    (r"NCC_EARG001", "set neuron.logical_nc_config to one that the instance has"),
)
_ANY_MEND = (
    "leave kernels out of [neuron.config], choose other buckets or a higher neuron.tp_degree, or "
    "compile with another SDK release"
)
_DISK_FULL = r"No space left on device|PytorchStreamWriter failed writing"


def disk_is_full(words: str) -> bool:
    """Whether a failure's words say so; many libraries do not raise OSError for it."""
    return re.search(_DISK_FULL, words) is not None


def failed_graph(work: Path) -> Path | None:
    """Folder of the graph whose compiler wrote last and came to no end, or None."""
    logs = [
        folder / COMPILER_LOG
        for folder in work.glob(GRAPH_FOLDERS)
        if (folder / COMPILER_LOG).is_file() and not (folder / GRAPH).is_file()
    ]
    # Several compile at once: the others were cut off in the middle, and say nothing of errors.
    failed = [log for log in logs if _says_error(log)] or logs
    return max(failed, key=lambda log: log.stat().st_mtime_ns).parent if failed else None


def keep_compiler_logs(work: Path, log: Path) -> None:
    """Append the logs of graphs that are not finished: the work directory goes."""
    with log.open("a", encoding="utf-8") as file:
        for path in sorted(work.glob(f"{GRAPH_FOLDERS}/{COMPILER_LOG}")):
            if not (path.parent / GRAPH).is_file():
                file.write(f"\n==> {path.relative_to(work)}\n")
                file.write(path.read_text(encoding="utf-8", errors="replace"))


def failure_text(
    error: BaseException, config: NxdiConfig, *, work: Path, log: Path, cache: str
) -> str:
    """The message of a build that failed.

    Args:
        work: NxD's work directory of the application that was compiled.
        log: of the whole build.
        cache: of compiled graphs.
    """
    folder = failed_graph(work)
    words = last_lines(folder / COMPILER_LOG if folder else log, _NUM_LINES)
    summary = str(error).strip().splitlines() or [type(error).__name__]
    lines = [f"compiling for Neuron failed: {summary[0]}"]
    if folder is not None:
        lines.append(f"  graph: {_name(folder, config)}")
    lines += ["  last lines of its log:", *(f"    {line}" for line in words)] if words else []
    lines.append(f"  settings: {_settings(config)}")
    lines.append(f"  mend: {_mend(' '.join([str(error), *words]))}")
    lines.append(f"  the cache keeps failures too: to try the same again, remove {cache} first")
    return "\n".join([*lines, f"  log: {log}"])


def _says_error(log: Path) -> bool:
    return re.search(r"ERROR|\[F\d+\]|NCC_E", " ".join(last_lines(log, 200))) is not None


def _name(folder: Path, config: NxdiConfig) -> str:
    """As `target context_encoding_model, 256 tokens`."""
    role, tag = folder.parents[1].name, folder.parent.name
    number = int(folder.name.rpartition("bk")[2])
    buckets = planned_graphs(config).get(f"{role} {tag}", ())
    return f"{role} {tag}, " + (
        f"bucket {buckets[number]}" if number < len(buckets) else f"number {number}"
    )


def _settings(config: NxdiConfig) -> str:
    settings = config.neuron_arguments
    return ", ".join(f"{name} {settings[name]}" for name in _TOLD if name in settings)


def _mend(words: str) -> str:
    return next((mend for pattern, mend in _MENDS if re.search(pattern, words)), _ANY_MEND)
