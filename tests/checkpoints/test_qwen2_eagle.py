"""EAGLE heads for Qwen2: biases on q, k and v, none on o (SafeAILab/EAGLE#117, #135).

NxDI's Llama class has biases on all four projections or on none, so a zero one is written for o.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import Qwen2Config
from transformers.models.qwen2 import modeling_qwen2

from neuron_spec.backends.reference.models import EagleHead, Placement
from neuron_spec.checkpoints import identify
from neuron_spec.checkpoints.prepare import prepare_draft

Q_BIAS, O_BIAS = (f"layers.0.self_attn.{part}_proj.bias" for part in "qo")


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return tiny.write_eagle(tmp_path / "qwen2-eagle", model_type="qwen2")


@pytest.fixture
def prepared(published: Path, target_directory: Path, tmp_path: Path) -> Path:
    prepare_draft(published, target_directory, tmp_path / "prepared")
    return tmp_path / "prepared"


def test_it_is_known_as_published(published: Path) -> None:
    identity = identify(published)
    assert identity.family == "eagle" and Q_BIAS in identity.names
    assert (identity.missing, identity.unexpected, identity.misshapen) == ((), (), ())


def test_a_bias_that_the_config_promises_is_missed(published: Path) -> None:
    tiny.change_tensors(published, layers__0__self_attn__k_proj__bias=None)
    assert identify(published).missing == ("layers.0.self_attn.k_proj.bias",)


def test_a_zero_bias_completes_the_four(published: Path, prepared: Path) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (published, prepared))
    assert torch.equal(after[O_BIAS], torch.zeros(32))
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    config = json.loads((prepared / "config.json").read_text())
    assert (config["model_type"], config["attention_bias"]) == ("llama", True)
    record = json.loads((prepared / "prepared.json").read_text())
    assert (
        f"wrote {O_BIAS} as zeros: NxDI has biases on q, k, v and o or none"
        in (record["decisions"])
    )
    identity = identify(prepared)
    assert identity.is_prepared
    assert (identity.missing, identity.unexpected, identity.misshapen) == ((), (), ())


def test_the_dtype_of_the_zeros_is_that_of_the_other_biases(
    target_directory: Path, tmp_path: Path
) -> None:
    draft = tiny.write_eagle(tmp_path / "half", model_type="qwen2", torch_dtype="bfloat16")
    prepare_draft(draft, target_directory, tmp_path / "out")
    assert load_file(tmp_path / "out/model.safetensors")[O_BIAS].dtype == torch.bfloat16


def test_the_reference_backend_computes_qwen2s_own_layer(published: Path, prepared: Path) -> None:
    """transformers' Qwen2 layer on the published weights against the prepared head."""
    weights = load_file(published / "model.safetensors")
    config = json.loads((published / "config.json").read_text())
    embedding = load_file(prepared / "model.safetensors")["embed_tokens.weight"]
    tokens = torch.randint(0, 259, (1, 12), generator=torch.Generator().manual_seed(3))
    features = torch.randn(1, 12, 32, generator=torch.Generator().manual_seed(4))
    head = EagleHead(prepared, Placement(1, 32, torch.float32, torch.device("cpu")))
    with torch.inference_mode():
        joined = torch.cat([F.embedding(tokens, embedding), features], dim=-1)
        joined = F.linear(joined, weights["fc.weight"], weights["fc.bias"])
        expected = qwen2_layer(config, weights)(joined)
        found = head.forward(tokens, features, [0])
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def qwen2_layer(config: dict[str, object], weights: dict[str, torch.Tensor]) -> torch.nn.Module:
    """transformers' decoder layer without its input norm, as EAGLE v1 has it."""
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
             "rms_norm_eps", "rope_theta", "max_position_embeddings", "vocab_size")  # fmt: skip
    settings = Qwen2Config(num_hidden_layers=1, **{name: config[name] for name in names})
    settings._attn_implementation = "eager"
    layer = modeling_qwen2.Qwen2DecoderLayer(settings, 0).eval()
    prefix = "layers.0."
    own = {n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)}
    layer.input_layernorm = torch.nn.Identity()
    layer.load_state_dict(own)  # strict: q, k and v have biases, o has none
    rotary = modeling_qwen2.Qwen2RotaryEmbedding(settings)

    class Whole(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            size = x.shape[1]
            mask = torch.full((size, size), float("-inf")).triu(1)[None, None]
            position = rotary(x, torch.arange(size)[None])
            output = layer(x, attention_mask=mask, position_embeddings=position)
            return output[0] if isinstance(output, tuple) else output

    return Whole()
