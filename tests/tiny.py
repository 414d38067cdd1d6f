"""Tiny models with random weights, written in the public layouts, for tests that need files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|pad|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
EOS = 2
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 259,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}


def write_target(directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A Llama with random weights and a byte-level tokenizer; `changes` go into config.json."""
    config = {**CONFIG, **changes}
    _write_json(directory / "config.json", config)
    save_file(target_tensors(config, seed), directory / "model.safetensors", {"format": "pt"})
    write_tokenizer(directory)
    return directory


def target_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights under Hugging Face's keys."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= _layer_shapes(config, f"model.layers.{layer}.")
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return _random(shapes, config, seed)


def write_eagle(directory: Path, *, seed: int = 1, **changes: Any) -> Path:
    """An EAGLE v1 head in exactly the public layout: no LM head, no norms, no embedding."""
    config = {**CONFIG, "num_hidden_layers": 1, "bias": True, **changes}
    for name in ("bos_token_id", "eos_token_id", "tie_word_embeddings"):
        config.pop(name)
    _write_json(directory / "config.json", config)
    save_file(eagle_tensors(config, seed), directory / "model.safetensors", {"format": "pt"})
    return directory


def eagle_tensors(config: dict[str, Any], seed: int = 1) -> dict[str, torch.Tensor]:
    """Random weights under EAGLE's public keys."""
    hidden = config["hidden_size"]
    shapes = {"fc.weight": (hidden, 2 * hidden), **_layer_shapes(config, "layers.0.")}
    if config["bias"]:
        shapes["fc.bias"] = (hidden,)
    if config.get("attention_bias", config["model_type"] == "qwen2"):  # of q, k and v, none of o
        for part in "qkv":
            name = f"layers.0.self_attn.{part}_proj"
            shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
    return _random(shapes, config, seed)


def write_eagle3(
    directory: Path, *, form: str = "authors", seed: int = 2, num_rows: int = 97, **changes: Any
) -> Path:
    """An EAGLE-3 head over `num_rows` of the target's tokens.

    Forms: `authors` and `specforge` (`midlayer.`, flat config), `speculators` (`layers.0.`,
    nested config).
    """
    config = {**CONFIG, "num_hidden_layers": 1, "draft_vocab_size": num_rows, **changes}
    for name in ("bos_token_id", "eos_token_id", "tie_word_embeddings"):
        config.pop(name)
    tensors = eagle3_tensors(config, seed)
    if form == "speculators":
        tensors = {name.replace("midlayer.", "layers.0."): t for name, t in tensors.items()}
    _write_json(directory / "config.json", _EAGLE3_CONFIGS[form](config))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def _speculators_config(config: dict[str, Any]) -> dict[str, Any]:
    outer = ("draft_vocab_size", "norm_before_residual", "norm_output", "architectures")
    return {
        "speculators_model_type": "eagle3",
        "speculators_version": "0.2.0",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "some/target"}},
        "norm_before_residual": False,
        **{name: config[name] for name in outer if name in config},
        "transformer_layer_config": {k: v for k, v in config.items() if k not in outer},
    }


_EAGLE3_CONFIGS = {
    "authors": lambda config: {**config, "bias": False},
    "specforge": lambda config: {
        **config,
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
    },
    "speculators": _speculators_config,
}


def eagle3_tensors(config: dict[str, Any], seed: int = 2) -> dict[str, torch.Tensor]:
    """Random weights under the authors' keys, and a vocabulary map that skips tokens."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    num_rows = config["draft_vocab_size"]
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (num_rows, hidden),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        **_layer_shapes(config, "midlayer."),
    }
    for part in "qkv":
        name = f"midlayer.self_attn.{part}_proj.weight"
        shapes[name] = (shapes[name][0], 2 * hidden)
    tensors = _random(shapes, config, seed)
    if num_rows < vocab:
        generator = torch.Generator().manual_seed(seed)
        kept = torch.randperm(vocab, generator=generator)[:num_rows].sort().values
        tensors["d2t"] = kept - torch.arange(num_rows)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, kept, True)
    return tensors


def write_tokenizer(directory: Path) -> None:
    """One token a byte, three special ones before them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL[0],
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    _write_json(directory / "tokenizer_config.json", settings)


def write_spec(path: Path, text: str = "", **sections: dict[str, Any]) -> Path:
    """A build spec: `sections` as TOML tables, then `text` as it is."""
    lines = []
    for section, fields in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    path.write_text("\n".join([*lines, text]) + "\n")
    return path


def change_config(directory: Path, **changes: Any) -> None:
    """Fields of config.json; `...` removes one."""
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: v for name, v in config.items() if v is not ...}))


def change_tensors(directory: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors of model.safetensors; None removes one. `__` in a name stands for a dot."""
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in changes.items():
        key = name.replace("__", ".")
        if tensor is None:
            del tensors[key]
        else:
            tensors[key] = tensor
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def _layer_shapes(config: dict[str, Any], prefix: str) -> dict[str, tuple[int, ...]]:
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key_value = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key_value, hidden),
        "self_attn.v_proj.weight": (key_value, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
        "post_attention_layernorm.weight": (hidden,),
    }
    return {prefix + name: shape for name, shape in shapes.items()}


def _random(
    shapes: dict[str, tuple[int, ...]], config: dict[str, Any], seed: int
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config["torch_dtype"])
    tensors = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        is_norm = name.endswith("norm.weight")
        tensors[name] = ((1 + 0.1 * values) if is_norm else 0.2 * values).to(dtype).contiguous()
    return tensors


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2) + "\n")
