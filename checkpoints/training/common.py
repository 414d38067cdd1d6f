"""Files, tokens and target weights shared by the training scripts."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, PreTrainedTokenizerBase

EVALUATION_STRIDE = 5  # Spec-Bench rows with index % 5 == 0 are for evaluation only
OVERLAP_TOKENS = 13  # a shared run of this many tokens counts as a copy of an evaluation prompt
ANSWER_OPENING = "\n<|im_start|>assistant\n"


@dataclass(frozen=True)
class TargetConfig:
    """The numbers of the target's config.json that the scripts need."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    rope_theta: float
    eps: float
    eos: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def read_config(directory: Path) -> TargetConfig:
    """Reads a Llama config.json."""
    raw = json.loads((directory / "config.json").read_text())
    return TargetConfig(
        hidden=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=raw["num_attention_heads"],
        kv_heads=raw["num_key_value_heads"],
        vocab=raw["vocab_size"],
        rope_theta=float(raw["rope_theta"]),
        eps=float(raw["rms_norm_eps"]),
        eos=raw["eos_token_id"],
    )


def add_target(parser: ArgumentParser) -> None:
    """Adds the arguments that every script takes."""
    parser.add_argument(
        "--target",
        type=Path,
        default=Path("SmolLM2-135M-Instruct"),
        help="directory of the target in Hugging Face form",
    )
    parser.add_argument(
        "--work", type=Path, default=Path("work"), help="folder for prompts, answers and heads"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())


def need(parser: ArgumentParser, *paths: Path) -> None:
    """Ends with a usage error when a path is missing."""
    for path in paths:
        if not path.exists():
            parser.error(f"{path} does not exist")


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The target's tokenizer with its chat template."""
    return AutoTokenizer.from_pretrained(directory)


def chat_tokens(tokenizer: PreTrainedTokenizerBase, user: str) -> list[int]:
    """A single user turn up to the start of the answer."""
    messages = [{"role": "user", "content": user}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)


def open_tokens(tokenizer: PreTrainedTokenizerBase, opening: str) -> list[int]:
    """A user turn that the target is to complete itself, from its first words."""
    messages = [{"role": "user", "content": opening}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    end = text.rindex(tokenizer.eos_token)
    return tokenizer(text[:end], add_special_tokens=False).input_ids


def read_jsonl(path: Path) -> list[dict]:
    """All rows of a JSON-lines file."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def write_text(path: Path, text: str) -> None:
    """Writes through a temporary file, so that readers never see half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write_jsonl(path: Path, rows: Iterable[dict]) -> None:
    """Writes rows as JSON lines."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_tensors(
    path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Writes a safetensors file through a temporary one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    save_file(tensors, part, metadata)
    part.chmod(0o644)
    part.replace(path)


def ngrams(tokens: list[int], size: int = OVERLAP_TOKENS) -> set[int]:
    """Hashes of every run of `size` tokens."""
    return {hash(tuple(tokens[i : i + size])) for i in range(len(tokens) - size + 1)}


def evaluation_split(rows: list[dict]) -> tuple[list[dict], list[dict]]:
    """Spec-Bench rows as (training, evaluation)."""
    training = [row for index, row in enumerate(rows) if index % EVALUATION_STRIDE]
    return training, rows[::EVALUATION_STRIDE]


def rope_tables(length: int, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [length, head_dim / 2]."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [..., head_dim]; cos and sin broadcast over [..., head_dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def load_target_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """The target's state dict without the `model.` prefix, float32."""
    state: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        state.update(load_file(file))
    if not state:
        raise SystemExit(f"{directory} holds no .safetensors file")
    return {name.removeprefix("model."): tensor.float() for name, tensor in state.items()}


@dataclass
class Sequence:
    """One prompt and answer with the target's features (states after the final norm).

    tokens int32 [n], features bfloat16 [n, hidden]; tokens[answer_start:] is the answer.
    """

    tokens: torch.Tensor
    features: torch.Tensor
    answer_start: int
    meta: dict
    label_start: int = 0  # where the target's own writing starts, when that is before the answer
    taps: torch.Tensor | None = None  # [n, 3 hidden]: inputs of three target layers, for EAGLE-3

    @property
    def first_label(self) -> int:
        """Index of the first token written by the target that training looks at."""
        return self.label_start or self.answer_start


def save_shard(path: Path, sequences: list[Sequence]) -> None:
    """Writes sequences as one safetensors file."""
    tensors = {
        "tokens": torch.cat([s.tokens for s in sequences]),
        "features": torch.cat([s.features for s in sequences]),
        "lengths": torch.tensor([len(s.tokens) for s in sequences]),
        "answer_starts": torch.tensor([s.answer_start for s in sequences]),
    }
    write_tensors(path, tensors, {"meta": json.dumps([s.meta for s in sequences])})


def load_shard(path: Path) -> Iterator[Sequence]:
    """Yields the sequences of a shard; tensors are views of one load."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        meta = json.loads(file.metadata()["meta"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    ends = tensors["lengths"].cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        yield Sequence(
            tensors["tokens"][start:end],
            tensors["features"][start:end],
            int(tensors["answer_starts"][row]),
            meta[row],
        )
