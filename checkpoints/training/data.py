"""Recorded answers as training data: what is held out, and batches."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from common import Sequence, load_shard
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

HELD_OUT_TOKENS = 128  # answers are judged up to the length used in the evaluation
PROMPT_BUCKETS = (96, 192, 400, 800)


@dataclass
class Data:
    """Training sequences and held-out greedy ones."""

    training: list[Sequence]
    held_out: list[Sequence]

    @property
    def training_sample(self) -> list[Sequence]:
        """A few greedy training answers, to see how far the head overfits."""
        greedy = (s for s in self.training if s.meta["temperature"] == 0)
        return [shorten(s, HELD_OUT_TOKENS) for s in itertools.islice(greedy, 40)]


def is_held_out(group: str) -> bool:
    """A fixed tenth of the Spec-Bench rows and a fiftieth of the other prompts, by name."""
    number = int(hashlib.sha256(group.encode()).hexdigest(), 16)
    return number % (10 if group.startswith("spec-bench") else 50) == 0


def shorten(sequence: Sequence, answer_tokens: int) -> Sequence:
    """Cuts the answer after a number of tokens."""
    end = sequence.answer_start + answer_tokens
    return Sequence(
        sequence.tokens[:end],
        sequence.features[:end],
        sequence.answer_start,
        sequence.meta,
        taps=None if sequence.taps is None else sequence.taps[:end],
    )


def load_tapped(path: Path, taps: Path) -> Iterator[Sequence]:
    """The sequences of a shard whose tapped states are recorded."""
    every = list(load_shard(path))
    for file in sorted(taps.glob(f"{path.stem}-*.safetensors")):
        recorded = load_file(file)
        sequences = [every[row] for row in recorded["rows"].tolist()]
        parts = recorded["taps"].split([len(s.tokens) for s in sequences])
        for sequence, states in zip(sequences, parts, strict=True):
            if sequence.taps is None:  # else it is in an earlier part too
                sequence.taps = states
                yield sequence


def load_data(
    folder: Path,
    share: float,
    max_length: int,
    template: int,
    held_out: int | None = None,
    taps: Path | None = None,
) -> Data:
    """Reads every shard; share < 1 keeps that part of the training sequences.

    template: tokens before the user turn; 0 leaves training to the answers. held_out: how many
    sequences are kept for judging, those of Spec-Bench first. taps: folder of recorded states;
    sequences without are left out.
    """
    data = Data([], [])
    for path in sorted(folder.glob("*.safetensors")):
        for s in load_tapped(path, taps) if taps else load_shard(path):
            greedy = s.meta["temperature"] == 0
            if len(s.tokens) - s.answer_start < 2 or len(s.tokens) > max_length:
                continue
            if not is_held_out(s.meta["group"]):
                data.training.append(s)
            elif (
                greedy
                and not s.meta["source"].startswith(("part-", "open-"))
                or greedy
                and not s.meta["group"].startswith("spec-bench")
            ):
                data.held_out.append(shorten(s, HELD_OUT_TOKENS))
    for s in data.training:
        # Passages in front of a question are not the target's writing.
        if s.meta["source"].startswith("open-") and s.meta["source"] != "open-rag":
            s.label_start = template
    random.Random(0).shuffle(data.training)
    data.training = data.training[: math.ceil(share * len(data.training))]
    data.held_out.sort(key=lambda s: not s.meta["group"].startswith("spec-bench"))
    data.held_out = data.held_out[:held_out]
    if not data.training or not data.held_out:
        raise SystemExit(f"{folder} holds no training or no held-out sequences")
    print(
        f"{len(data.training)} sequences with {answer_tokens(data.training)} answer tokens; held "
        f"out {len(data.held_out)} with {answer_tokens(data.held_out)}",
        flush=True,
    )
    return data


@dataclass
class Batch:
    """Sequences padded to one shape: B rows, T context positions, A query positions.

    tokens int64 [B, T]; features float [B, T, H]; inputs are what a head reads, the features or
    the target's tapped states [B, T, 3H]; starts int64 [B] is the first query position
    (the last one before the target's writing); valid bool [B, A] marks query positions that have
    a label, answer bool [B, A] those that belong to the answer.
    """

    tokens: Tensor
    features: Tensor
    inputs: Tensor
    starts: Tensor
    valid: Tensor
    answer: Tensor

    @property
    def positions(self) -> Tensor:
        """Position of every query, int64 [B, A], clamped to the context."""
        span = self.starts[:, None] + torch.arange(self.valid.shape[1])
        return span.clamp(max=self.tokens.shape[1] - 1)

    def pick(self, values: Tensor, shift: int) -> Tensor:
        """values [B, T, ...] at the query positions moved by shift, [B, A, ...]."""
        index = (self.positions + shift).clamp(0, values.shape[1] - 1)
        return values[torch.arange(len(values))[:, None], index]


def collate(sequences: list[Sequence]) -> Batch:
    """Pads sequences; query positions run up to the last label."""
    length = max(len(s.tokens) for s in sequences)
    counts = torch.tensor([len(s.tokens) - s.first_label for s in sequences])
    tokens = torch.zeros(len(sequences), length, dtype=torch.int64)
    for row, s in enumerate(sequences):
        tokens[row, : len(s.tokens)] = s.tokens
    features = pad_sequence([s.features for s in sequences], batch_first=True)
    taps = [s.taps for s in sequences if s.taps is not None]
    inputs = pad_sequence(taps, batch_first=True) if taps else features
    starts = torch.tensor([s.first_label - 1 for s in sequences])
    lead = torch.tensor([s.answer_start - s.first_label for s in sequences])
    index = torch.arange(int(counts.max()))
    return Batch(tokens, features, inputs, starts, index < counts[:, None], index >= lead[:, None])


def answer_tokens(sequences: list[Sequence]) -> int:
    """Number of answer tokens."""
    return sum(len(s.tokens) - s.answer_start for s in sequences)


def make_batches(
    sequences: list[Sequence], positions: int, context: int, rng: random.Random
) -> list[list[Sequence]]:
    """Batches of similar shapes: at most `positions` padded queries, `context` padded tokens."""

    def shape(s: Sequence) -> tuple[int, int]:
        bucket = sum(s.first_label > edge for edge in PROMPT_BUCKETS)
        return bucket, len(s.tokens) - s.first_label

    keyed = sorted(sequences, key=lambda s: (*shape(s), rng.random()))
    batches: list[list[Sequence]] = [[]]
    queries = tokens = 0
    for s in keyed:
        queries = max(queries, len(s.tokens) - s.first_label)
        tokens = max(tokens, len(s.tokens))
        size = len(batches[-1]) + 1
        if size > 1 and (size * queries > positions or size * tokens > context):
            batches.append([])
            queries, tokens = len(s.tokens) - s.first_label, len(s.tokens)
        batches[-1].append(s)
    rng.shuffle(batches)
    return batches


def softmax_tokens(labels: Tensor, frequent: Tensor, vocab: int, extra: int) -> Tensor:
    """Sorted token ids for a softmax: frequent ones, the batch's labels, and random ones."""
    return torch.cat((frequent, labels, torch.randint(vocab, (extra,)))).unique()


def token_counts(sequences: list[Sequence], vocab: int) -> Tensor:
    """How often every token stands in the answers, int64 [V]."""
    counts = torch.zeros(vocab, dtype=torch.int64)
    for s in sequences:
        counts += torch.bincount(s.tokens[s.answer_start :].long(), minlength=vocab)
    return counts


def frequent_tokens(sequences: list[Sequence], vocab: int, count: int) -> Tensor:
    """The most frequent tokens of the answers."""
    counts = token_counts(sequences, vocab)
    best = counts.topk(count)
    share = float(best.values.sum() / counts.sum())
    print(f"the {count} most frequent tokens cover {share:.3f} of the answers", flush=True)
    return best.indices
