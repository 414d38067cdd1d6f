"""Whether `tokenizer_config.json` leaves a tokenizer as `tokenizer.json` has it.

transformers makes a tokenizer of both files: the class that the config names may rebuild parts,
tokens may be added or marked special, and versions 4 and 5 differ. Here are the cases in which it
is known, for 4.57 and 5, that nothing changes; every setting has to be one that is understood.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Pipeline

from neuron_spec.checkpoints.model_config import read_raw_config

PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Version 5 takes the class of these model types, whatever class the config names.
REBUILT_TYPES = (
    "hyperclovax_vision_v2", "qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp",
    "siglip2",
)  # fmt: skip
QWEN2_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
_QWEN2_TYPES = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
_QWEN2_END = "<|endoftext|>"
_QWEN2_TOKENS = {"unk_token": _QWEN2_END, "eos_token": _QWEN2_END, "pad_token": _QWEN2_END}
_QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

NAMES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"
)  # fmt: skip
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_EMPTY = ("add_bos_token", "add_eos_token", "split_special_tokens")
_SIDES = ("padding_side", "truncation_side")
# They concern padding, truncation, warnings, training or other classes.
_WITHOUT_EFFECT = (
    "backend", "chat_template", "clean_up_tokenization_spaces", "errors", "is_local", "legacy",
    "local_files_only", "max_length", "model_input_names", "model_max_length", "name_or_path",
    "pad_to_multiple_of", "pad_token_type_id", "processor_class", "sp_model_kwargs",
    "spaces_between_special_tokens", "stride", "truncation_strategy", "use_default_system_prompt",
)  # fmt: skip
_UNDERSTOOD = {
    "added_tokens_decoder", "add_prefix_space", "tokenizer_class",
    *NAMES, *_LISTS, *_EMPTY, *_SIDES, *_WITHOUT_EFFECT,
}  # fmt: skip
_LEGACY_FILES = ("added_tokens.json", "special_tokens_map.json")
_MISTRAL_FILE = "tekken.json"  # taken instead of tokenizer.json where mistral-common is installed


def named_tokens(
    directory: Path, settings: Mapping[str, Any], pipeline: Pipeline
) -> dict[str, str] | None:
    """Special tokens by their use (`eos_token`, …), or None where transformers would make another
    tokenizer of the directory than `pipeline`, or may do so.

    Args:
        settings: of tokenizer_config.json.
        pipeline: of tokenizer.json.

    Raises:
        Exception: a config of another shape; the same as None.
    """
    is_qwen2 = settings.get("tokenizer_class") in QWEN2_CLASSES
    model_type = read_raw_config(directory).get("model_type")
    if is_qwen2:
        is_known = model_type in _QWEN2_TYPES and _is_qwen2(settings, pipeline)
    else:
        is_plain = settings.get("tokenizer_class") in PLAIN_CLASSES
        is_known = is_plain and model_type not in REBUILT_TYPES
    if not (is_known and _is_understood(directory, settings, pipeline)):
        return None
    named = {**(_QWEN2_TOKENS if is_qwen2 else {}), **_padding(pipeline)}
    named |= {name: settings[name] for name in NAMES if name in settings}
    given = {name: token for name, token in named.items() if token is not None}
    added = {token.content: token for token in pipeline.get_added_tokens_decoder().values()}
    if not all(_is_special(token, added) for token in (*given.values(), *_listed(settings))):
        return None
    return {name: _content(token) for name, token in given.items()}


def _is_understood(directory: Path, settings: Mapping[str, Any], pipeline: Pipeline) -> bool:
    has_empty_flags = not any(settings.get(name) for name in _EMPTY)
    names_flags = any(name in settings for name in _EMPTY[:2])  # version 5 makes them again
    return (
        settings.keys() <= _UNDERSTOOD
        and has_empty_flags
        and not (names_flags and pipeline.num_special_tokens_to_add(False))
        and all(settings.get(name, "left") in ("left", "right") for name in _SIDES)
        and not (directory / _MISTRAL_FILE).exists()
        and _has_same_prefix_space(settings, pipeline)
        and _adds_nothing(directory, settings, pipeline)
    )


def _has_same_prefix_space(settings: Mapping[str, Any], pipeline: Pipeline) -> bool:
    """Version 4 takes the setting, and without one `false`, instead of the pipeline's own."""
    set_to = settings.get("add_prefix_space", False)
    return bool(_state(pipeline.pre_tokenizer).get("add_prefix_space", set_to) == set_to)


def _adds_nothing(directory: Path, settings: Mapping[str, Any], pipeline: Pipeline) -> bool:
    if "added_tokens_decoder" not in settings:
        return not any((directory / name).exists() for name in _LEGACY_FILES)
    added = pipeline.get_added_tokens_decoder()
    return all(
        int(token_id) in added and _is_same(AddedToken(**flags), added[int(token_id)])
        for token_id, flags in settings["added_tokens_decoder"].items()
    )


def _is_same(one: AddedToken, other: AddedToken) -> bool:
    return bool(one.__getstate__() == other.__getstate__())


def _padding(pipeline: Pipeline) -> dict[str, str]:
    padding = pipeline.padding
    return {"pad_token": padding["pad_token"]} if padding else {}


def _listed(settings: Mapping[str, Any]) -> Iterator[Any]:
    for name in _LISTS:
        tokens = settings.get(name) or []
        if not isinstance(tokens, list):
            raise TypeError(f"{name} with names")
        yield from tokens


def _is_special(token: Any, added: Mapping[str, AddedToken]) -> bool:
    """Whether the pipeline has it as it is named: a string, or a table with its flags."""
    found = added.get(_content(token))
    if found is None or not found.special:
        return False
    return isinstance(token, str) or _is_same(_flags(token), found)


def _content(token: Any) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _flags(token: Mapping[str, Any]) -> AddedToken:
    if token.get("__type") != "AddedToken":
        raise TypeError("not an added token")
    return AddedToken(**{name: value for name, value in token.items() if name != "__type"})


def _is_qwen2(settings: Mapping[str, Any], pipeline: Pipeline) -> bool:
    """Version 5 keeps vocabulary, merges and post-processor, and makes everything else itself."""
    model = pipeline.model
    added = pipeline.get_added_tokens_decoder()
    told = settings.get("added_tokens_decoder", added)
    split, bytes_ = _QWEN2_SPLIT, {"type": "ByteLevel", "add_prefix_space": False}
    parts = _state(pipeline.pre_tokenizer).get("pretokenizers", [])
    return (
        isinstance(model, models.BPE)
        and not (model.dropout or model.unk_token)
        and not (model.continuing_subword_prefix or model.end_of_word_suffix)
        and not (model.fuse_unk or model.byte_fallback or model.ignore_merges)
        and _state(pipeline.normalizer) == {"type": "NFC"}
        and _state(pipeline.decoder).get("type") == "ByteLevel"
        and len(parts) == 2
        and parts[0] == split
        and {**parts[1], **bytes_, "use_regex": False} == parts[1]
        and {int(token_id) for token_id in told} == set(added)
    )


_QWEN2_SPLIT = {
    "type": "Split",
    "pattern": {"Regex": _QWEN2_PATTERN},
    "behavior": "Isolated",
    "invert": False,
}


def _state(part: Any) -> dict[str, Any]:
    """A part of the pipeline as tokenizer.json writes it."""
    state: dict[str, Any] = json.loads(part.__getstate__()) if part is not None else {}
    return state
