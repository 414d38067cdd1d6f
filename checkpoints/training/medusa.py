"""Medusa heads over the target's own LM head: weights, forward, and simulated acceptance.

Head i reads the feature f[t] alone and guesses x[t + 2 + i], as
lm_head(f[t] + SiLU(W f[t] + b)).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from acceptance import Acceptance, best_tokens, walk
from common import Sequence, TargetConfig, write_tensors, write_text
from safetensors.torch import load_file
from torch import Tensor, nn

WEIGHTS = "medusa_lm_head.safetensors"


class MedusaHeads(nn.Module):
    """One residual block a head; the blocks start as nothing, so every head as the LM head."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(hidden, hidden) for _ in range(heads))
        self.biases = nn.ParameterList(torch.zeros(hidden) for _ in range(heads))

    def forward(self, features: Tensor, head: int) -> Tensor:
        """What the LM head reads, [N, H] of features [N, H]."""
        return features + F.silu(F.linear(features, self.weights[head], self.biases[head]))

    def public_tensors(self) -> dict[str, Tensor]:
        """Tensors under the names of FasterDecoding's checkpoints."""
        pairs = enumerate(zip(self.weights, self.biases, strict=True))
        return {
            f"{head}.0.linear.{name}": tensor.detach().clone()
            for head, (weight, bias) in pairs
            for name, tensor in (("weight", weight), ("bias", bias))
        }


def save_heads(heads: MedusaHeads, directory: Path, base_model: str) -> None:
    """Writes config.json and bfloat16 weights."""
    config = {
        "medusa_num_heads": len(heads.weights),
        "medusa_num_layers": 1,
        "base_model_name_or_path": base_model,
        "version": "2",
    }
    tensors = {name: tensor.bfloat16() for name, tensor in heads.public_tensors().items()}
    write_tensors(directory / WEIGHTS, tensors, {"format": "pt"})
    write_text(directory / "config.json", json.dumps(config, indent=2) + "\n")


@torch.no_grad()
def load_heads(directory: Path, config: TargetConfig) -> MedusaHeads:
    """Reads heads, as float32."""
    number = json.loads((directory / "config.json").read_text())["medusa_num_heads"]
    heads, tensors = MedusaHeads(config.hidden, number), load_file(directory / WEIGHTS)
    for head in range(number):
        heads.weights[head].copy_(tensors[f"{head}.0.linear.weight"])
        heads.biases[head].copy_(tensors[f"{head}.0.linear.bias"])
    return heads


@torch.no_grad()
def simulate(
    heads: MedusaHeads, sequences: list[Sequence], lm_head: Tensor, dtype: torch.dtype
) -> list[Acceptance]:
    """Exact greedy acceptance of each head's best token, one count a sequence."""
    results = []
    for s in sequences:
        states = s.features[s.answer_start - 1 :].to(dtype)
        labels = best_tokens(states[1:], lm_head)
        matches = torch.zeros(len(heads.weights), len(labels), dtype=torch.bool)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            for i in range(min(len(heads.weights), len(labels))):
                # head i at anchor a guesses what stands at query position a + i
                outputs = heads(states[: len(labels) - i], i)
                matches[i, i:] = best_tokens(outputs, lm_head) == labels[i:]
        results.append(walk(matches))
    return results
