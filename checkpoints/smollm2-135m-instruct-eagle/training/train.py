"""Trains an EAGLE v1 draft head on recorded answers and keeps the best head on held-out prompts.

Loss: cross-entropy against the target's distribution (teacher logits from the recorded features)
on answer positions, over a vocabulary of frequent tokens, the batch's own tokens and some random
ones, plus a small smooth L1 between features. With --draft-steps above 1 the head is also trained
on its own outputs, as it is used in a chain.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import random
import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import (
    Sequence,
    add_target,
    load_shard,
    load_target_tensors,
    load_tokenizer,
    need,
    open_tokens,
    read_config,
    write_text,
)
from draft import (
    Acceptance,
    Batch,
    DraftHead,
    Scales,
    collate,
    load_head,
    save_head,
    simulate,
    warm_start,
)
from torch import Tensor

HELD_OUT_TOKENS = 128  # answers are judged up to the length used in the evaluation
PROMPT_BUCKETS = (96, 192, 400, 800)
LOSS_CHUNK = 256  # rows of logits worked on at a time, so that they stay in the cache


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
        sequence.tokens[:end], sequence.features[:end], sequence.answer_start, sequence.meta
    )


def load_data(folder: Path, share: float, max_length: int, template: int) -> Data:
    """Reads every shard; share < 1 keeps that part of the training sequences.

    template: tokens before the user turn; 0 leaves training to the answers.
    """
    data = Data([], [])
    for path in sorted(folder.glob("*.safetensors")):
        for s in load_shard(path):
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
    return data


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


def batch_vocabulary(batch: Batch, frequent: Tensor, vocab: int, extra: int) -> Tensor:
    """Sorted token ids for the softmax: frequent, in the batch's answers, and random ones."""
    labels = batch.pick(batch.tokens, 2)[batch.valid]
    return torch.cat((frequent, labels, torch.randint(vocab, (extra,)))).unique()


def teacher_mix(features: Tensor, weight: Tensor, hard: float) -> Tensor:
    """The target's distribution [P, V'] in bfloat16; a share `hard` moves to its best token."""
    parts = []
    for part in features.to(weight.dtype).split(LOSS_CHUNK):
        probabilities = F.linear(part, weight).float().softmax(-1)
        if hard:
            best = probabilities.argmax(-1, keepdim=True)
            probabilities.mul_(1 - hard).scatter_add_(-1, best, torch.full(best.shape, hard))
        parts.append(probabilities.bfloat16())
    return torch.cat(parts)


