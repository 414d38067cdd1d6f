"""The EAGLE v1 draft head: weights, multi-step forward, and simulated acceptance.

Positions: the pair (embedding of x[s+1], feature f[s]) stands at position s, and its output y[s]
imitates f[s+1], so lm_head(y[s]) predicts x[s+2]. Draft step j (1-based) at position s belongs to
the anchor s - j + 1: it takes y of step j - 1 at s - 1 instead of f[s], and attends to true-feature
keys up to the anchor and to the keys that steps 2..j made after it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from common import Sequence, TargetConfig, rope_tables, rotate, write_tensors, write_text
from safetensors.torch import load_file
from torch import Tensor, nn

MAX_LENGTH = 2048


@dataclass
class Batch:
    """Sequences padded to one shape: B rows, T context positions, A query positions.

    tokens int64 [B, T]; features float [B, T, H]; starts int64 [B] is the first query position
    (the last one before the target's writing); valid bool [B, A] marks query positions that have
    a label, answer bool [B, A] those that belong to the answer.
    """

    tokens: Tensor
    features: Tensor
    starts: Tensor
    valid: Tensor
    answer: Tensor

    @property
    def positions(self) -> Tensor:
        """Position of every query, int64 [B, A], clamped to the context."""
        span = self.starts[:, None] + torch.arange(self.valid.shape[1])
        return span.clamp(max=self.tokens.shape[1] - 1)

    def pick(self, values: Tensor, shift: int) -> Tensor:
        """values [B, T, ...] at the query positions moved by shift, [B, A, ...]."""
        index = (self.positions + shift).clamp(0, values.shape[1] - 1)
        return values[torch.arange(len(values))[:, None], index]


def collate(sequences: list[Sequence]) -> Batch:
    """Pads sequences; query positions run up to the last label."""
    length = max(len(s.tokens) for s in sequences)
    counts = torch.tensor([len(s.tokens) - s.first_label for s in sequences])
    hidden = sequences[0].features.shape[1]
    tokens = torch.zeros(len(sequences), length, dtype=torch.int64)
    features = torch.zeros(len(sequences), length, hidden, dtype=sequences[0].features.dtype)
    for row, s in enumerate(sequences):
        tokens[row, : len(s.tokens)] = s.tokens
        features[row, : len(s.tokens)] = s.features
    starts = torch.tensor([s.first_label - 1 for s in sequences])
    lead = torch.tensor([s.answer_start - s.first_label for s in sequences])
    index = torch.arange(int(counts.max()))
    return Batch(tokens, features, starts, index < counts[:, None], index >= lead[:, None])


class ScaledLinear(nn.Module):
    """A linear map whose weight is trained in units of its inputs and outputs.

    Embeddings are fifteen times smaller than features and some feature dimensions are much larger
    than others, while Adam moves every weight by about the same amount. `weight` [out, in] and
    `bias` [out] are therefore trained between quantities of unit size; `merged` is what a
    checkpoint holds.
    """

    def __init__(self, into: Tensor, out: Tensor, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(len(out), len(into)) * len(into) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(len(out))) if bias else None
        self.register_buffer("ratio", out[:, None] / into[None], persistent=False)
        self.register_buffer("out_scale", out, persistent=False)

    def merged(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias in the units of the checkpoint."""
        bias = None if self.bias is None else self.bias * self.out_scale
        return self.weight * self.ratio, bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, *self.merged())


@dataclass
class Scales:
    """Root mean squares: of the embeddings (one number) and of each feature dimension [H]."""

    embedding: float
    feature: Tensor


