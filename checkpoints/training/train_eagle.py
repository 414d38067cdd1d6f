"""Trains an EAGLE v1 draft head on recorded answers and keeps the best head on held-out prompts.

Loss: cross-entropy against the target's distribution (teacher logits from the recorded features)
on answer positions, over a vocabulary of frequent tokens, the batch's own tokens and some random
ones, plus a small smooth L1 between features. With --draft-steps above 1 the head is also trained
on its own outputs, as it is used in a chain.
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import torch
import torch.nn.functional as F
from acceptance import Acceptance
from chain import Chain, Scales, following_alive, simulate
from common import Sequence, load_target_tensors, load_tokenizer, need, open_tokens, read_config
from data import collate, frequent_tokens, load_data, softmax_tokens
from eagle import DraftHead, load_head, save_head, warm_start
from learning import DistillationLoss, Trainer, teacher_mix, train, training_parser
from torch import Tensor


class EagleTrainer(Trainer):
    """One training run. embedding and lm_head are the target's, bfloat16 [V, H]."""

    model: DraftHead
    averaged: DraftHead
    loss_names = ("cross_entropy", "feature_loss")

    def __init__(
        self,
        head: DraftHead,
        embedding: Tensor,
        lm_head: Tensor,
        frequent: Tensor,
        args: Namespace,
    ) -> None:
        super().__init__(head, args)
        self.embedding, self.lm_head, self.frequent = embedding, lm_head, frequent

    def loss(self, sequences: list[Sequence]) -> tuple[Tensor, list[float]]:
        """The sum over draft steps of cross-entropy and feature distance."""
        args, batch = self.args, collate(sequences)
        labels = batch.pick(batch.tokens, 2)[batch.valid]
        ids = softmax_tokens(labels, self.frequent, len(self.lm_head), args.random_tokens)
        weight = self.lm_head[ids]
        wanted = batch.pick(batch.features, 1)
        importance = torch.where(batch.answer, 1.0, args.prompt_weight) * batch.valid
        importance = importance / importance.sum()
        teacher = teacher_mix(wanted[batch.valid], weight, args.hard)
        with torch.autocast("cpu", torch.bfloat16):
            chain = Chain(self.model, batch, self.embedding, args.noise)
        alive, unit = batch.valid, self.model.feature_scale
        parts, loss = torch.zeros(2), torch.zeros(())
        for _ in range(args.draft_steps):
            # A chain is trained only as far as it would be accepted, as in use.
            with torch.autocast("cpu", torch.bfloat16):
                states, scale = chain.step(alive).float(), importance[alive]
            cross, agree = DistillationLoss.apply(
                states, weight, teacher[alive[batch.valid]], scale
            )
            distance = F.smooth_l1_loss(
                states / unit, wanted[alive].float() / unit, reduction="none"
            )
            feature = (distance.mean(-1) * scale).sum()
            loss = loss + cross + args.feature_weight * feature
            parts += torch.stack((cross.detach(), feature.detach()))
            alive = following_alive(alive, agree, batch.valid)
            if not alive.any():
                break
        return loss, parts.tolist()

    def count(self, sequences: list[Sequence]) -> list[Acceptance]:
        """Chains of num_draft_tokens."""
        return simulate(
            self.averaged,
            sequences,
            self.embedding,
            self.lm_head,
            self.args.num_draft_tokens,
            torch.bfloat16,
        )

    def save(self, output: Path) -> None:
        """Writes the averaged head."""
        raw_target = json.loads((self.args.target / "config.json").read_text())
        save_head(self.averaged, output, self.args.intermediate, raw_target)


def measure_scales(sequences: list[Sequence], embedding: Tensor) -> Scales:
    """Sizes of embeddings and of features on (up to 500) answers."""
    features = torch.cat([s.features[s.answer_start :] for s in sequences[:500]]).float()
    return Scales(float(embedding.float().square().mean().sqrt()), features.square().mean(0).sqrt())


def main() -> None:
    """Trains one head."""
    parser = training_parser(__doc__)
    parser.add_argument("--init", type=Path, help="head to go on from (default: warm start)")
    parser.add_argument(
        "--copy-layer",
        action="store_true",
        help="start from the target's last layer where shapes agree",
    )
    parser.add_argument("--draft-steps", type=int, default=1)
    parser.add_argument(
        "--prompt-weight",
        type=float,
        default=0.3,
        help="loss weight of user turns that the target wrote",
    )
    parser.add_argument("--feature-weight", type=float, default=0.1)
    parser.add_argument("--noise", type=float, default=0.1, help="uniform noise on features")
    parser.add_argument("--intermediate", type=int, default=1536)
    args = parser.parse_args()
    need(parser, args.target, args.work / "answers", *([args.init] if args.init else []))
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    template = len(open_tokens(load_tokenizer(args.target), "")) if args.prompt_weight else 0
    folder = args.work / "answers"
    data = load_data(folder, args.share, args.max_length, template, args.held_out)
    config, state = read_config(args.target), load_target_tensors(args.target)
    scales = measure_scales(data.training, state["embed_tokens.weight"])
    if args.init:
        head = load_head(args.init, config, scales)
        args.intermediate = len(head.gate_proj.weight)
    else:
        head = DraftHead(config, args.intermediate, scales)
        warm_start(head, state, data.training[:1500], args.copy_layer)
    embedding = state["embed_tokens.weight"].bfloat16()
    lm_head = state.get("lm_head.weight", state["embed_tokens.weight"]).bfloat16()
    frequent = frequent_tokens(data.training, config.vocab, args.frequent)
    train(EagleTrainer(head, embedding, lm_head, frequent, args), data, args.output)


if __name__ == "__main__":
    main()