class DistillationLoss(torch.autograd.Function):
    """Weighted sum of cross-entropies, with the gradient computed chunk by chunk in forward.

    states [P, H]; weight bfloat16 [V', H] (frozen); teacher bfloat16 [P, V']; scale [P]. Also
    returns whether the best token agrees with the teacher's, bool [P].
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, teacher: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        total, gradients, agree = torch.zeros(()), [], []
        parts = (t.split(LOSS_CHUNK) for t in (states, teacher, scale))
        for y, q, w in zip(*parts, strict=True):
            logits = F.linear(y.to(weight.dtype), weight).float()
            agree.append(logits.argmax(-1) == q.float().argmax(-1))
            log_p = logits.log_softmax(-1)
            total += -((q * log_p).sum(-1) * w).sum()
            difference = log_p.exp_().sub_(q).mul_(w[:, None])
            gradients.append((difference.to(weight.dtype) @ weight).float())
        ctx.save_for_backward(torch.cat(gradients))
        agreement = torch.cat(agree)
        ctx.mark_non_differentiable(agreement)
        return total, agreement

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        return grad * ctx.saved_tensors[0], None, None, None


def following_alive(alive: Tensor, agree: Tensor, valid: Tensor) -> Tensor:
    """Which query positions the next draft step reaches: all steps before it were right.

    alive bool [B, A]; agree bool [alive positions]; valid bool [B, A]. A chain at query position i
    goes on at i + 1.
    """
    right = torch.zeros_like(alive)
    right[alive] = agree
    return F.pad(right, (1, 0))[:, :-1] & valid


@dataclass
class Trainer:
    """One training run."""

    head: DraftHead
    embedding: Tensor  # bfloat16 [V, H]
    lm_head: Tensor  # bfloat16 [V, H]
    frequent: Tensor
    args: Namespace

    def __post_init__(self) -> None:
        self.averaged = copy.deepcopy(self.head)
        self.optimizers = optimizers_for(self.head, self.args)

    def update(self, sequences: list[Sequence], progress: float) -> tuple[float, float]:
        """One step of the optimizers; returns the cross-entropy and feature parts of the loss."""
        for group in (g for o in self.optimizers for g in o.param_groups):
            group["lr"] = learning_rate(progress, self.args.lr, self.args.warm_up)
        loss, cross, feature = self.loss(sequences)
        self.head.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.args.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            pairs = zip(self.averaged.parameters(), self.head.parameters(), strict=True)
            for mean, parameter in pairs:
                mean.lerp_(parameter, 1 - self.args.average)
        return cross, feature

    def loss(self, sequences: list[Sequence]) -> tuple[Tensor, float, float]:
        """(loss, its cross-entropy and feature parts) of a batch."""
        args, batch = self.args, collate(sequences)
        ids = batch_vocabulary(batch, self.frequent, len(self.lm_head), args.random_tokens)
        weight = self.lm_head[ids]
        wanted = batch.pick(batch.features, 1)
        importance = torch.where(batch.answer, 1.0, args.prompt_weight) * batch.valid
        importance = importance / importance.sum()
        teacher = teacher_mix(wanted[batch.valid], weight, args.hard)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = self.head(batch, self.embedding, args.draft_steps, args.noise)
        alive, unit = batch.valid, self.head.feature_scale
        parts, loss = torch.zeros(2), torch.zeros(())
        for y in outputs:
            # A chain is trained only as far as it would be accepted, as in use.
            states, scale = y[alive].float(), importance[alive]
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
        return loss, float(parts[0]), float(parts[1])

    def judge(self, sequences: list[Sequence]) -> tuple[Acceptance, dict[str, float]]:
        """Acceptance on greedy answers: the overall count and the length by source."""
        overall = Acceptance()
        sources: dict[str, Acceptance] = {}
        tables = (self.embedding, self.lm_head)
        counts = simulate(
            self.averaged, sequences, *tables, self.args.num_draft_tokens, torch.bfloat16
        )
        for sequence, count in zip(sequences, counts, strict=True):
            overall.add(count)
            sources.setdefault(sequence.meta["source"], Acceptance()).add(count)
        return overall, {name: round(c.length, 3) for name, c in sorted(sources.items())}


def frequent_tokens(sequences: list[Sequence], vocab: int, count: int) -> Tensor:
    """The most frequent tokens of the answers."""
    counts = torch.zeros(vocab, dtype=torch.int64)
    for s in sequences:
        counts += torch.bincount(s.tokens[s.answer_start :].long(), minlength=vocab)
    best = counts.topk(count)
    share = float(best.values.sum() / counts.sum())
    print(f"the {count} most frequent tokens cover {share:.3f} of the answers", flush=True)
    return best.indices


def measure_scales(sequences: list[Sequence], embedding: Tensor) -> Scales:
    """Sizes of embeddings and of features on (up to 500) answers."""
    features = torch.cat([s.features[s.answer_start :] for s in sequences[:500]]).float()
    return Scales(float(embedding.float().square().mean().sqrt()), features.square().mean(0).sqrt())


def learning_rate(progress: float, peak: float, warm_up: float) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak."""
    if progress < warm_up:
        return peak * progress / warm_up
    along = (progress - warm_up) / (1 - warm_up)
    return peak * (0.02 + 0.49 * (1 + math.cos(math.pi * along)))


