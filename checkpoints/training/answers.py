"""Lets the target answer the prompts and records its features at every position.

Decoding is batched with continuous refill: a row that ends is given the next prompt. A prompt
marked `open` is first completed by the target (it writes the rest of the user turn), then
answered in the same row. Shards of finished sequences go to <work>/answers.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import threading
import time
from argparse import ArgumentParser
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from common import (
    ANSWER_OPENING,
    Sequence,
    TargetConfig,
    add_target,
    chat_tokens,
    evaluation_split,
    load_target_tensors,
    load_tokenizer,
    need,
    ngrams,
    open_tokens,
    read_config,
    read_jsonl,
    rope_tables,
    save_shard,
)
from target import fuse_layer, normed
from transformers import PreTrainedTokenizerBase

KERNEL_FLAGS = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-std=c++17", "-fPIC"]
REFILL_ROWS = 6  # prompts are processed together once this many rows are free
MIN_P = 0.02


def build_kernels(folder: Path) -> ctypes.CDLL:
    """Compiles decode_kernels.cpp for this CPU and loads it."""
    source = Path(__file__).with_name("decode_kernels.cpp")
    folder.mkdir(parents=True, exist_ok=True)
    compiled, library = folder / "decode_kernels.o", folder / "decode_kernels.so"
    subprocess.run(["g++", *KERNEL_FLAGS, "-c", str(source), "-o", str(compiled)], check=True)
    # No -fopenmp here: the symbols come from the OpenMP runtime that torch has loaded.
    subprocess.run(["g++", "-shared", "-o", str(library), str(compiled)], check=True)
    return ctypes.CDLL(str(library.resolve()))


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    """The address of a contiguous tensor's data."""
    return ctypes.c_void_p(tensor.data_ptr())


class BatchTarget:
    """The target with a key/value cache of `rows` slots; bfloat16 products, float32 residual."""

    def __init__(self, directory: Path, rows: int, capacity: int, kernels: ctypes.CDLL) -> None:
        self.config: TargetConfig = read_config(directory)
        if self.config.head_dim != 64:
            raise SystemExit("the decoding kernels are written for a head dimension of 64")
        state = load_target_tensors(directory)
        self.kernels, self.capacity = kernels, capacity
        self.layers = [fuse_layer(state, i) for i in range(self.config.layers)]
        self.norm = state["norm.weight"]
        self.embedding = state["embed_tokens.weight"].bfloat16()
        self.lm_head = state.get("lm_head.weight", state["embed_tokens.weight"]).bfloat16()
        self.cos, self.sin = rope_tables(capacity, 64, self.config.rope_theta)
        shape = (rows, self.config.kv_heads, capacity, 64)
        # zeros: unwritten values meet a weight of zero, so they only have to be finite
        self.keys = [torch.zeros(shape, dtype=torch.bfloat16) for _ in self.layers]
        self.values = [torch.zeros(shape, dtype=torch.bfloat16) for _ in self.layers]

    def prefill(self, prompts: list[list[int]], slots: list[int]) -> list[torch.Tensor]:
        """Processes prompts packed into one batch; features bfloat16 [length, hidden] of each."""
        lengths = [len(p) for p in prompts]
        x = self.embedding[torch.tensor([t for p in prompts for t in p])].float()
        for index, layer in enumerate(self.layers):
            x, cached = layer.packed(x, lengths, self.config, (self.cos, self.sin))
            for slot, (keys, values) in zip(slots, cached, strict=True):
                self.kernels.write_prompt(
                    pointer(keys),
                    pointer(values),
                    ctypes.c_int64(len(keys)),
                    ctypes.c_int64(slot),
                    ctypes.c_int64(self.config.kv_heads),
                    ctypes.c_int64(self.capacity),
                    pointer(self.keys[index]),
                    pointer(self.values[index]),
                )
        return list(normed(x, self.norm, self.config.eps).bfloat16().split(lengths))

    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """One token of every row: tokens, positions int64 [rows] to features bfloat16 [rows, H]."""
        c = self.config
        sizes = [ctypes.c_int64(n) for n in (len(tokens), c.heads, c.kv_heads, self.capacity)]
        attended = torch.empty(len(tokens), c.heads * 64, dtype=torch.bfloat16)
        x = self.embedding[tokens].float()
        for index, layer in enumerate(self.layers):
            qkv = layer.queries_keys_values(x, c.eps)
            self.kernels.decode_attention(
                pointer(qkv),
                pointer(self.cos),
                pointer(self.sin),
                pointer(positions),
                pointer(self.keys[index]),
                pointer(self.values[index]),
                *sizes,
                pointer(attended),
            )
            x = layer.mlp(x + F.linear(attended, layer.out), c.eps)
        return normed(x, self.norm, c.eps).bfloat16()

    def sample(self, features: torch.Tensor, inv_temperature: torch.Tensor) -> torch.Tensor:
        """Next tokens int64 [rows]; greedy where inv_temperature (float32 [rows]) is 0."""
        logits = F.linear(features, self.lm_head)
        out = torch.empty(len(logits), dtype=torch.int64)
        self.kernels.sample(
            pointer(logits),
            pointer(inv_temperature),
            pointer(torch.rand(len(logits))),
            ctypes.c_float(MIN_P),
            ctypes.c_int64(logits.shape[0]),
            ctypes.c_int64(logits.shape[1]),
            pointer(out),
        )
        return out


