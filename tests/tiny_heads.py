"""Medusa and Hydra heads, and speculators' EAGLE form, as published, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tiny
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

HIDDEN, VOCAB = tiny.CONFIG["hidden_size"], tiny.CONFIG["vocab_size"]
MEDUSA_FORMS = (
    "authors",  # medusa_lm_head.pt, projections of its own
    "authors-safetensors",
    "legacy",  # "version 2": no projections
    "tgi",  # the safetensors file of either kind, no `version`
    "tgi-v2",
    "vllm",
    "vllm-bias",
    "vllm-prefixed",
    "vllm-shared",  # original_lm_head: one projection
    "vllm-truncated",  # token_map
    "nxdi",
)


def write_medusa(
    directory: Path,
    *,
    form: str = "authors",
    num_heads: int = 3,
    seed: int = 3,
    vocab_size: int = VOCAB,
    **changes: Any,
) -> Path:
    """Medusa heads in one of `MEDUSA_FORMS`."""
    tensors, config = _MEDUSA[form](_medusa_tensors(num_heads, seed, vocab_size), num_heads)
    _write(directory, config | changes)
    if form.startswith("vllm"):
        save_file(tensors, directory / "model.safetensors")
    elif form == "nxdi":
        torch.save(tensors, directory / "medusa_heads.pt")
    elif form == "authors":
        torch.save(tensors, directory / "medusa_lm_head.pt")
    else:
        save_file(tensors, directory / "medusa_lm_head.safetensors")
    return directory


def write_medusa_2(directory: Path, *, num_heads: int = 3, seed: int = 3) -> Path:
    """A whole model with its heads, as Medusa-2 is published."""
    tiny.write_target(directory, seed=9, num_hidden_layers=8)
    config = json.loads((directory / "config.json").read_text())
    _write(directory, {**config, "medusa_num_heads": num_heads, "medusa_num_layers": 1})
    heads = {f"medusa_head.{name}": t for name, t in _medusa_tensors(num_heads, seed).items()}
    base = load_file(directory / "model.safetensors")
    save_file({**base, **heads}, directory / "model.safetensors", {"format": "pt"})
    return directory


def _medusa_tensors(num_heads: int, seed: int, vocab_size: int = VOCAB) -> dict[str, Tensor]:
    """Under the authors' keys."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for head in range(num_heads):
        tensors[f"{head}.0.linear.weight"] = _normal((HIDDEN, HIDDEN), generator)
        tensors[f"{head}.0.linear.bias"] = _normal((HIDDEN,), generator)
        tensors[f"{head}.1.weight"] = _normal((vocab_size, HIDDEN), generator)
    return tensors


Form = tuple[dict[str, Tensor], dict[str, Any]]


def _authors(tensors: dict[str, Tensor], num_heads: int) -> Form:
    config = {"medusa_num_heads": num_heads, "medusa_num_layers": 1}
    return tensors, {**config, "base_model_name_or_path": "some/target"}


def _legacy(tensors: dict[str, Tensor], num_heads: int) -> Form:
    blocks = {name: t for name, t in tensors.items() if ".linear." in name}
    return blocks, {**_authors(tensors, num_heads)[1], "version": "2"}


def _tgi_v2(tensors: dict[str, Tensor], num_heads: int) -> Form:
    return _legacy(tensors, num_heads)[0], _authors(tensors, num_heads)[1]


def _vllm(tensors: dict[str, Tensor], num_heads: int, *, bias: bool = False) -> Form:
    renamed = {}
    for name, tensor in tensors.items():
        head, _, rest = name.partition(".")
        if rest == "1.weight":
            renamed[f"lm_heads.{head}.weight"] = tensor
        elif bias or not rest.endswith("bias"):
            renamed[f"blocks.{head}.layers.0.{rest.rpartition('.')[2]}"] = tensor
    return renamed, {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "num_heads": num_heads,
        "num_hidden_layers": 1,
        "max_paths": 64,
        "topk": 10,
        "truncated_vocab_size": VOCAB,
        "medusa_fc_bias": bias,
    }


def _vllm_bias(tensors: dict[str, Tensor], num_heads: int) -> Form:
    return _vllm(tensors, num_heads, bias=True)


def _vllm_prefixed(tensors: dict[str, Tensor], num_heads: int) -> Form:
    renamed, config = _vllm(tensors, num_heads)
    return {f"medusa_heads.{name}": tensor for name, tensor in renamed.items()}, config


def _vllm_shared(tensors: dict[str, Tensor], num_heads: int) -> Form:
    renamed, config = _vllm(tensors, num_heads)
    for head in range(1, num_heads):
        del renamed[f"lm_heads.{head}.weight"]
    return renamed, {**config, "original_lm_head": True}


def _vllm_truncated(tensors: dict[str, Tensor], num_heads: int, num_rows: int = 101) -> Form:
    renamed, config = _vllm(tensors, num_heads)
    generator = torch.Generator().manual_seed(11)
    ids = torch.randperm(VOCAB, generator=generator)[:num_rows]  # in no order
    cut = {
        name: tensor[ids].contiguous() if name.startswith("lm_heads.") else tensor
        for name, tensor in renamed.items()
    }
    return {**cut, "token_map": ids}, {**config, "truncated_vocab_size": num_rows}


def _nxdi(tensors: dict[str, Tensor], num_heads: int) -> Form:
    return {f"medusa_head_{name}": t for name, t in tensors.items()}, _authors({}, num_heads)[1]


_MEDUSA = {
    "authors": _authors,
    "authors-safetensors": _authors,
    "legacy": _legacy,
    "tgi": _authors,
    "tgi-v2": _tgi_v2,
    "vllm": _vllm,
    "vllm-bias": _vllm_bias,
    "vllm-prefixed": _vllm_prefixed,
    "vllm-shared": _vllm_shared,
    "vllm-truncated": _vllm_truncated,
    "nxdi": _nxdi,
}


