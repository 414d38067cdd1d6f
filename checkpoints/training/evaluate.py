"""Acceptance of a draft on the evaluation rows, with the target in float32.

The rows are the Spec-Bench rows with index % 5 == 0 and all HumanEval rows, first turn only. The
target's greedy answers and features are kept in <work>/evaluation and used again.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path

import chain
import draft_model
import eagle
import eagle3
import medusa
import torch
import torch.nn.functional as F
from acceptance import Acceptance
from common import (
    Sequence,
    TargetConfig,
    add_target,
    chat_tokens,
    evaluation_split,
    load_shard,
    load_target_tensors,
    load_tokenizer,
    need,
    read_config,
    read_jsonl,
    save_shard,
    write_tensors,
    write_text,
)
from data import load_data
from record_taps import TapRecorder
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel


def left_padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Tokens and mask, int64 [B, longest prompt]."""
    longest = max(len(p) for p in prompts)
    tokens = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    return tokens, mask


@torch.no_grad()
def answer(
    model: PreTrainedModel, prompts: list[list[int]], new_tokens: int, eos: int
) -> list[tuple[Tensor, Tensor]]:
    """Greedy answers: (tokens int32 [n], features float32 [n, H]) of prompt and answer each.

    The last token of an answer (eos, or the new_tokens-th) is not run, so it is not in tokens.
    """
    tokens, mask = left_padded(prompts)
    longest, cache = tokens.shape[1], DynamicCache()
    seen, states = [tokens], []
    running = torch.ones(len(prompts), dtype=torch.bool)
    lengths = torch.full((len(prompts),), longest)
    for _ in range(new_tokens):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -seen[-1].shape[1] :]
        states.append(
            model.model(
                input_ids=seen[-1],
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
        )
        following = F.linear(states[-1][:, -1], model.lm_head.weight).argmax(-1)
        running &= following != eos
        if not running.any():
            break
        lengths += running
        seen.append(following[:, None])
        mask = F.pad(mask, (0, 1), value=1)
    every, features = torch.cat(seen, 1).int(), torch.cat(states, 1)
    ends = lengths.clamp(max=features.shape[1]).tolist()
    starts = [longest - len(p) for p in prompts]
    return [
        (every[i, a:b].contiguous(), features[i, a:b].contiguous())
        for i, (a, b) in enumerate(zip(starts, ends, strict=True))
    ]


def target_answers(
    directory: Path, rows: list[dict], new_tokens: int, batch: int
) -> list[Sequence]:
    """Runs the target on the rows, longest prompts together, in float32."""
    tokenizer = load_tokenizer(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    prompts = [chat_tokens(tokenizer, row["turns"][0]) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: len(prompts[i]))
    results: list[Sequence] = []
    for first in range(0, len(order), batch):
        part = order[first : first + batch]
        answers = answer(model, [prompts[i] for i in part], new_tokens, read_config(directory).eos)
        for i, (tokens, features) in zip(part, answers, strict=True):
            meta = {key: rows[i][key] for key in ("category", "question_id")}
            results.append(Sequence(tokens, features, len(prompts[i]), meta))
        print(f"{len(results)} of {len(rows)} rows answered", flush=True)
    return results


def table(counts: dict[str, Acceptance]) -> str:
    """A Markdown table of acceptance by category."""
    lines = [
        "| category | rows' tokens | steps | acceptance length | rate at draft position 1.. |",
        "|---|---|---|---|---|",
    ]
    for name, count in counts.items():
        rates = ", ".join(f"{rate:.2f}" for rate in count.rates())
        lines.append(f"| {name} | {count.tokens} | {count.steps} | {count.length:.2f} | {rates} |")
    return "\n".join(lines)


def count_by_category(sequences: list[Sequence], counts: list[Acceptance]) -> dict[str, Acceptance]:
    """Counts by category, then over Spec-Bench (of evaluation rows) and over everything."""
    groups: dict[str, Acceptance] = {}
    for sequence, count in zip(sequences, counts, strict=True):
        category = sequence.meta.get("category")
        names = [category or sequence.meta["source"], "all rows"]
        names += ["Spec-Bench"] * (category not in (None, "code"))
        for name in names:
            groups.setdefault(name, Acceptance()).add(count)
    last = ("Spec-Bench", "all rows")
    return {
        **{k: groups[k] for k in sorted(groups) if k not in last},
        **{k: groups[k] for k in last if k in groups},
    }


@dataclass
class Target:
    """What counting needs of the target."""

    config: TargetConfig
    embedding: Tensor
    lm_head: Tensor

    @classmethod
    def load(cls, directory: Path) -> Target:
        """Reads embedding and LM head, float32."""
        state = load_target_tensors(directory)
        embedding = state["embed_tokens.weight"]
        lm_head = state.get("lm_head.weight", embedding)
        return cls(read_config(directory), embedding, lm_head)


def count_eagle(
    head: Path, target: Target, sequences: list[Sequence], num_draft_tokens: int
) -> list[Acceptance]:
    """EAGLE v1."""
    model = eagle.load_head(head, target.config)
    tables = (target.embedding, target.lm_head)
    return chain.simulate(model, sequences, *tables, num_draft_tokens, torch.float32)


def count_eagle3(
    head: Path, target: Target, sequences: list[Sequence], num_draft_tokens: int
) -> list[Acceptance]:
    """EAGLE-3; sequences have their taps."""
    model = eagle3.load_head(head, target.config)
    tables = (target.embedding, target.lm_head)
    own = (model.lm_head, model.draft_tokens)
    return chain.simulate(model, sequences, *tables, num_draft_tokens, torch.float32, own)


def count_medusa(
    head: Path, target: Target, sequences: list[Sequence], num_draft_tokens: int
) -> list[Acceptance]:
    """Medusa: as many draft tokens as heads."""
    heads = medusa.load_heads(head, target.config)
    return medusa.simulate(heads, sequences, target.lm_head, torch.float32)


def count_model(
    head: Path, target: Target, sequences: list[Sequence], num_draft_tokens: int
) -> list[Acceptance]:
    """A draft model."""
    model = draft_model.load_model(head, target.config)
    return draft_model.simulate(model, sequences, target.lm_head, num_draft_tokens, torch.float32)


def attach_taps(directory: Path, sequences: list[Sequence], kept: Path) -> None:
    """The target's states that EAGLE-3 reads, float32, computed or read from the file kept."""
    lengths = [len(s.tokens) for s in sequences]
    if not kept.exists():
        recorder = TapRecorder(directory, torch.float32, max(lengths))
        states = torch.cat([recorder([s.tokens])[0] for s in sequences])
        write_tensors(kept, {"taps": states})
    parts = load_file(kept)["taps"].split(lengths)
    for sequence, taps in zip(sequences, parts, strict=True):
        sequence.taps = taps


METHODS = {
    "eagle": count_eagle,
    "eagle3": count_eagle3,
    "medusa": count_medusa,
    "model": count_model,
}


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    add_target(parser)
    parser.add_argument("--spec-bench", type=Path, default=Path("spec-bench-questions.jsonl"))
    parser.add_argument("--humaneval", type=Path, default=Path("humaneval-questions.jsonl"))
    parser.add_argument("--head", type=Path, help="folder of the head; without it, only answer")
    parser.add_argument("--method", choices=sorted(METHODS), default="eagle")
    parser.add_argument(
        "--held-out", action="store_true", help="the held-out answers of training instead"
    )
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    args = parser.parse_args()
    need(parser, args.target, *([args.head] if args.head else []))
    torch.set_num_threads(args.threads)
    answers = args.work / "evaluation" / "answers.safetensors"
    if not answers.exists() and not args.held_out:
        need(parser, args.spec_bench, args.humaneval)
        rows = evaluation_split(read_jsonl(args.spec_bench))[1] + read_jsonl(args.humaneval)
        save_shard(answers, target_answers(args.target, rows, args.new_tokens, args.batch))
    if args.head is None:
        return
    if args.held_out:
        sequences = load_data(args.work / "answers", 1.0, 1500, 0, 160).held_out
    else:
        sequences = [s for s in load_shard(answers) if len(s.tokens) > s.answer_start]
    rows_name = "held-out" if args.held_out else "acceptance"
    if args.method == "eagle3":
        kept = answers.with_name(f"taps-{rows_name}.safetensors")
        attach_taps(args.target, sequences, kept)
    target, count = Target.load(args.target), METHODS[args.method]
    counts = count(args.head, target, sequences, args.num_draft_tokens)
    groups = count_by_category(sequences, counts)
    print(table(groups))
    summary = {
        name: {"tokens": c.tokens, "steps": c.steps, "length": c.length, "rates": c.rates()}
        for name, c in groups.items()
    }
    path = args.work / "evaluation" / f"{rows_name}-{args.method}.json"
    write_text(path, json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