class DraftHead(nn.Module):
    """fc over [embedding, feature] and one Llama layer without input norm."""

    def __init__(self, config: TargetConfig, intermediate: int, scales: Scales) -> None:
        super().__init__()
        self.config, hidden, feature = config, config.hidden, scales.feature
        unit = torch.ones(hidden)
        kv_unit, mlp_unit = torch.ones(config.kv_heads * config.head_dim), torch.ones(intermediate)
        self.fc = ScaledLinear(torch.cat((unit * scales.embedding, feature)), feature, bias=True)
        self.q_proj = ScaledLinear(feature, unit)
        self.k_proj = ScaledLinear(feature, kv_unit)
        self.v_proj = ScaledLinear(feature, kv_unit)
        self.o_proj = ScaledLinear(unit, feature)
        normed = feature / feature.square().mean().sqrt()  # after the norm, at its start of ones
        self.gate_proj = ScaledLinear(normed, mlp_unit)
        self.up_proj = ScaledLinear(normed, mlp_unit)
        self.down_proj = ScaledLinear(mlp_unit, feature)
        self.norm = nn.Parameter(unit)
        self.embedding_scale = scales.embedding
        self.register_buffer("feature_scale", feature, persistent=False)
        cos, sin = rope_tables(MAX_LENGTH, config.head_dim, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def public_tensors(self) -> dict[str, Tensor]:
        """float32 tensors under the names of public EAGLE v1 checkpoints."""
        tensors = {"layers.0.post_attention_layernorm.weight": self.norm.detach()}
        for own, module in self.named_children():
            weight, bias = module.merged()
            tensors[f"{public_prefix(own)}.weight"] = weight.detach()
            if bias is not None:
                tensors[f"{public_prefix(own)}.bias"] = bias.detach()
        return {name: tensor.float().contiguous() for name, tensor in tensors.items()}

    @torch.no_grad()
    def take(self, tensors: dict[str, Tensor]) -> None:
        """Sets the parameters from tensors under their public names."""
        own = self.public_tensors()
        for name in own:
            if name not in tensors or own[name].shape != tensors[name].shape:
                raise SystemExit(f"{name} is missing or misshapen")
        self.norm.copy_(tensors["layers.0.post_attention_layernorm.weight"])
        for name, module in self.named_children():
            module.weight.copy_(tensors[f"{public_prefix(name)}.weight"] / module.ratio)
            if module.bias is not None:
                module.bias.copy_(tensors[f"{public_prefix(name)}.bias"] / module.out_scale)

    def heads(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """Splits [B, N, heads * d] into [B, heads, N, d], rotated where positions are given."""
        x = x.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)
        if positions is None:
            return x
        return rotate(x, self.cos[positions][:, None], self.sin[positions][:, None]).to(x.dtype)

    def keys_values(self, u: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, kv heads, N, d] of u [B, N, H] at positions [B, N]."""
        return self.heads(self.k_proj(u), positions), self.heads(self.v_proj(u), None)

    def layer(
        self, u: Tensor, positions: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> Tensor:
        """y [B, A, H] of u [B, A, H]; mask bool [B, 1, A, keys]."""
        attended = F.scaled_dot_product_attention(
            self.heads(self.q_proj(u), positions),
            *(
                t.repeat_interleave(self.config.heads // self.config.kv_heads, 1)
                for t in (keys, values)
            ),
            attn_mask=mask,
        )
        x = u + self.o_proj(attended.transpose(1, 2).flatten(2))
        normed = F.rms_norm(x.float(), self.norm.shape, self.norm, self.config.eps)
        return x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))

    def forward(
        self, batch: Batch, embedding: Tensor, steps: int, noise: float = 0.0
    ) -> list[Tensor]:
        """y of every draft step, each [B, A, H]. embedding [V, H]; noise is uniform +-noise."""
        features = batch.features
        if noise:
            features = features + (torch.rand(features.shape) * 2 - 1) * (
                noise * self.feature_scale
            )
        following = batch.tokens.roll(-1, 1)
        u = self.fc(torch.cat((embedding[following], features.to(embedding.dtype)), -1))
        context = torch.arange(u.shape[1])[None]
        keys, values = self.keys_values(u, context.expand(len(u), -1))
        positions = batch.positions
        index = torch.arange(positions.shape[1])
        query_embedding = embedding[batch.pick(following, 0)]
        u, outputs, own_masks = batch.pick(u, 0), [], []
        for step in range(1, steps + 1):
            true_mask = context[:, None] <= (positions - step + 1)[:, :, None]
            mask = torch.cat([true_mask, *(m.expand(len(u), -1, -1) for m in own_masks)], -1)
            outputs.append(self.layer(u, positions, keys, values, mask[:, None]))
            if step == steps:
                break
            before = F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1]
            u = self.fc(torch.cat((query_embedding, before.to(embedding.dtype)), -1))
            new = self.keys_values(u, positions)
            keys, values = (torch.cat(pair, 2) for pair in zip((keys, values), new, strict=True))
            # keys of step i at s - (j - i), for the queries of the next step j at s
            own_masks = [index[None] == index[:, None] - (step + 1 - i) for i in range(2, step + 2)]
        return outputs


def public_prefix(name: str) -> str:
    """A module's name in public checkpoints."""
    if name == "fc":
        return name
    return f"layers.0.{'self_attn' if name[0] in 'qkvo' else 'mlp'}.{name}"


@torch.no_grad()
def fit_fc(
    head: DraftHead, sequences: list[Sequence], embedding: Tensor, ridge: float = 1e-3
) -> None:
    """Least squares of f[s+1] on (embedding of x[s+1], f[s], 1) over answer positions."""
    width = 2 * head.config.hidden + 1
    products = torch.zeros(width, width)
    targets = torch.zeros(width, head.config.hidden)
    scale = head.feature_scale
    for s in sequences:
        at = slice(s.answer_start - 1, len(s.tokens) - 1)
        features = s.features.float() / scale
        following = embedding[s.tokens[s.answer_start :].long()] / head.embedding_scale
        inputs = torch.cat((following, features[at], torch.ones(len(following), 1)), -1)
        products += inputs.T @ inputs
        targets += inputs.T @ features[s.answer_start :]
    products.diagonal().add_(ridge * float(products.diagonal().mean()))
    solution = torch.linalg.solve(products, targets)
    head.fc.weight.copy_(solution[:-1].T)
    assert head.fc.bias is not None
    head.fc.bias.copy_(solution[-1])


@torch.no_grad()
def warm_start(
    head: DraftHead, state: dict[str, Tensor], sequences: list[Sequence], copy_layer: bool
) -> None:
    """fc is fitted to the next feature and the layer's outputs begin small.

    A linear fit starts far below the loss of passing the feature through unchanged, which
    predicts the previous token again with confidence.

    With copy_layer, queries, keys, values, gate and up come from the target's last layer. That
    layer reads a normed residual, which is the feature divided by the final norm's weight.
    """
    fit_fc(head, sequences, state["embed_tokens.weight"])
    head.o_proj.weight.mul_(0.1)
    head.down_proj.weight.mul_(0.1)
    if not copy_layer:
        return
    tensors = head.public_tensors()
    last = f"layers.{head.config.layers - 1}."
    for name, norm in (
        ("q_proj", "input"),
        ("k_proj", "input"),
        ("v_proj", "input"),
        ("gate_proj", "post_attention"),
        ("up_proj", "post_attention"),
    ):
        public = f"{public_prefix(name)}.weight"
        scale = state[f"{last}{norm}_layernorm.weight"] / state["norm.weight"]
        if norm == "post_attention":  # the head's own norm divides by this already
            scale = scale * head.feature_scale.square().mean().sqrt()
        source = state[public.replace("layers.0.", last)] * scale
        if source.shape == tensors[public].shape:
            tensors[public] = source
    head.take(tensors)


def save_head(head: DraftHead, directory: Path, intermediate: int, raw_target: dict) -> None:
    """Writes config.json and model.safetensors in the public EAGLE v1 layout."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bias": True,
        "num_hidden_layers": 1,
        "intermediate_size": intermediate,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "rope_scaling": None,
        "use_cache": True,
        **{
            key: raw_target[key]
            for key in (
                "hidden_size",
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "vocab_size",
                "rms_norm_eps",
                "rope_theta",
                "hidden_act",
                "initializer_range",
                "max_position_embeddings",
                "bos_token_id",
                "eos_token_id",
                "pad_token_id",
            )
        },
    }
    write_tensors(directory / "model.safetensors", head.public_tensors(), {"format": "pt"})
    write_text(directory / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_head(directory: Path, config: TargetConfig, scales: Scales | None = None) -> DraftHead:
    """Reads a head; refuses missing, unknown or misshapen tensors. Scales matter to training."""
    tensors = load_file(directory / "model.safetensors")
    gate = tensors.get("layers.0.mlp.gate_proj.weight")
    if gate is None:
        raise SystemExit(f"{directory} does not hold an EAGLE v1 head")
    head = DraftHead(config, len(gate), scales or Scales(1.0, torch.ones(config.hidden)))
    unknown = set(tensors) - set(head.public_tensors())
    if unknown:
        raise SystemExit(f"{directory}: unknown tensors {sorted(unknown)}")
    head.take(tensors)
    return head


@dataclass
class Acceptance:
    """Counts over greedy verification steps."""

    tokens: int = 0
    steps: int = 0
    reached: list[int] | None = None  # steps in which draft position j was judged
    accepted: list[int] | None = None  # steps in which it was accepted

    def add(self, other: Acceptance) -> None:
        """Adds another count to this one."""
        self.tokens += other.tokens
        self.steps += other.steps
        for mine in ("reached", "accepted"):
            old, new = getattr(self, mine), getattr(other, mine)
            merged = new if old is None else [a + b for a, b in zip(old, new, strict=True)]
            setattr(self, mine, merged)

    @property
    def length(self) -> float:
        """Tokens committed per verification step, the target's own token included."""
        return self.tokens / max(1, self.steps)

    def rates(self) -> list[float]:
        """Acceptance rate of each draft position among the steps that reached it."""
        pairs = zip(self.accepted or [], self.reached or [], strict=True)
        return [a / max(1, r) for a, r in pairs]


def walk(matches: Tensor) -> Acceptance:
    """Greedy speculation over one answer.

    matches bool [k, L]: whether draft step j at query position i equals the target's token. The
    token before query position 0 comes from the prompt; L tokens follow. Draft step j of the
    verification step at anchor i stands at query position i + j - 1.
    """
    k, length = matches.shape
    rows, count = matches.tolist(), Acceptance(reached=[0] * k, accepted=[0] * k)
    assert count.reached is not None and count.accepted is not None
    anchor = 0
    while anchor < length:
        accepted = 0
        while accepted < min(k, length - anchor):
            count.reached[accepted] += 1
            if not rows[accepted][anchor + accepted]:
                break
            count.accepted[accepted] += 1
            accepted += 1
        committed = min(accepted + 1, length - anchor)
        count.tokens, count.steps = count.tokens + committed, count.steps + 1
        anchor += committed
    return count


@torch.no_grad()
def simulate(
    head: DraftHead,
    sequences: list[Sequence],
    embedding: Tensor,
    lm_head: Tensor,
    num_draft_tokens: int,
    dtype: torch.dtype,
) -> list[Acceptance]:
    """Exact greedy acceptance on greedy answers with recorded features, one count a sequence.

    A draft token is judged only while all before it were right, so feeding the true tokens
    instead of the drafted ones gives the same counts.
    """
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].tokens))
    results: dict[int, Acceptance] = {}
    for first in range(0, len(order), 8):
        rows = order[first : first + 8]
        batch = collate([sequences[i] for i in rows])
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            outputs = head(batch, embedding.to(dtype), num_draft_tokens)
            labels = best_tokens(batch.pick(batch.features, 1)[batch.valid], lm_head)
            matches = torch.zeros(num_draft_tokens, *batch.valid.shape, dtype=torch.bool)
            for step, y in enumerate(outputs):
                matches[step][batch.valid] = best_tokens(y[batch.valid], lm_head) == labels
        for row, index in enumerate(rows):
            results[index] = walk(matches[:, row, : int(batch.valid[row].sum())])
    return [results[i] for i in range(len(sequences))]


def best_tokens(states: Tensor, lm_head: Tensor, chunk: int = 256) -> Tensor:
    """Greedy tokens int64 [N] of states [N, H] under lm_head [V, H]."""
    parts = states.to(lm_head.dtype).split(chunk)
    return torch.cat([F.linear(part, lm_head).float().argmax(-1) for part in parts])