class PromptFilter:
    """Refuses user turns seen before, too short, or close to an evaluation prompt."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, evaluation: list[str]) -> None:
        self.tokenizer = tokenizer
        self.evaluation_grams: set[int] = set()
        self.evaluation_texts = {" ".join(text.lower().split()) for text in evaluation}
        for text in evaluation:
            self.evaluation_grams |= ngrams(tokenizer(text, add_special_tokens=False).input_ids)
        self.seen: set[str] = set()
        self.refused = 0

    def accepts(self, tokens: list[int]) -> bool:
        """Judges one user turn written by the target."""
        text = " ".join(self.tokenizer.decode(tokens).lower().split())
        # Tokenized again from its first word: the same text can be split differently in a turn.
        fresh = self.tokenizer(self.tokenizer.decode(tokens), add_special_tokens=False).input_ids
        bad = (
            len(tokens) < 3
            or text in self.seen
            or text in self.evaluation_texts
            or not self.evaluation_grams.isdisjoint(ngrams(fresh))
        )
        self.refused += bad
        self.seen.add(text)
        return not bad


@dataclass
class Row:
    """One slot of the batch: the prompt it works on and what it is doing."""

    prompt: dict
    user_start: int
    answer_start: int
    writing_user: bool
    forced: deque[int] = field(default_factory=deque)


class Generator:
    """Runs prompts through the batch and collects finished sequences."""

    def __init__(
        self,
        target: BatchTarget,
        tokenizer: PreTrainedTokenizerBase,
        prompts: list[dict],
        guard: PromptFilter,
        rows: int,
    ) -> None:
        self.target, self.tokenizer, self.guard = target, tokenizer, guard
        self.waiting = deque(prompts)
        self.opening = tokenizer(ANSWER_OPENING, add_special_tokens=False).input_ids
        self.template = len(open_tokens(tokenizer, ""))
        self.rows: list[Row | None] = [None] * rows
        capacity, hidden = target.capacity, target.config.hidden
        self.tokens = torch.zeros(rows, capacity, dtype=torch.int32)
        self.features = torch.zeros(rows, capacity, hidden, dtype=torch.bfloat16)
        self.next_tokens = torch.zeros(rows, dtype=torch.int64)
        self.positions = torch.zeros(rows, dtype=torch.int64)
        self.limits = torch.full((rows,), capacity, dtype=torch.int64)
        self.inv_temperature = torch.zeros(rows)
        self.finished: list[Sequence] = []
        self.answer_tokens = self.total_tokens = 0

    def _take(self) -> tuple[dict, list[int]] | None:
        """The next prompt that fits, with its tokens."""
        while self.waiting:
            prompt = self.waiting.popleft()
            make = open_tokens if prompt["open"] else chat_tokens
            tokens = make(self.tokenizer, prompt["text"])
            room = prompt["max_user"] + prompt["max_new"] + len(self.opening) + 2
            if len(tokens) + room <= self.target.capacity:
                return prompt, tokens
        return None

    def refill(self) -> None:
        """Gives prompts to free rows once enough are free."""
        free = [slot for slot, row in enumerate(self.rows) if row is None]
        if len(free) < REFILL_ROWS or not self.waiting:
            return
        batch: list[list[int]] = []
        for slot in free:
            taken = self._take()
            if taken is None:
                break
            self._start(slot, *taken)
            batch.append(taken[1])
        used = free[: len(batch)]
        features = self.target.prefill([tokens[:-1] for tokens in batch], used)
        for slot, states in zip(used, features, strict=True):
            self.features[slot, : len(states)] = states

    def _start(self, slot: int, prompt: dict, tokens: list[int]) -> None:
        """Sets a row up; the prompt's last token is the first decoding step's input."""
        length = len(tokens)
        self.rows[slot] = Row(prompt, self.template, length, writing_user=prompt["open"])
        self.tokens[slot, :length] = torch.tensor(tokens, dtype=torch.int32)
        self.next_tokens[slot], self.positions[slot] = tokens[-1], length - 1
        budget = prompt["max_user"] if prompt["open"] else prompt["max_new"]
        self._set_phase(
            slot,
            length + budget - 1,
            prompt["user_temperature"] if prompt["open"] else prompt["temperature"],
        )

    def _set_phase(self, slot: int, limit: int, temperature: float) -> None:
        self.limits[slot] = limit
        self.inv_temperature[slot] = 1 / temperature if temperature else 0

    def step(self) -> None:
        """Advances every row by a token (free rows compute at position 0 and are ignored)."""
        every = torch.arange(len(self.rows))
        states = self.target.step(self.next_tokens, self.positions)
        self.features[every, self.positions] = states
        self.tokens[every, self.positions] = self.next_tokens.int()
        chosen = self.target.sample(states, self.inv_temperature)
        self.positions += 1
        self.total_tokens += sum(row is not None for row in self.rows)
        ended = (chosen == self.target.config.eos) | (self.positions >= self.limits)
        self.next_tokens = chosen
        for slot, row in enumerate(self.rows):
            if row is None:
                self.positions[slot] = 0
            elif row.forced:
                self.next_tokens[slot] = row.forced.popleft()
            elif ended[slot]:
                self._end_phase(slot, row)

    def _end_phase(self, slot: int, row: Row) -> None:
        """A user turn leads into its answer; an answer is collected."""
        position = int(self.positions[slot])
        if not row.writing_user:
            self._collect(slot, row, position)
        elif self.guard.accepts(self.tokens[slot, row.user_start : position].tolist()):
            # A turn that reached its limit is cut off, as many real passages are.
            row.writing_user = False
            row.forced.extend(self.opening)
            self.next_tokens[slot] = self.target.config.eos
            row.answer_start = position + 1 + len(self.opening)
            self._set_phase(
                slot, row.answer_start + row.prompt["max_new"], row.prompt["temperature"]
            )
        else:
            self.rows[slot] = None

    def _collect(self, slot: int, row: Row, length: int) -> None:
        meta = {key: row.prompt[key] for key in ("source", "group", "temperature")}
        meta["user"] = self.tokenizer.decode(
            self.tokens[slot, row.user_start : row.answer_start - len(self.opening) - 1]
        )
        self.finished.append(
            Sequence(
                self.tokens[slot, :length].clone(),
                self.features[slot, :length].clone(),
                row.answer_start,
                meta,
            )
        )
        self.answer_tokens += length - row.answer_start
        self.rows[slot] = None

    def busy(self) -> bool:
        """True while any prompt waits or runs."""
        return bool(self.waiting) or any(row is not None for row in self.rows)


def evaluation_texts(spec_bench: Path, humaneval: Path) -> list[str]:
    """First turns of every evaluation row."""
    rows = evaluation_split(read_jsonl(spec_bench))[1] + read_jsonl(humaneval)
    return [row["turns"][0] for row in rows]


def run(
    generator: Generator, folder: Path, shard_tokens: int, first_shard: int, until: float
) -> None:
    """Generates until the prompts or the time (seconds since the epoch) run out."""
    started, shard, steps = time.time(), first_shard, 0
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # ends with what is finished saved
    while generator.busy() and time.time() < until and not stop.is_set():
        generator.refill()
        generator.step()
        steps += 1
        waiting_tokens = sum(len(s.tokens) for s in generator.finished)
        if waiting_tokens >= shard_tokens or not generator.busy():
            save_shard(folder / f"{shard:04d}.safetensors", generator.finished)
            generator.finished, shard = [], shard + 1
        if steps % 100 == 0:
            seconds = time.time() - started
            print(
                f"{seconds:.0f} s, {generator.answer_tokens} answer tokens, "
                f"{generator.total_tokens / seconds:.0f} tokens/s, {len(generator.waiting)} "
                f"prompts wait, {generator.guard.refused} refused",
                flush=True,
            )
    if generator.finished:
        save_shard(folder / f"{shard:04d}.safetensors", generator.finished)


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    add_target(parser)
    parser.add_argument("--spec-bench", type=Path, default=Path("spec-bench-questions.jsonl"))
    parser.add_argument("--humaneval", type=Path, default=Path("humaneval-questions.jsonl"))
    parser.add_argument("--prompts", type=Path, help="default: <work>/prompts.jsonl")
    parser.add_argument("--rows", type=int, default=192)
    parser.add_argument("--capacity", type=int, default=1600, help="longest sequence in tokens")
    parser.add_argument("--shard-tokens", type=int, default=200_000)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first prompts")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    prompts_path = args.prompts or args.work / "prompts.jsonl"
    need(parser, args.target, args.spec_bench, args.humaneval, prompts_path)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    torch.set_grad_enabled(False)
    folder = args.work / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(args.target)
    target = BatchTarget(args.target, args.rows, args.capacity, build_kernels(args.work / "build"))
    guard = PromptFilter(tokenizer, evaluation_texts(args.spec_bench, args.humaneval))
    prompts = read_jsonl(prompts_path)[args.skip :]
    generator = Generator(target, tokenizer, prompts, guard, args.rows)
    run(
        generator,
        folder,
        args.shard_tokens,
        len(list(folder.glob("*.safetensors"))),
        time.time() + 60 * args.minutes,
    )


if __name__ == "__main__":
    main()
