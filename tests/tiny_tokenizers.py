"""Tokenizers of the kinds that models come with, small: each a directory with tokenizer.json,
tokenizer_config.json and a config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    processors,
    trainers,
)
from tokenizers import pre_tokenizers as pre

CORPUS = [
    "The sea is blue, and the story of the old maps begins there. 日本の地図、né naïve façade",
    "def f(x):\n\treturn x + 12345  # it's what they've said\n\n\n  and more   spaces",
    "The capital of France is Paris. 2 + 2 = 4; héllo wörld, ÅÅ Å é e\u0301",
]
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_PATTERN = QWEN2_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|", 1)


def byte_level(directory: Path) -> Path:
    """One token a byte, as the tiny models have it."""
    _write(directory / "config.json", tiny.CONFIG)
    tiny.write_tokenizer(directory)
    return directory


def with_cuts_and_padding(directory: Path) -> Path:
    """tokenizer.json that asks for truncation and padding, which a prompt must not get."""
    pipeline = Tokenizer.from_file(str(byte_level(directory) / "tokenizer.json"))
    pipeline.enable_truncation(4)
    pipeline.enable_padding(length=9, pad_id=0, pad_token=tiny.SPECIAL[0])
    pipeline.save(str(directory / "tokenizer.json"))
    return directory


def llama3(directory: Path) -> Path:
    """A first token by the post-processor, plain added tokens among the special ones."""
    pipeline = _trained(pre.Split(Regex(LLAMA3_PATTERN), behavior="isolated"))
    begin, end = "<|begin_of_text|>", "<|eot_id|>"
    pipeline.add_special_tokens([begin, end, "<|start_header_id|>", "<|end_header_id|>"])
    pipeline.add_tokens([AddedToken("<tool>", lstrip=True, normalized=False), "sea"])
    pipeline.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single=f"{begin}:0 $A:0",
                pair=f"{begin}:0 $A:0 {begin}:1 $B:1",
                special_tokens=[(begin, pipeline.token_to_id(begin))],
            ),
        ]
    )
    template = (
        "{% for m in messages %}{{ bos_token if loop.first }}<|start_header_id|>{{ m.role }}"
        "<|end_header_id|>\n\n{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    )
    settings = {"bos_token": begin, "eos_token": end, "chat_template": template}
    return _save(directory, pipeline, "PreTrainedTokenizerFast", settings)


def qwen2(directory: Path) -> Path:
    """Qwen's own class, whose pipeline version 5 of transformers makes anew."""
    split = pre.Split(Regex(QWEN2_PATTERN), behavior="isolated")
    pipeline = _trained(split, normalizers.NFC())
    pipeline.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    pipeline.add_tokens([AddedToken("<tool_call>", normalized=False)])
    pipeline.post_processor = processors.ByteLevel(trim_offsets=False)
    settings = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "split_special_tokens": False,
        "unk_token": None,
        "chat_template": tiny.TEMPLATE,
    }
    return _save(directory, pipeline, "Qwen2Tokenizer", settings, model_type="qwen2")


def sentencepiece(directory: Path) -> Path:
    """Spaces as U+2581 and single bytes where a character is not known, as in Llama 2."""
    special = ["<unk>", "<s>", "</s>"]
    singles = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = sorted(set("".join(CORPUS).replace(" ", "▁")))
    vocabulary = {piece: index for index, piece in enumerate((*special, *singles, *letters))}
    model = models.BPE(
        vocab=vocabulary, merges=[], unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    pipeline = Tokenizer(model)
    pipeline.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    pipeline.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    pipeline.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return _save(directory, pipeline, "PreTrainedTokenizerFast", settings)


PLAIN: dict[str, Callable[[Path], Path]] = {
    "byte_level": byte_level,
    "with_cuts_and_padding": with_cuts_and_padding,
    "llama3": llama3,
    "qwen2": qwen2,
    "sentencepiece": sentencepiece,
}


def change(path: Path, **changes: Any) -> None:
    """Fields of a JSON file; `...` removes one."""
    data = {**json.loads(path.read_text()), **changes}
    _write(path, {name: value for name, value in data.items() if value is not ...})


def _trained(split: Any, normalizer: Any = None) -> Tokenizer:
    model = models.BPE(continuing_subword_prefix="", end_of_word_suffix="")
    pipeline = Tokenizer(model)
    if normalizer is not None:
        pipeline.normalizer = normalizer
    pipeline.pre_tokenizer = pre.Sequence(
        [split, pre.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)]
    )
    pipeline.decoder = decoders.ByteLevel()
    alphabet = pre.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet)
    pipeline.train_from_iterator(CORPUS, trainer)
    return pipeline


def _save(
    directory: Path,
    pipeline: Tokenizer,
    tokenizer_class: str,
    settings: dict[str, Any],
    model_type: str = "llama",
) -> Path:
    size = pipeline.get_vocab_size() + 5  # padded, as embeddings are
    _write(directory / "config.json", {**tiny.CONFIG, "vocab_size": size, "model_type": model_type})
    pipeline.save(str(directory / "tokenizer.json"))
    added = {
        str(token_id): token.__getstate__()
        for token_id, token in pipeline.get_added_tokens_decoder().items()
    }
    settings |= {"added_tokens_decoder": added, "tokenizer_class": tokenizer_class}
    _write(directory / "tokenizer_config.json", settings)
    return directory


def _write(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2) + "\n")
