"""Trains an EAGLE-3 draft head on answers whose target states record_taps.py has recorded.

The draft vocabulary holds the most frequent tokens of the answers. Loss: cross-entropy against the
target's distribution over its most frequent part, the batch's own tokens and some random ones,
summed over --draft-steps steps of a chain on the head's own outputs. Positions whose token the
draft vocabulary lacks do not count.
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import torch
from acceptance import Acceptance
from chain import Chain, Scales, following_alive, simulate
from common import Sequence, load_target_tensors, load_tokenizer, need, open_tokens, read_config
from data import collate, frequent_tokens, load_data, softmax_tokens, token_counts
from eagle3 import Eagle3Head, load_head, save_head, warm_start
from learning import DistillationLoss, Trainer, teacher_mix, train, training_parser
from torch import Tensor


class Eagle3Trainer(Trainer):
    """One training run. embedding and lm_head are the target's, bfloat16 [V, H]."""

    model: Eagle3Head
    averaged: Eagle3Head
    loss_names = ("cross_entropy", "agreement")

    def __init__(
        self,
        head: Eagle3Head,
        embedding: Tensor,
        lm_head: Tensor,
        counts: Tensor,
        args: Namespace,
    ) -> None:
        super().__init__(head, args)
        self.embedding, self.lm_head = embedding, lm_head
        self.teacher_head = lm_head[head.draft_tokens]
        self.row_of = torch.full((len(lm_head),), -1)  # of the head's LM head, by token
        self.row_of[head.draft_tokens] = torch.arange(len(head.draft_tokens))
        self.frequent = counts[head.draft_tokens].topk(args.frequent).indices

    def loss(self, sequences: list[Sequence]) -> tuple[Tensor, list[float]]:
        """The sum of cross-entropies over draft steps, and the first step's agreement."""
        args, batch = self.args, collate(sequences)
        # The last label of a sequence is not recorded; it counts as known.
        ends = batch.starts + batch.valid.sum(1) + 1
        labels = self.row_of[batch.pick(batch.tokens, 2)]
        known = (labels >= 0) | (batch.positions + 2 >= ends[:, None])
        rows = labels[batch.valid & (labels >= 0)]
        rows = softmax_tokens(rows, self.frequent, len(self.teacher_head), args.random_tokens)
        wanted = batch.pick(batch.features, 1)[batch.valid]
        teacher = teacher_mix(wanted, self.teacher_head[rows], args.hard)
        importance = torch.where(batch.answer, 1.0, args.prompt_weight) * batch.valid
        importance = importance * known / importance.sum()
        weight = self.model.lm_head[rows].bfloat16()
        alive, total, agreement = batch.valid, torch.zeros(()), []
        with torch.autocast("cpu", torch.bfloat16):
            chain = Chain(self.model, batch, self.embedding, args.noise)
            for _ in range(args.draft_steps):
                # A chain is trained only as far as it would be accepted, as in use.
                states = self.model.read_out(chain.step(alive))
                cross, agree = DistillationLoss.apply(
                    states, weight, teacher[alive[batch.valid]], importance[alive]
                )
                total = total + cross
                agree = agree & known[alive]
                agreement.append(float(agree.float().mean()))
                alive = following_alive(alive, agree, batch.valid)
                if not alive.any():
                    break
        return total, [float(total.detach()), agreement[0]]

    def count(self, sequences: list[Sequence]) -> list[Acceptance]:
        """Chains of num_draft_tokens."""
        return simulate(
            self.averaged,
            sequences,
            self.embedding,
            self.lm_head,
            self.args.num_draft_tokens,
            torch.bfloat16,
            (self.averaged.lm_head.bfloat16(), self.averaged.draft_tokens),
        )

    def save(self, output: Path) -> None:
        """Writes the averaged head."""
        raw_target = json.loads((self.args.target / "config.json").read_text())
        save_head(self.averaged, output, raw_target)


def measure_scales(sequences: list[Sequence], embedding: Tensor) -> Scales:
    """Sizes of embeddings and of the tapped states on (up to 300) answers."""
    taps = [s.taps[s.answer_start :] for s in sequences[:300] if s.taps is not None]
    squares = torch.cat(taps).float().square().mean(0)
    return Scales(float(embedding.float().square().mean().sqrt()), squares.sqrt())


def main() -> None:
    """Trains one head."""
    parser = training_parser(__doc__, frequent=2500, random_tokens=500, lr=2e-3, table_lr=5e-4)
    parser.add_argument("--init", type=Path, help="head to go on from (default: warm start)")
    parser.add_argument("--draft-steps", type=int, default=3)
    parser.add_argument("--prompt-weight", type=float, default=0.3)
    parser.add_argument("--noise", type=float, default=0.0, help="uniform noise on the states")
    parser.add_argument("--draft-vocabulary", type=int, default=8192)
    parser.add_argument("--intermediate", type=int, default=1536)
    args = parser.parse_args()
    taps = args.work / "taps"
    need(parser, args.target, taps, *([args.init] if args.init else []))
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    template = len(open_tokens(load_tokenizer(args.target), ""))
    folder = args.work / "answers"
    data = load_data(folder, args.share, args.max_length, template, args.held_out, taps=taps)
    config, state = read_config(args.target), load_target_tensors(args.target)
    embedding = state["embed_tokens.weight"]
    lm_head = state.get("lm_head.weight", embedding)
    scales = measure_scales(data.training, embedding)
    if args.init:
        head = load_head(args.init, config, scales)
    else:
        tokens = frequent_tokens(data.training, config.vocab, args.draft_vocabulary).sort().values
        head = Eagle3Head(config, args.intermediate, scales, tokens)
        warm_start(head, data.training[:1000], lm_head)
    counts = token_counts(data.training, config.vocab)
    trainer = Eagle3Trainer(head, embedding.bfloat16(), lm_head.bfloat16(), counts, args)
    train(trainer, data, args.output)


if __name__ == "__main__":
    main()
