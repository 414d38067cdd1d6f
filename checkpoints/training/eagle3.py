"""The EAGLE-3 draft head: a layer over normed embedding and normed feature, own LM head.

A true feature is fc of three of the target's states; afterwards the layer reads its own output.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from chain import ChainHead, ScaledLinear, Scales, chain_names
from common import Sequence, TargetConfig, write_tensors, write_text
from safetensors.torch import load_file
from torch import Tensor, nn

NAMES = {
    "fc": "fc",
    **chain_names("midlayer"),
    "input_norm": "midlayer.input_layernorm.weight",
    "hidden_norm": "midlayer.hidden_norm.weight",
    "output_norm": "norm.weight",
    "lm_head": "lm_head.weight",
}
CONFIG_FROM_TARGET = (
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


class Eagle3Head(ChainHead):
    """All its inner quantities are of about unit size; only the states that fc reads are not."""

    def __init__(
        self, config: TargetConfig, intermediate: int, scales: Scales, draft_tokens: Tensor
    ) -> None:
        super().__init__(config, scales)
        hidden = config.hidden
        unit, pair = torch.ones(hidden), torch.ones(2 * hidden)
        kv_unit, mlp_unit = torch.ones(config.kv_heads * config.head_dim), torch.ones(intermediate)
        self.fc = ScaledLinear(scales.feature, unit)
        self.q_proj = ScaledLinear(pair, unit)
        self.k_proj = ScaledLinear(pair, kv_unit)
        self.v_proj = ScaledLinear(pair, kv_unit)
        self.o_proj = ScaledLinear(unit, unit)
        self.gate_proj = ScaledLinear(unit, mlp_unit)
        self.up_proj = ScaledLinear(unit, mlp_unit)
        self.down_proj = ScaledLinear(mlp_unit, unit)
        self.norm = nn.Parameter(unit.clone())
        self.input_norm = nn.Parameter(unit.clone())
        self.hidden_norm = nn.Parameter(unit.clone())
        self.output_norm = nn.Parameter(unit.clone())
        self.lm_head = nn.Parameter(torch.zeros(len(draft_tokens), hidden))
        self.register_buffer("draft_tokens", draft_tokens, persistent=False)

    def public_tensors(self) -> dict[str, Tensor]:
        """float32 tensors under the EAGLE authors' names, without the maps of the vocabulary."""
        return self.public(NAMES)

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm in float32."""
        return F.rms_norm(x.float(), weight.shape, weight, self.config.eps)

    def first(self, features: Tensor) -> Tensor:
        """fc of the three states."""
        return self.fc(features)

    def join(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Both normed, embedding first; the feature as it is goes on as residual."""
        parts = self.normed(embedded, self.input_norm), self.normed(hidden, self.hidden_norm)
        return torch.cat(parts, -1).to(hidden.dtype), hidden

    def read_out(self, outputs: Tensor) -> Tensor:
        """y after the final norm."""
        return self.normed(outputs, self.output_norm)


@torch.no_grad()
def warm_start(
    head: Eagle3Head, sequences: list[Sequence], lm_head: Tensor, ridge: float = 1e-3
) -> None:
    """fc is fitted to the next final state, the LM head is the target's, the layer begins small."""
    width, scale = len(head.feature_scale), head.feature_scale
    final = torch.cat([s.features[s.answer_start :] for s in sequences]).float()
    final_scale = final.square().mean(0).sqrt()
    products, targets = torch.zeros(width, width), torch.zeros(width, head.config.hidden)
    for s in sequences:
        assert s.taps is not None
        inputs = s.taps[s.answer_start - 1 : -1].float() / scale
        products += inputs.T @ inputs
        targets += inputs.T @ (s.features[s.answer_start :].float() / final_scale)
    products.diagonal().add_(ridge * float(products.diagonal().mean()))
    head.fc.weight.copy_(torch.linalg.solve(products, targets).T)
    head.output_norm.copy_(final_scale)
    head.lm_head.copy_(lm_head[head.draft_tokens])
    head.o_proj.weight.mul_(0.1)
    head.down_proj.weight.mul_(0.1)


def save_head(head: Eagle3Head, directory: Path, raw_target: dict) -> None:
    """Writes config.json and bfloat16 weights in the EAGLE authors' layout."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": len(head.draft_tokens),
        "intermediate_size": len(head.gate_proj.weight),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "rope_scaling": None,
        "use_cache": True,
        **{key: raw_target[key] for key in CONFIG_FROM_TARGET},
    }
    tokens = head.draft_tokens
    tensors = {name: t.bfloat16() for name, t in head.public_tensors().items()}
    tensors["d2t"] = tokens - torch.arange(len(tokens))
    tensors["t2d"] = torch.zeros(head.config.vocab, dtype=torch.bool)
    tensors["t2d"][tokens] = True
    write_tensors(directory / "model.safetensors", tensors, {"format": "pt"})
    write_text(directory / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_head(directory: Path, config: TargetConfig, scales: Scales | None = None) -> Eagle3Head:
    """Reads a head, as float32. Scales matter to training."""
    tensors = load_file(directory / "model.safetensors")
    tokens = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    plain = Scales(1.0, torch.ones(3 * config.hidden))
    intermediate = len(tensors["midlayer.mlp.gate_proj.weight"])
    head = Eagle3Head(config, intermediate, scales or plain, tokens)
    head.take({name: t.float() for name, t in tensors.items()}, NAMES)
    return head
