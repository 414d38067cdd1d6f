"""A small Llama as draft model: weights, forward, start from the target, simulated acceptance."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from acceptance import Acceptance, best_tokens, walk
from common import Sequence, TargetConfig, rope_tables, rotate, write_tensors, write_text
from safetensors.torch import load_file
from torch import Tensor, nn

MAX_LENGTH = 2048
FIRST_SCALE = 0.25  # of the final norm: the first guesses are soft
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(frozen=True)
class Shape:
    """Sizes of the draft model that are not the target's."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int = 64


class DraftLayer(nn.Module):
    """One Llama layer, its parameters named as in Hugging Face checkpoints."""

    def __init__(self, shape: Shape, eps: float) -> None:
        super().__init__()
        self.shape, self.eps = shape, eps
        hidden, width = shape.hidden, shape.heads * shape.head_dim
        kv_width = shape.kv_heads * shape.head_dim

        def linear(into: int, out: int, gain: float = 1.0) -> nn.Linear:
            module = nn.Linear(into, out, bias=False)
            nn.init.normal_(module.weight, std=gain * into**-0.5)
            return module

        self.self_attn = nn.ModuleDict(
            {
                "q_proj": linear(hidden, width),
                "k_proj": linear(hidden, kv_width),
                "v_proj": linear(hidden, kv_width),
                "o_proj": linear(width, hidden, gain=0.1),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": linear(hidden, shape.intermediate),
                "up_proj": linear(hidden, shape.intermediate),
                "down_proj": linear(shape.intermediate, hidden, gain=0.1),
            }
        )
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x float32 [B, T, H]; cos and sin [T, d / 2]."""
        normed = self.input_layernorm(x)
        q, k, v = (
            self.self_attn[f"{name}_proj"](normed)
            .unflatten(-1, (-1, self.shape.head_dim))
            .transpose(1, 2)
            for name in "qkv"
        )
        q, k = (rotate(t.float(), cos, sin).to(t.dtype) for t in (q, k))
        groups = self.shape.heads // self.shape.kv_heads
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.self_attn["o_proj"](attended.transpose(1, 2).flatten(2))
        normed = self.post_attention_layernorm(x)
        gate, up = self.mlp["gate_proj"](normed), self.mlp["up_proj"](normed)
        return x + self.mlp["down_proj"](F.silu(gate) * up)


class DraftModel(nn.Module):
    """Embedding (also the LM head), layers, final norm."""

    def __init__(self, shape: Shape, config: TargetConfig) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(config.vocab, shape.hidden)
        self.layers = nn.ModuleList(DraftLayer(shape, config.eps) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, config.eps)
        nn.init.constant_(self.norm.weight, FIRST_SCALE)
        cos, sin = rope_tables(MAX_LENGTH, shape.head_dim, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """What the LM head reads, [B, T, H] of tokens int64 [B, T] padded on the right."""
        length = tokens.shape[1]
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.norm(x)


@torch.no_grad()
def fit_embedding(model: DraftModel, embedding: Tensor, features: Tensor, counts: Tensor) -> Tensor:
    """Sets the best embedding of this width for the target's logits.

    Of all factors that give E f (embedding [V, H], features [N, H]) through fewer dimensions, the
    one with the smallest squared error over the features, rare tokens counting less. The LM head
    then wants inputs of unit size in every dimension, as the final norm gives them; returns the
    map [H, width] that makes such inputs of features.
    """
    second = features.T @ features / len(features)
    values, vectors = torch.linalg.eigh(second)
    sizes = values.clamp(min=1e-6 * float(values[-1])).sqrt()
    target = embedding @ (vectors * sizes)
    importance = counts.float() / counts.sum() + 0.1 / len(counts)
    centre = (importance[:, None] * target).sum(0) / importance.sum()
    weighted = (target - centre) * importance.sqrt()[:, None]  # a common shift changes nothing
    directions = torch.linalg.eigh(weighted.T @ weighted)[1].flip(-1)[:, : model.shape.hidden]
    model.embed_tokens.weight.copy_((target - centre) @ directions)
    return (vectors / sizes) @ directions


def collate(sequences: list[Sequence]) -> Tensor:
    """Tokens padded with zeros, int64 [B, T]."""
    return nn.utils.rnn.pad_sequence([s.tokens.long() for s in sequences], batch_first=True)


def save_model(model: DraftModel, directory: Path, target: Path) -> None:
    """Writes a Hugging Face directory with the target's tokenizer."""
    shape, raw = model.shape, json.loads((target / "config.json").read_text())
    raw = {name: value for name, value in raw.items() if not name.startswith("_")}
    raw |= {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }
    tensors = {f"model.{k}": t.detach().bfloat16() for k, t in model.state_dict().items()}
    write_tensors(directory / "model.safetensors", tensors, {"format": "pt"})
    write_text(directory / "config.json", json.dumps(raw, indent=2, sort_keys=True) + "\n")
    for name in TOKENIZER_FILES:
        if (target / name).exists():
            shutil.copyfile(target / name, directory / name)


def load_model(directory: Path, config: TargetConfig) -> DraftModel:
    """Reads a draft model, as float32."""
    raw = json.loads((directory / "config.json").read_text())
    shape = Shape(
        raw["hidden_size"],
        raw["num_hidden_layers"],
        raw["intermediate_size"],
        raw["num_attention_heads"],
        raw["num_key_value_heads"],
        raw["head_dim"],
    )
    model = DraftModel(shape, config)
    tensors = load_file(directory / "model.safetensors")
    model.load_state_dict({k.removeprefix("model."): t.float() for k, t in tensors.items()})
    return model


@torch.no_grad()
def simulate(
    model: DraftModel,
    sequences: list[Sequence],
    lm_head: Tensor,
    num_draft_tokens: int,
    dtype: torch.dtype,
) -> list[Acceptance]:
    """Exact greedy acceptance of a chain, one count a sequence.

    The model reads tokens alone: while all draft tokens before are right, its choice at a position
    is the same for every anchor.
    """
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].tokens))
    results: dict[int, Acceptance] = {}
    for first in range(0, len(order), 8):
        rows = order[first : first + 8]
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            outputs = model(collate([sequences[i] for i in rows]))
            for row, index in enumerate(rows):
                s = sequences[index]
                states = outputs[row, s.answer_start : len(s.tokens)]
                chosen = best_tokens(states.float(), model.embed_tokens.weight.to(dtype))
                labels = best_tokens(s.features[s.answer_start :], lm_head)
                results[index] = walk((chosen == labels).expand(num_draft_tokens, -1))
    return [results[i] for i in range(len(sequences))]
