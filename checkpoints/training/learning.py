"""What the trainings share: distillation loss, optimizers, schedule, and the loop itself."""

from __future__ import annotations

import copy
import json
import math
import random
import time
from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from acceptance import Acceptance
from common import Sequence, add_target, write_text
from data import Data, make_batches
from torch import Tensor, nn

LOSS_CHUNK = 256  # rows of logits worked on at a time, so that they stay in the cache


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
    """Weighted sum of cross-entropies, with the gradients computed chunk by chunk in forward.

    states [P, H]; weight bfloat16 [V', H], trained if it wants a gradient; teacher bfloat16
    [P, V']; scale [P]. Also returns whether the best token agrees with the teacher's, bool [P].
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, teacher: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        total, gradients, agree = torch.zeros(()), [], []
        trained = ctx.needs_input_grad[1]
        weight_gradient = torch.zeros(weight.shape if trained else (0,))
        parts = (t.split(LOSS_CHUNK) for t in (states, teacher, scale))
        for y, q, w in zip(*parts, strict=True):
            inputs = y.to(weight.dtype)
            logits = F.linear(inputs, weight).float()
            agree.append(logits.argmax(-1) == q.float().argmax(-1))
            log_p = logits.log_softmax(-1)
            total += -((q * log_p).sum(-1) * w).sum()
            difference = log_p.exp_().sub_(q).mul_(w[:, None]).to(weight.dtype)
            gradients.append((difference @ weight).float())
            if trained:
                weight_gradient += difference.T @ inputs
        ctx.save_for_backward(torch.cat(gradients), weight_gradient)
        agreement = torch.cat(agree)
        ctx.mark_non_differentiable(agreement)
        return total, agreement

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        states, weight = ctx.saved_tensors
        trained = ctx.needs_input_grad[1]
        return grad * states, (grad * weight).bfloat16() if trained else None, None, None


class Trainer(ABC):
    """One training run of a model; subclasses bring the loss, the judgement and the file."""

    loss_names: tuple[str, ...] = ("cross_entropy",)

    def __init__(self, model: nn.Module, args: Namespace) -> None:
        self.model, self.args = model, args
        self.averaged = copy.deepcopy(model)
        self.optimizers = optimizers_for(model, args)

    @abstractmethod
    def loss(self, sequences: list[Sequence]) -> tuple[Tensor, list[float]]:
        """The loss of a batch, and the parts of it that loss_names lists."""

    @abstractmethod
    def count(self, sequences: list[Sequence]) -> list[Acceptance]:
        """Simulated acceptance of the averaged model on each greedy answer."""

    @abstractmethod
    def save(self, output: Path) -> None:
        """Writes the averaged model in its public layout."""

    def update(self, sequences: list[Sequence], progress: float) -> list[float]:
        """One step of the optimizers; returns the parts of the loss."""
        for group in (g for o in self.optimizers for g in o.param_groups):
            group["lr"] = group["peak"] * schedule(progress, self.args.warm_up)
        loss, parts = self.loss(sequences)
        self.model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            pairs = zip(self.averaged.parameters(), self.model.parameters(), strict=True)
            for mean, parameter in pairs:
                mean.lerp_(parameter, 1 - self.args.average)
        return parts

    def judge(self, sequences: list[Sequence]) -> tuple[Acceptance, dict[str, float]]:
        """Acceptance on greedy answers: the overall count and the length by source."""
        overall = Acceptance()
        sources: dict[str, Acceptance] = {}
        for sequence, count in zip(sequences, self.count(sequences), strict=True):
            overall.add(count)
            sources.setdefault(sequence.meta["source"], Acceptance()).add(count)
        return overall, {name: round(c.length, 3) for name, c in sorted(sources.items())}

    def report(self, data: Data, recent: list[list[float]]) -> dict:
        """One log entry: mean losses since the last one and the averaged model's acceptance."""
        count, sources = self.judge(data.held_out)
        columns = zip(*recent, strict=True)
        losses = {
            name: round(sum(column) / len(column), 4)
            for name, column in zip(self.loss_names, columns, strict=True)
        }
        return losses | {
            "held_out": round(count.length, 4),
            "on_training": round(self.judge(data.training_sample)[0].length, 4),
            "rates": [round(rate, 3) for rate in count.rates()],
            "sources": sources,
        }


