"""What EAGLE heads share: one Llama layer run as a chain of draft steps, and its acceptance.

Positions: the pair (embedding of x[s+1], feature f[s]) stands at position s, and its output y[s]
leads to a guess of x[s+2]. Draft step j (1-based) at position s belongs to the anchor s - j + 1:
it takes y of step j - 1 at s - 1 in the place of f[s], and attends to true-feature keys up to the
anchor and to the keys that steps 2..j made after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from acceptance import Acceptance, best_tokens, walk
from common import Sequence, TargetConfig, rope_tables, rotate
from data import Batch, collate
from torch import Tensor, nn

MAX_LENGTH = 2048


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
    """Root mean squares: of the embeddings (one number) and of each feature dimension."""

    embedding: float
    feature: Tensor


class ChainHead(nn.Module, ABC):
    """One Llama layer over embeddings and features; subclasses say how the two are joined.

    Modules: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj; `norm` is the weight of
    the norm before the MLP.
    """

    feature_scale: Tensor

    def __init__(self, config: TargetConfig, scales: Scales) -> None:
        super().__init__()
        self.config = config
        self.embedding_scale = scales.embedding
        self.register_buffer("feature_scale", scales.feature, persistent=False)
        cos, sin = rope_tables(MAX_LENGTH, config.head_dim, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def first(self, features: Tensor) -> Tensor:
        """What a true feature is to the layer; the layer's own output has that form already."""
        return features

    @abstractmethod
    def join(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The attention's input and the residual it is added to, both [..., *]."""

    @abstractmethod
    def read_out(self, outputs: Tensor) -> Tensor:
        """What the LM head reads of y."""

    @abstractmethod
    def public_tensors(self) -> dict[str, Tensor]:
        """float32 tensors under the names of public checkpoints."""

    def linears(self) -> dict[str, ScaledLinear]:
        """The linear maps by name."""
        return {n: m for n, m in self.named_children() if isinstance(m, ScaledLinear)}

    @torch.no_grad()
    def take(self, tensors: dict[str, Tensor], names: dict[str, str]) -> None:
        """Sets linear maps and plain parameters from tensors; names maps own to public ones."""
        linears, parameters = self.linears(), dict(self.named_parameters())
        for own, public in names.items():
            if own not in linears:
                parameters[own].copy_(tensors[public])
                continue
            module = linears[own]
            module.weight.copy_(tensors[f"{public}.weight"] / module.ratio)
            if module.bias is not None:
                module.bias.copy_(tensors[f"{public}.bias"] / module.out_scale)

    def public(self, names: dict[str, str]) -> dict[str, Tensor]:
        """The tensors of the parameters in names, as checkpoints hold them."""
        linears, parameters = self.linears(), dict(self.named_parameters())
        tensors = {}
        for own, public in names.items():
            if own not in linears:
                tensors[public] = parameters[own]
                continue
            weight, bias = linears[own].merged()
            tensors[f"{public}.weight"] = weight
            if bias is not None:
                tensors[f"{public}.bias"] = bias
        return {name: t.detach().float().contiguous() for name, t in tensors.items()}

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
        self,
        inputs: Tensor,
        residual: Tensor,
        positions: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """y [B, A, H] of the attention's input and the residual; mask bool [B, 1, A, keys]."""
        attended = F.scaled_dot_product_attention(
            self.heads(self.q_proj(inputs), positions),
            *(
                t.repeat_interleave(self.config.heads // self.config.kv_heads, 1)
                for t in (keys, values)
            ),
            attn_mask=mask,
        )
        x = residual + self.o_proj(attended.transpose(1, 2).flatten(2))
        normed = F.rms_norm(x.float(), self.norm.shape, self.norm, self.config.eps)
        return x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))