def write_hydra(
    directory: Path,
    *,
    arch: str = "mlp",
    grounded: bool = True,
    num_heads: int = 3,
    num_layers: int = 1,
    seed: int = 4,
    vocab_size: int = VOCAB,
    **changes: Any,
) -> Path:
    """Hydra (`mlp`) or Hydra++ (`prefix-mlp`) heads as the authors save them."""
    config = {
        "hydra_num_heads": num_heads,
        "hydra_num_layers": num_layers,
        "hydra_head_arch": arch,
        "grounded_heads": grounded,
        "hidden_state_offset": 0,
        "base_model_name_or_path": "some/target",
        **changes,
    }
    tensors = hydra_tensors(arch, grounded, num_heads, num_layers, seed, vocab_size)
    _write(directory, config)
    torch.save(tensors, directory / "hydra_lm_head.pt")
    return directory


def hydra_tensors(
    arch: str,
    grounded: bool,
    num_heads: int,
    num_layers: int,
    seed: int,
    vocab_size: int = VOCAB,
) -> dict[str, Tensor]:
    """Under the authors' keys: in Hydra++ every second place of a list is a dropout."""
    generator = torch.Generator().manual_seed(seed)
    step, shift = (1, 0) if arch == "mlp" else (2, 1)
    tensors = {"input_embed_fn.weight": _normal((vocab_size, HIDDEN), generator)}

    def linear(prefix: str, rows: int, width: int) -> None:
        tensors[f"{prefix}.weight"] = _normal((rows, width), generator)
        tensors[f"{prefix}.bias"] = _normal((rows,), generator)

    for head in range(num_heads):
        width = (head + 2) * HIDDEN if grounded else HIDDEN
        first = f"hydra_mlp.{head}.{shift}"
        linear(f"{first}.linear", HIDDEN, width)
        if grounded:
            linear(f"{first}.res_connection", HIDDEN, width)
        for layer in range(1, num_layers):  # the authors repeat one module
            place = f"hydra_mlp.{head}.{layer * step + shift}.linear"
            if layer == 1:
                linear(place, HIDDEN, HIDDEN)
            else:
                once = f"hydra_mlp.{head}.{step + shift}.linear"
                tensors |= {
                    f"{place}.{part}": tensors[f"{once}.{part}"] for part in ("weight", "bias")
                }
        linear(f"hydra_lm_head.{head}" + ("" if arch == "mlp" else ".1"), vocab_size, HIDDEN)
    if arch == "prefix-mlp":
        one_layer = {
            **tiny.CONFIG,
            "num_hidden_layers": 1,
            "tie_word_embeddings": True,
            "vocab_size": vocab_size,
        }
        for name, tensor in tiny.target_tensors(one_layer, seed).items():
            tensors[name.replace("model.", "prefix_embeding_layer.", 1)] = tensor
    return tensors


def write_mtp_target(
    directory: Path, *, num_mtp_layers: int = 1, copies: bool = True, seed: int = 6, **changes: Any
) -> Path:
    """A whole model with MTP layers as DeepSeek-V3 stores them, of its own dense kind; `copies`: of
    embedding and LM head in every one of them."""
    tiny.write_target(directory, num_nextn_predict_layers=num_mtp_layers, **changes)
    config = json.loads((directory / "config.json").read_text())
    target = load_file(directory / "model.safetensors")
    tensors = dict(target)
    for index in range(num_mtp_layers):
        prefix = f"model.layers.{config['num_hidden_layers'] + index}."
        one_layer = {**config, "num_hidden_layers": 1, "tie_word_embeddings": True}
        for name, tensor in tiny.target_tensors(one_layer, seed + index).items():
            if name.startswith("model.layers.0."):
                tensors[name.replace("model.layers.0.", prefix)] = tensor
        generator = torch.Generator().manual_seed(seed + index)
        tensors[f"{prefix}eh_proj.weight"] = _normal((HIDDEN, 2 * HIDDEN), generator)
        for name in ("enorm", "hnorm", "shared_head.norm"):
            tensors[f"{prefix}{name}.weight"] = 1 + _normal((HIDDEN,), generator)
        if copies:
            embedding = target["model.embed_tokens.weight"]
            tensors[f"{prefix}embed_tokens.weight"] = embedding.clone()
            tensors[f"{prefix}shared_head.head.weight"] = target.get(
                "lm_head.weight", embedding
            ).clone()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def write_speculators_eagle(directory: Path, *, seed: int = 1, **changes: Any) -> Path:
    """An EAGLE v1 head as early releases of speculators converted it."""
    tiny.write_eagle(directory, seed=seed)
    config = json.loads((directory / "config.json").read_text())
    names = {"fc.": "fusion_fc.", "layers.0.": "transformer."}
    renamed = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        theirs = next(name.replace(a, b, 1) for a, b in names.items() if name.startswith(a))
        renamed[theirs] = tensor
    save_file(renamed, directory / "model.safetensors", {"format": "pt"})
    del config["num_hidden_layers"], config["bias"]
    outer = {
        "speculators_model_type": "eagle",
        "speculators_version": "0.1.0",
        "architectures": ["EagleSpeculator"],
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "fusion_bias": True,
        "layernorms": False,
        "speculators_config": {"algorithm": "eagle", "verifier": {"name_or_path": "some/target"}},
        **changes,
    }
    _write(directory, {**outer, "transformer_layer_config": config})
    return directory


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return 0.2 * torch.randn(shape, generator=generator)


def _write(directory: Path, config: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
