"""Acceptance of a draft head on the evaluation rows, with the target in float32.

The rows are the Spec-Bench rows with index % 5 == 0 and all HumanEval rows, first turn only. The
target's greedy answers and features are kept in <work>/evaluation and used again.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import torch
import torch.nn.functional as F
from common import (
    Sequence,
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
    write_text,
)
from draft import Acceptance, load_head, simulate
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
    """Counts by category, then over Spec-Bench and over everything."""
    groups: dict[str, Acceptance] = {}
    for sequence, count in zip(sequences, counts, strict=True):
        category = sequence.meta["category"]
        names = [category, "all rows"] + ["Spec-Bench"] * (category != "code")
        for name in names:
            groups.setdefault(name, Acceptance()).add(count)
    last = ("Spec-Bench", "all rows")
    return {
        **{k: groups[k] for k in sorted(groups) if k not in last},
        **{k: groups[k] for k in last if k in groups},
    }


def main() -> None:
    """Command line."""
    parser = ArgumentParser(description=__doc__)
    add_target(parser)
    parser.add_argument("--spec-bench", type=Path, default=Path("spec-bench-questions.jsonl"))
    parser.add_argument("--humaneval", type=Path, default=Path("humaneval-questions.jsonl"))
    parser.add_argument("--head", type=Path, help="folder of the head; without it, only answer")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    args = parser.parse_args()
    need(parser, args.target, args.spec_bench, args.humaneval, *([args.head] if args.head else []))
    torch.set_num_threads(args.threads)
    answers = args.work / "evaluation" / "answers.safetensors"
    if not answers.exists():
        rows = evaluation_split(read_jsonl(args.spec_bench))[1] + read_jsonl(args.humaneval)
        save_shard(answers, target_answers(args.target, rows, args.new_tokens, args.batch))
    if args.head is None:
        return
    sequences = [s for s in load_shard(answers) if len(s.tokens) > s.answer_start]
    state = load_target_tensors(args.target)
    embedding = state["embed_tokens.weight"]
    counts = simulate(
        load_head(args.head, read_config(args.target)),
        sequences,
        embedding,
        state.get("lm_head.weight", embedding),
        args.num_draft_tokens,
        torch.float32,
    )
    groups = count_by_category(sequences, counts)
    print(table(groups))
    summary = {
        name: {"tokens": c.tokens, "steps": c.steps, "length": c.length, "rates": c.rates()}
        for name, c in groups.items()
    }
    write_text(args.work / "evaluation" / "acceptance.json", json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
