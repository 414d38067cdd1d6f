"""Tiny models of another family: the same kind of weights with another tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<s>", "</s>", "<|im_start|>")  # the target has only the last one


def write_translated(
    directory: Path, source: Path, *, merges: tuple[str, ...] = (), missing: str = "", seed: int = 7
) -> Path:
    """The model of `source` under another tokenizer: byte tokens in reverse order, without those of
    `missing`, and tokens for `merges` whose rows are random, as those of unknown special tokens."""
    config = json.loads((source / "config.json").read_text())
    theirs = Tokenizer.from_file(str(source / "tokenizer.json")).get_vocab()
    vocabulary = write_tokenizer(directory, merges=merges, missing=missing)
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(source / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = 0.2 * torch.randn(len(vocabulary), config["hidden_size"], generator=generator)
        for token, index in vocabulary.items():
            if token in theirs:
                rows[index] = tensors[name][theirs[token]]
        tensors[name] = rows
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    changed = {**config, "vocab_size": len(vocabulary), "bos_token_id": 0, "eos_token_id": 1}
    (directory / "config.json").write_text(json.dumps(changed))
    return directory


def write_tokenizer(
    directory: Path, *, merges: tuple[str, ...] = (), missing: str = ""
) -> dict[str, int]:
    """A byte-level tokenizer that joins the characters of every merge from the left."""
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(missing), reverse=True)
    joined = [word[:end] for word in merges for end in range(2, len(word) + 1)]
    tokens = (*SPECIAL, *alphabet, *dict.fromkeys(joined))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(word[:-1], word[-1]) for word in dict.fromkeys(joined)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return vocabulary