class Chain:
    """Draft steps over a batch, one after the other, each only where it is wanted.

    embedding [V, H] is the target's; noise is uniform +-noise on the true features.
    """

    def __init__(
        self, head: ChainHead, batch: Batch, embedding: Tensor, noise: float = 0.0
    ) -> None:
        self.head, self.batch = head, batch
        features = batch.inputs
        if noise:
            features = features + (torch.rand(features.shape) * 2 - 1) * (
                noise * head.feature_scale
            )
        following = batch.tokens.roll(-1, 1)
        self.inputs, self.residual = head.join(
            embedding[following], head.first(features.to(embedding.dtype))
        )
        self.embedded = embedding[batch.pick(following, 0)]
        self.context = torch.arange(self.inputs.shape[1])[None]
        every = self.context.expand(len(self.inputs), -1)
        self.keys, self.values = head.keys_values(self.inputs, every)
        self.made: list[Tensor] = []  # query positions of the keys of steps 2, 3, ..
        self.outputs = self.inputs  # of the last step, [B, A, H] once there is one
        self.number = 0

    def step(self, alive: Tensor) -> Tensor:
        """y of the next step, [P, H] at the P query positions where alive (bool [B, A]) is true.

        The step before must have been alive one position earlier.
        """
        self.number += 1
        index, there = packed(alive)
        rows = torch.arange(len(index))[:, None]
        positions = self.batch.positions[rows, index]
        if self.number == 1:
            inputs, residual = self.inputs[rows, positions], self.residual[rows, positions]
        else:
            before = self.outputs[rows, (index - 1).clamp(min=0)]
            embedded = self.embedded[rows, index]
            inputs, residual = self.head.join(embedded, before.to(embedded.dtype))
            new = self.head.keys_values(inputs, positions)
            pairs = zip((self.keys, self.values), new, strict=True)
            self.keys, self.values = (torch.cat(pair, 2) for pair in pairs)
            self.made.append(torch.where(there, index, -alive.shape[1]))
        masks = [self.context[:, None] <= (positions - self.number + 1)[:, :, None]]
        for later, made in enumerate(self.made):
            # keys of step i at s - (j - i), for the queries of this step j at s
            distance = self.number - 2 - later
            masks.append(made[:, None] == (index - distance)[:, :, None])
        mask = torch.cat(masks, -1)[:, None]
        y = self.head.layer(inputs, residual, positions, self.keys, self.values, mask)[there]
        self.outputs = y.new_zeros(*alive.shape, y.shape[-1])
        self.outputs[alive] = y
        return y


def packed(alive: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the true entries of each row, int64 [B, N], and which of them are no padding."""
    counts = alive.sum(1)
    size = max(1, int(counts.max()))
    index = (~alive).to(torch.uint8).argsort(dim=1, stable=True)[:, :size]
    return index, torch.arange(size) < counts[:, None]


def chain_names(layer: str) -> dict[str, str]:
    """Own name -> public name of a layer's linear maps and its norm before the MLP."""
    names = {f"{n}_proj": f"{layer}.self_attn.{n}_proj" for n in "qkvo"}
    names |= {f"{n}_proj": f"{layer}.mlp.{n}_proj" for n in ("gate", "up", "down")}
    return names | {"norm": f"{layer}.post_attention_layernorm.weight"}


def following_alive(alive: Tensor, agree: Tensor, valid: Tensor) -> Tensor:
    """Which query positions the next draft step reaches: all steps before it were right.

    alive bool [B, A]; agree bool [alive positions]; valid bool [B, A]. A chain at query position i
    goes on at i + 1.
    """
    right = torch.zeros_like(alive)
    right[alive] = agree
    return F.pad(right, (1, 0))[:, :-1] & valid


@torch.no_grad()
def simulate(
    head: ChainHead,
    sequences: list[Sequence],
    embedding: Tensor,
    lm_head: Tensor,
    num_draft_tokens: int,
    dtype: torch.dtype,
    own_head: tuple[Tensor, Tensor] | None = None,
) -> list[Acceptance]:
    """Exact greedy acceptance on greedy answers with recorded features, one count a sequence.

    A draft token is judged only while all before it were right, so feeding the true tokens
    instead of the drafted ones gives the same counts. own_head: the head's own LM head [Vd, H] and
    the tokens of its rows [Vd].
    """
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].tokens))
    weight, names = own_head or (lm_head, torch.arange(len(lm_head)))
    results: dict[int, Acceptance] = {}
    for first in range(0, len(order), 8):
        rows = order[first : first + 8]
        batch = collate([sequences[i] for i in rows])
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            chain, alive = Chain(head, batch, embedding.to(dtype)), batch.valid
            labels = torch.zeros(alive.shape, dtype=torch.int64)
            labels[alive] = best_tokens(batch.pick(batch.features, 1)[alive], lm_head)
            matches = torch.zeros(num_draft_tokens, *alive.shape, dtype=torch.bool)
            for step in range(num_draft_tokens):
                if not alive.any():
                    break
                drafted = names[best_tokens(head.read_out(chain.step(alive)), weight)]
                matches[step][alive] = drafted == labels[alive]
                alive = following_alive(alive, matches[step][alive], batch.valid)
        for row, index in enumerate(rows):
            results[index] = walk(matches[:, row, : int(batch.valid[row].sum())])
    return [results[i] for i in range(len(sequences))]