def schedule(progress: float, warm_up: float) -> float:
    """Part of the peak rate: linear warm-up, then a cosine down to a fiftieth."""
    if progress < warm_up:
        return progress / warm_up
    along = (progress - warm_up) / (1 - warm_up)
    return 0.02 + 0.49 * (1 + math.cos(math.pi * along))


def optimizers_for(model: nn.Module, args: Namespace) -> list[torch.optim.Optimizer]:
    """Muon (or AdamW) for matrices; AdamW without decay for vectors (bias, norm).

    Tables of one row a token (LM head, embedding) get AdamW at a rate of their own.
    """
    matrices, tables, vectors = [], [], []
    for parameter in model.parameters():
        is_table = parameter.ndim == 2 and len(parameter) > args.table_rows
        (tables if is_table else vectors if parameter.ndim < 2 else matrices).append(parameter)
    table_lr = args.table_lr or args.lr
    groups: list[dict[str, Any]] = [{"params": vectors, "lr": args.lr, "weight_decay": 0.0}]
    if tables:
        groups.append({"params": tables, "lr": table_lr, "weight_decay": 0.0})
    decayed = {"lr": args.lr, "weight_decay": args.weight_decay}
    if args.optimizer == "muon":
        matrix = [torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", **decayed)]
    else:
        groups.append({"params": matrices, **decayed})
        matrix = []
    optimizers = [torch.optim.AdamW(groups, betas=(0.9, 0.95)), *matrix]
    for group in (g for o in optimizers for g in o.param_groups):
        group["peak"] = group["lr"]
    return optimizers


def train(trainer: Trainer, data: Data, output: Path) -> None:
    """Runs the epochs; saves the averaged model whenever its held-out acceptance is best."""
    args, rng = trainer.args, random.Random(trainer.args.seed)
    started, best, log, judged = time.time(), 0.0, [], 0
    per_epoch = len(make_batches(data.training, args.positions, args.context, rng))
    planned = max(1, round(per_epoch * args.epochs))
    queue: list[list[Sequence]] = []
    recent: list[list[float]] = []
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
        entry |= {"seconds": round(time.time() - started)} | trainer.report(data, recent)
        recent = []
        log.append(entry)
        print(json.dumps(entry), flush=True)
        write_text(output / "log.jsonl", "".join(json.dumps(e) + "\n" for e in log))
        if entry["held_out"] > best:
            best = entry["held_out"]
            trainer.save(output)
    print(f"best held-out acceptance length {best:.4f}", flush=True)


def training_parser(description: str | None, **defaults: Any) -> ArgumentParser:
    """The options that every training takes; defaults replace the usual ones."""
    parser = ArgumentParser(description=description)
    add_target(parser)
    parser.add_argument("--output", type=Path, required=True, help="folder of the result")
    parser.add_argument("--share", type=float, default=1.0, help="part of the training data")
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument(
        "--minutes", type=float, default=0, help="let the schedule follow the clock instead"
    )
    parser.add_argument("--average", type=float, default=0.98, help="decay of averaged weights")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="muon")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--table-lr", type=float, help="rate of LM head and embedding")
    parser.add_argument("--table-rows", type=int, default=4000, help="more rows make a table")
    parser.add_argument("--warm-up", type=float, default=0.03, help="share of the steps")
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--hard", type=float, default=0.0, help="share of the teacher's best token")
    parser.add_argument("--positions", type=int, default=4096, help="query positions a batch")
    parser.add_argument("--context", type=int, default=24_000, help="tokens a batch")
    parser.add_argument("--max-length", type=int, default=1500)
    parser.add_argument("--frequent", type=int, default=6000)
    parser.add_argument("--random-tokens", type=int, default=1000)
    parser.add_argument("--held-out", type=int, default=160, help="sequences judged")
    parser.add_argument("--evaluations", type=int, default=8)
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(**defaults)
    return parser
