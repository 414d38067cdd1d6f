"""Trains a small Llama on recorded answers to draft for the target; same tokenizer, own width.

Loss: cross-entropy against the target's distribution over frequent tokens, the batch's own and
some random ones, on answers, with the prompt as context, and with less weight on prompts. The
embedding starts as the best one of its width for the target's logits.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import torch
from acceptance import Acceptance, best_tokens
from common import Sequence, load_target_tensors, need, read_config
from data import frequent_tokens, load_data, softmax_tokens, token_counts
from draft_model import (
    DraftModel,
    Shape,
    collate,
    fit_embedding,
    load_model,
    save_model,
    simulate,
)
from learning import DistillationLoss, Trainer, teacher_mix, train, training_parser
from torch import Tensor


class DraftTrainer(Trainer):
    """One training run."""

    model: DraftModel
    averaged: DraftModel
    loss_names = ("cross_entropy", "agreement")

    def __init__(self, model: DraftModel, lm_head: Tensor, frequent: Tensor, args: Namespace):
        super().__init__(model, args)
        self.lm_head, self.frequent = lm_head, frequent

    def loss(self, sequences: list[Sequence]) -> tuple[Tensor, list[float]]:
        """Cross-entropy; its unweighted agreement is of answer positions alone."""
        args = self.args
        # Position p guesses x[p + 1], for which f[p] is the target's state.
        lengths = torch.tensor([len(s.tokens) for s in sequences])
        starts = torch.tensor([s.first_label - 1 for s in sequences])
        index = torch.arange(int(lengths.max()))
        answer = (index >= starts[:, None]) & (index < lengths[:, None])
        prompt = (index < starts[:, None]) & (torch.rand(answer.shape) < args.prompt_share)
        kept = answer | prompt
        scale = torch.where(answer[kept], 1.0, args.prompt_weight / max(args.prompt_share, 1e-6))
        features = torch.cat(
            [s.features[kept[i, : len(s.tokens)]] for i, s in enumerate(sequences)]
        )
        labels = torch.cat([s.tokens for s in sequences])
        ids = softmax_tokens(labels, self.frequent, len(self.lm_head), args.random_tokens)
        teacher = teacher_mix(features, self.lm_head[ids], args.hard)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = self.model(collate(sequences))
        weight = self.model.embed_tokens.weight[ids].bfloat16()
        loss, agree = DistillationLoss.apply(
            outputs[kept].float(), weight, teacher, scale / scale.sum()
        )
        return loss, [float(loss.detach()), float(agree[answer[kept]].float().mean())]

    def count(self, sequences: list[Sequence]) -> list[Acceptance]:
        """Chains of num_draft_tokens."""
        return simulate(
            self.averaged, sequences, self.lm_head, self.args.num_draft_tokens, torch.bfloat16
        )

    def save(self, output: Path) -> None:
        """Writes the averaged model."""
        save_model(self.averaged, output, self.args.target)


def warm_start(model: DraftModel, data: list[Sequence], embedding: Tensor) -> None:
    """Fits the embedding on (up to 1000) answers and prints how well its LM head could do."""
    features = torch.cat([s.features[s.answer_start :] for s in data[:1000]]).float()
    counts = token_counts(data, len(embedding))
    narrow = fit_embedding(model, embedding, features, counts)
    sample, head = features[:4000], model.embed_tokens.weight.detach()
    reached = best_tokens(sample @ narrow, head)
    agree = (reached == best_tokens(sample, embedding)).float().mean()
    print(f"best tokens kept through {model.shape.hidden} dimensions: {float(agree):.3f}")


def main() -> None:
    """Trains one draft model."""
    parser = training_parser(
        __doc__, lr=4e-3, table_lr=2e-3, positions=6000, context=6000, random_tokens=500
    )
    parser.add_argument("--init", type=Path, help="draft model to go on from")
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--prompt-weight", type=float, default=0.3, help="of prompt positions")
    parser.add_argument("--prompt-share", type=float, default=0.5, help="part of them looked at")
    args = parser.parse_args()
    need(parser, args.target, args.work / "answers", *([args.init] if args.init else []))
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    data = load_data(args.work / "answers", args.share, args.max_length, 0, args.held_out)
    config, state = read_config(args.target), load_target_tensors(args.target)
    embedding = state["embed_tokens.weight"]
    if args.init:
        model = load_model(args.init, config)
    else:
        heads = args.hidden // 64
        shape = Shape(args.hidden, args.layers, args.intermediate, heads, args.kv_heads)
        model = DraftModel(shape, config)
        warm_start(model, data.training, embedding)
    lm_head = state.get("lm_head.weight", embedding).bfloat16()
    frequent = frequent_tokens(data.training, config.vocab, args.frequent)
    train(DraftTrainer(model, lm_head, frequent, args), data, args.output)


if __name__ == "__main__":
    main()
