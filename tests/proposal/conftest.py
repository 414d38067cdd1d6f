"""Published pairs of target and draft, as sizes: made once, they take no disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import sparse_checkpoints as sparse


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zoo")
    for name in ("llama-1b", "llama-8b", "llama-70b", "mistral-7b", "qwen3-32b", "gpt-oss-120b"):
        sparse.language_model(folder / name, sparse.raw_config(name))
    small = {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "tie_word_embeddings": True,
    }  # fmt: skip
    sparse.language_model(folder / "qwen3-0.6b", sparse.raw_config("qwen3-32b", **small))
    windowed = sparse.raw_config("mistral-7b", sliding_window=4096)
    sparse.language_model(folder / "mistral-windowed", windowed)
    llama = sparse.raw_config("llama-8b")
    sparse.eagle_head(folder / "eagle", llama)
    sparse.eagle3_head(folder / "eagle3", llama, 32000, max_position_embeddings=2048)
    sparse.medusa_heads(folder / "medusa", sparse.raw_config("mistral-7b"))
    return folder