def optimizers_for(head: DraftHead, args: Namespace) -> list[torch.optim.Optimizer]:
    """Muon (or AdamW) for matrices; AdamW without decay for vectors (bias, norm)."""
    matrices = [p for p in head.parameters() if p.ndim == 2]
    vectors = [p for p in head.parameters() if p.ndim < 2]
    small = torch.optim.AdamW(vectors, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    if args.optimizer == "muon":
        return [
            small,
            torch.optim.Muon(
                matrices, lr=args.lr, weight_decay=args.weight_decay, adjust_lr_fn="match_rms_adamw"
            ),
        ]
    return [
        small,
        torch.optim.AdamW(matrices, lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay),
    ]


def report(trainer: Trainer, data: Data, recent: list[tuple[float, float]]) -> dict:
    """One log entry: mean losses since the last one and the averaged head's acceptance."""
    count, sources = trainer.judge(data.held_out)
    return {
        "cross_entropy": round(sum(r[0] for r in recent) / len(recent), 4),
        "feature_loss": round(sum(r[1] for r in recent) / len(recent), 4),
        "held_out": round(count.length, 4),
        "on_training": round(trainer.judge(data.training_sample)[0].length, 4),
        "rates": [round(rate, 3) for rate in count.rates()],
        "sources": sources,
    }


def train(trainer: Trainer, data: Data, output: Path, raw_target: dict) -> None:
    """Runs the epochs; saves the averaged head whenever its held-out acceptance is best."""
    args, rng = trainer.args, random.Random(trainer.args.seed)
    started, best, log, judged = time.time(), 0.0, [], 0
    per_epoch = len(make_batches(data.training, args.positions, args.context, rng))
    planned = max(1, round(per_epoch * args.epochs))
    queue: list[list[Sequence]] = []
    recent: list[tuple[float, float]] = []
    step, progress = 0, 0.0
    print(f"{planned} steps, {per_epoch} an epoch", flush=True)
    while progress < 1:
        step += 1
        progress = step / planned
        if args.minutes:
            progress = min(1.0, (time.time() - started) / (60 * args.minutes))
        queue = queue or make_batches(data.training, args.positions, args.context, rng)
        recent.append(trainer.update(queue.pop(), progress))
        if progress * args.evaluations < judged + 1:
            continue
        judged = int(progress * args.evaluations)
        entry = {"step": step, "epochs": round(step / per_epoch, 2)}
        entry |= {"seconds": round(time.time() - started)} | report(trainer, data, recent)
        recent = []
        log.append(entry)
        print(json.dumps(entry), flush=True)
        write_text(output / "log.jsonl", "".join(json.dumps(e) + "\n" for e in log))
        if entry["held_out"] > best:
            best = entry["held_out"]
            save_head(trainer.averaged, output, args.intermediate, raw_target)
    print(f"best held-out acceptance length {best:.4f}", flush=True)


def parse() -> tuple[ArgumentParser, Namespace]:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    add_target(parser)
    parser.add_argument("--output", type=Path, required=True, help="folder of the head")
    parser.add_argument("--init", type=Path, help="head to go on from (default: warm start)")
    parser.add_argument(
        "--copy-layer",
        action="store_true",
        help="start from the target's last layer where shapes agree",
    )
    parser.add_argument("--share", type=float, default=1.0, help="part of the training data")
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument(
        "--minutes", type=float, default=0, help="let the schedule follow the clock instead"
    )
    parser.add_argument("--average", type=float, default=0.98, help="decay of averaged weights")
    parser.add_argument("--draft-steps", type=int, default=1)
    parser.add_argument(
        "--prompt-weight",
        type=float,
        default=0.3,
        help="loss weight of user turns that the target wrote",
    )
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="muon")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warm-up", type=float, default=0.03, help="share of the steps")
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--hard", type=float, default=0.0, help="share of the teacher's best token")
    parser.add_argument("--feature-weight", type=float, default=0.1)
    parser.add_argument("--noise", type=float, default=0.1, help="uniform noise on features")
    parser.add_argument("--intermediate", type=int, default=1536)
    parser.add_argument("--positions", type=int, default=4096, help="query positions a batch")
    parser.add_argument("--context", type=int, default=24_000, help="tokens a batch")
    parser.add_argument("--max-length", type=int, default=1500)
    parser.add_argument("--frequent", type=int, default=6000)
    parser.add_argument("--random-tokens", type=int, default=1000)
    parser.add_argument("--held-out", type=int, default=160, help="sequences judged")
    parser.add_argument("--evaluations", type=int, default=8)
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    return parser, parser.parse_args()


def main() -> None:
    """Trains one head."""
    parser, args = parse()
    need(parser, args.target, args.work / "answers", *([args.init] if args.init else []))
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    template = len(open_tokens(load_tokenizer(args.target), "")) if args.prompt_weight else 0
    data = load_data(args.work / "answers", args.share, args.max_length, template)
    if not data.training or not data.held_out:
        parser.error(f"{args.work / 'answers'} holds no training or no held-out sequences")
    data.held_out = sorted(
        data.held_out, key=lambda s: not s.meta["group"].startswith("spec-bench")
    )[: args.held_out]
    print(
        f"{len(data.training)} sequences with {answer_tokens(data.training)} answer tokens; held "
        f"out {len(data.held_out)} with {answer_tokens(data.held_out)}",
        flush=True,
    )
    config, state = read_config(args.target), load_target_tensors(args.target)
    scales = measure_scales(data.training, state["embed_tokens.weight"])
    if args.init:
        head = load_head(args.init, config, scales)
        args.intermediate = len(head.gate_proj.weight)
    else:
        head = DraftHead(config, args.intermediate, scales)
        warm_start(head, state, data.training[:1500], args.copy_layer)
    lm_head = state.get("lm_head.weight", state["embed_tokens.weight"]).bfloat16()
    trainer = Trainer(
        head,
        state["embed_tokens.weight"].bfloat16(),
        lm_head,
        frequent_tokens(data.training, config.vocab, args.frequent),
        args,
    )
    train(trainer, data, args.output, json.loads((args.target / "config.json").read_text()))


if __name__ == "__main__":
    main()
