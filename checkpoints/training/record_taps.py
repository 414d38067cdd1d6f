"""Records the three target states that an EAGLE-3 head reads, at every position of the answers.

The saved sequences are run through the target again, whole sequences packed into batches. Of
layers 2, L/2 and L-3 the inputs are kept, bfloat16 (3,456 bytes a token for SmolLM2-135M), in
<work>/taps, one file beside each shard of <work>/answers. Held-out sequences come with the first
part.
"""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

import torch
from common import (
    Sequence,
    TargetConfig,
    add_target,
    load_shard,
    load_target_tensors,
    need,
    read_config,
    rope_tables,
    write_tensors,
)
from data import is_held_out
from target import fuse_layer
from torch import Tensor


def tapped_layers(layers: int) -> tuple[int, int, int]:
    """The layers whose inputs are features, low to high."""
    return 2, layers // 2, layers - 3


class TapRecorder:
    """The lower part of the target, up to the last tapped input."""

    def __init__(self, directory: Path, dtype: torch.dtype, capacity: int) -> None:
        self.config: TargetConfig = read_config(directory)
        state = load_target_tensors(directory)
        self.taps = tapped_layers(self.config.layers)
        self.layers = [fuse_layer(state, i, dtype) for i in range(self.taps[-1])]
        self.embedding = state["embed_tokens.weight"].to(dtype)
        self.rope = rope_tables(capacity, self.config.head_dim, self.config.rope_theta)

    @torch.no_grad()
    def __call__(self, sequences: list[Tensor]) -> list[Tensor]:
        """The tapped states of token sequences, float32 [length, 3H] each."""
        lengths = [len(s) for s in sequences]
        x, tapped = self.embedding[torch.cat(sequences).long()].float(), []
        for index, layer in enumerate(self.layers):
            if index in self.taps:
                tapped.append(x)
            x, _ = layer.packed(x, lengths, self.config, self.rope)
        return list(torch.cat([*tapped, x], -1).split(lengths))


def packs(sequences: list[Sequence], tokens: int) -> list[list[int]]:
    """Indices of sequences grouped to about so many tokens."""
    groups: list[list[int]] = [[]]
    room = tokens
    for index, sequence in enumerate(sequences):
        if room < len(sequence.tokens) and groups[-1]:
            groups.append([])
            room = tokens
        groups[-1].append(index)
        room -= len(sequence.tokens)
    return groups


def chosen_rows(sequences: list[Sequence], args: Namespace, rng: random.Random) -> list[int]:
    """Rows of a shard to record: held-out ones and a share of the others."""
    low, high = args.share
    rows = []
    for row, sequence in enumerate(sequences):
        draw = rng.random()
        if len(sequence.tokens) > args.max_length:
            continue
        wanted = low == 0 if is_held_out(sequence.meta["group"]) else low <= draw < high
        if wanted:
            rows.append(row)
    return rows


def record(recorder: TapRecorder, sequences: list[Sequence], pack: int) -> Tensor:
    """Tapped states of the sequences one after the other, bfloat16 [tokens, 3H]."""
    states: list[Tensor] = []
    for group in packs(sequences, pack):
        parts = recorder([sequences[i].tokens for i in group])
        states.append(torch.cat(parts).bfloat16())
    return torch.cat(states)


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    add_target(parser)
    parser.add_argument(
        "--share",
        type=float,
        nargs=2,
        default=(0.0, 1.0),
        metavar=("FROM", "TO"),
        help="part of the training sequences; 0 0.4, then 0.4 1 record them in two runs",
    )
    parser.add_argument("--max-length", type=int, default=1500)
    parser.add_argument("--pack", type=int, default=2048, help="tokens run together")
    args = parser.parse_args()
    need(parser, args.target, args.work / "answers")
    torch.set_num_threads(args.threads)
    recorder = TapRecorder(args.target, torch.bfloat16, args.max_length)
    started, done = time.time(), 0
    for index, path in enumerate(sorted((args.work / "answers").glob("*.safetensors"))):
        every = list(load_shard(path))
        rows = chosen_rows(every, args, random.Random(index))
        if not rows:
            continue
        states = record(recorder, [every[i] for i in rows], args.pack)
        name = f"{path.stem}-{round(100 * args.share[0]):02d}.safetensors"
        write_tensors(args.work / "taps" / name, {"taps": states, "rows": torch.tensor(rows)})
        done += len(states)
        print(f"{name}: {done} tokens, {done / (time.time() - started):.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
