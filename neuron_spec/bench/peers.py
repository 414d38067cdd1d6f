"""What people would run instead, on the same weights: measured in the same run as ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Peer = Callable[[Sequence[int], int], list[int]]
"""(prompt ids, number of new tokens) -> new token ids, greedy; stops earlier at an end of text."""


def transformers_generate(directory: Path, *, dtype: str, device: str) -> Peer:
    """transformers' `generate`, greedy, without speculation."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(str(directory), dtype=getattr(torch, dtype))
    model = model.to(device).eval()

    def generate(prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
        ids = torch.tensor([list(prompt_ids)], device=device)
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                do_sample=False,
            )
        tokens: list[int] = output[0, len(prompt_ids) :].tolist()
        return tokens

    return generate


PEERS: dict[str, Callable[..., Peer]] = {"transformers": transformers_generate}
