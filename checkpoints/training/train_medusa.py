"""Trains Medusa heads on recorded answers; target and LM head stay as they are.

Loss: cross-entropy of every head against the target's distribution at the position it guesses,
over frequent tokens, the batch's own and some random ones. A head counts where all heads before
it were right, as in use, and on a random part of the other positions.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import torch
from acceptance import Acceptance
from common import Sequence, load_target_tensors, load_tokenizer, need, open_tokens, read_config
from data import frequent_tokens, load_data, softmax_tokens
from learning import DistillationLoss, Trainer, teacher_mix, train, training_parser
from medusa import MedusaHeads, load_heads, save_heads, simulate
from torch import Tensor


class MedusaTrainer(Trainer):
    """One training run."""

    model: MedusaHeads
    averaged: MedusaHeads

    def __init__(
        self, heads: MedusaHeads, lm_head: Tensor, frequent: Tensor, args: Namespace
    ) -> None:
        super().__init__(heads, args)
        self.lm_head, self.frequent = lm_head, frequent

    def loss(self, sequences: list[Sequence]) -> tuple[Tensor, list[float]]:
        """Sum over heads; the chain of heads is followed along each sequence."""
        args = self.args
        states = torch.cat([s.features[s.first_label - 1 :] for s in sequences])
        lengths = [len(s.tokens) - s.first_label + 1 for s in sequences]
        labels = torch.cat([s.tokens[s.first_label :] for s in sequences])
        ids = softmax_tokens(labels, self.frequent, len(self.lm_head), args.random_tokens)
        weight = self.lm_head[ids]
        teacher = teacher_mix(states, weight, args.hard)
        left = torch.cat([torch.arange(n - 1, -1, -1) for n in lengths])  # states that follow
        right = torch.ones(len(states), dtype=torch.bool)
        loss, share = torch.zeros(()), 1 / len(states)
        for i in range(len(self.model.weights)):
            kept = right | (torch.rand(len(states)) < args.others)
            at = (kept & (left > i)).nonzero()[:, 0]
            scale = torch.full((len(at),), share)
            with torch.autocast("cpu", torch.bfloat16):
                outputs = self.model(states[at], i)
            cross, agree = DistillationLoss.apply(
                outputs.float(), weight, teacher[at + 1 + i], scale
            )
            loss = loss + cross
            correct = torch.zeros_like(right)
            correct[at] = agree
            right &= correct
        return loss, [float(loss.detach())]

    def count(self, sequences: list[Sequence]) -> list[Acceptance]:
        """Chains of one token a head."""
        return simulate(self.averaged, sequences, self.lm_head, torch.bfloat16)

    def save(self, output: Path) -> None:
        """Writes the averaged heads."""
        save_heads(self.averaged, output, self.args.base_model)


def main() -> None:
    """Trains one set of heads."""
    parser = training_parser(__doc__, lr=2e-3, epochs=2)
    parser.add_argument("--init", type=Path, help="heads to go on from")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument(
        "--others", type=float, default=0.15, help="part of the positions off the chain"
    )
    parser.add_argument("--base-model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    args = parser.parse_args()
    need(parser, args.target, args.work / "answers", *([args.init] if args.init else []))
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    template = len(open_tokens(load_tokenizer(args.target), ""))
    folder = args.work / "answers"
    data = load_data(folder, args.share, args.max_length, template, args.held_out)
    config, state = read_config(args.target), load_target_tensors(args.target)
    lm_head = state.get("lm_head.weight", state["embed_tokens.weight"]).bfloat16()
    heads = load_heads(args.init, config) if args.init else MedusaHeads(config.hidden, args.heads)
    frequent = frequent_tokens(data.training, config.vocab, args.frequent)
    train(MedusaTrainer(heads, lm_head, frequent, args), data, args.output)


if __name__ == "__main__":
    main()
