"""The EAGLE v1 draft head: fc over [embedding, feature] and one Llama layer without input norm.

Its output y[s] imitates f[s+1], so the target's LM head makes the guess.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from chain import ChainHead, ScaledLinear, Scales, chain_names
from common import Sequence, TargetConfig, write_tensors, write_text
from safetensors.torch import load_file
from torch import Tensor, nn

NAMES = {"fc": "fc"} | chain_names("layers.0")


class DraftHead(ChainHead):
    """fc over [embedding, feature] and one Llama layer without input norm."""

    def __init__(self, config: TargetConfig, intermediate: int, scales: Scales) -> None:
        super().__init__(config, scales)
        hidden, feature = config.hidden, scales.feature
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

    def public_tensors(self) -> dict[str, Tensor]:
        """float32 tensors under the names of public EAGLE v1 checkpoints."""
        return self.public(NAMES)

    def join(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """fc's output is both."""
        joined = self.fc(torch.cat((embedded, hidden), -1))
        return joined, joined

    def read_out(self, outputs: Tensor) -> Tensor:
        """y itself."""
        return outputs


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
        public = f"{NAMES[name]}.weight"
        scale = state[f"{last}{norm}_layernorm.weight"] / state["norm.weight"]
        if norm == "post_attention":  # the head's own norm divides by this already
            scale = scale * head.feature_scale.square().mean().sqrt()
        source = state[public.replace("layers.0.", last)] * scale
        if source.shape == tensors[public].shape:
            tensors[public] = source
    head.take(tensors, NAMES)


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
    own = {name: tensor.shape for name, tensor in head.public_tensors().items()}
    if own != {name: tensor.shape for name, tensor in tensors.items()}:
        raise SystemExit(f"{directory}: tensors are unknown, missing or misshapen")
    head.take(tensors, NAMES)
    return head
