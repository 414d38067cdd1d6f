"""What a directory holds, from headers alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from neuron_spec.checkpoints.identify import identify
from neuron_spec.errors import CheckpointError

LM_HEAD = "copy lm_head.weight from the target (its LM head, or its tied embedding)"


def test_a_target_is_ready_as_it_is(target_directory: Path) -> None:
    identity = identify(target_directory)
    assert identity.family == "causal-lm" and identity.is_prepared
    assert (identity.missing, identity.unexpected, identity.misshapen) == ((), (), ())
    tensors = load_file(target_directory / "model.safetensors")
    assert identity.num_parameters == sum(tensor.numel() for tensor in tensors.values())
    assert identity.dtypes == {"F32": len(tensors)}
    data = identity.as_dict()
    assert data["files"] == ["model.safetensors"] and data["is_prepared"] is True
    assert data["num_tensors"] == len(tensors) and data["vocab_size"] == 259


def test_a_published_eagle_head_says_what_it_lacks(eagle_directory: Path) -> None:
    identity = identify(eagle_directory)
    assert identity.family == "eagle" and not identity.is_prepared
    assert (identity.missing, identity.unexpected, identity.misshapen) == ((), (), ())
    assert identity.preparation == (
        LM_HEAD,
        "copy embed_tokens.weight from the target",
        "write fc_bias: true (NxDI drops fc.bias otherwise)",
    )


def test_headers_are_enough(eagle_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("identify must not read values")

    monkeypatch.setattr(torch, "from_file", refuse)
    assert identify(eagle_directory).family == "eagle"


@pytest.mark.parametrize(
    ("changes", "has_bias", "expected"),
    [
        ({"bias": False}, False, None),
        ({"bias": True}, True, "write fc_bias: true (NxDI drops fc.bias otherwise)"),
        ({"bias": True, "fc_bias": True}, True, None),
        (
            {"bias": True, "fc_bias": True},
            False,
            "write fc_bias: false (NxDI drops fc.bias otherwise)",
        ),
    ],
)
def test_the_file_decides_about_the_bias(
    tmp_path: Path, changes: dict[str, Any], has_bias: bool, expected: str | None
) -> None:
    directory = tiny.write_eagle(tmp_path / "e", **changes)
    if changes["bias"] and not has_bias:
        tiny.change_tensors(directory, fc__bias=None)
    steps = [step for step in identify(directory).preparation if "fc_bias" in step]
    assert steps == ([expected] if expected else [])


def test_a_tie_flag_has_to_go(tmp_path: Path, eagle_directory: Path) -> None:
    config = eagle_directory / "config.json"
    config.write_text(config.read_text().replace("{", '{"tie_word_embeddings": true,', 1))
    assert any("tie_word_embeddings: false" in s for s in identify(eagle_directory).preparation)


def test_what_is_missing_unknown_or_misshapen_is_named(eagle_directory: Path) -> None:
    tiny.change_tensors(
        eagle_directory,
        layers__0__mlp__up_proj__weight=None,
        layers__1__mlp__up_proj__weight=torch.ones(2),
        layers__0__self_attn__k_proj__weight=torch.ones(5, 32),
        layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4),
    )
    identity = identify(eagle_directory)
    assert identity.missing == ("layers.0.mlp.up_proj.weight",)
    assert identity.unexpected == ("layers.1.mlp.up_proj.weight",)
    assert identity.misshapen == (
        "layers.0.self_attn.k_proj.weight: found [5, 32], expected [16, 32] by config.json",
    )
    assert not identity.is_prepared


def test_names_with_the_prefix_are_the_same_names(eagle_directory: Path) -> None:
    tensors = load_file(eagle_directory / "model.safetensors")
    path = eagle_directory / "model.safetensors"
    save_file({f"model.{name}": t for name, t in tensors.items()}, path)
    identity = identify(eagle_directory)
    assert identity.family == "eagle" and (identity.missing, identity.unexpected) == ((), ())


def test_a_tensor_with_and_without_the_prefix_is_refused(eagle_directory: Path) -> None:
    tiny.change_tensors(eagle_directory, model__fc__weight=torch.zeros(32, 64))
    with pytest.raises(CheckpointError, match=r"stored twice.*: fc\.weight, model\.fc\.weight$"):
        identify(eagle_directory)


def test_a_tied_target_may_store_its_head_or_not(tmp_path: Path) -> None:
    directory = tiny.write_target(tmp_path / "t", tie_word_embeddings=True)
    assert identify(directory).missing == ()
    tiny.change_tensors(directory, lm_head__weight=torch.ones(259, 32))
    assert identify(directory).unexpected == ()


def test_an_untied_target_without_head_misses_it(target_directory: Path) -> None:
    tiny.change_tensors(target_directory, lm_head__weight=None)
    assert identify(target_directory).missing == ("lm_head.weight",)


@pytest.mark.parametrize("width", [32, 96])
def test_an_fc_of_another_width_is_not_eagle_1(eagle_directory: Path, width: int) -> None:
    """EAGLE-3 fuses three hidden states."""
    tiny.change_tensors(eagle_directory, fc__weight=torch.ones(32, width))
    with pytest.raises(CheckpointError, match="no known checkpoint family") as caught:
        identify(eagle_directory)
    assert str(eagle_directory) in str(caught.value)


def test_other_tensors_are_no_known_family(target_directory: Path) -> None:
    shutil.copy(target_directory / "config.json", target_directory.parent)
    save_file({"encoder.weight": torch.ones(2)}, target_directory.parent / "model.safetensors")
    with pytest.raises(CheckpointError, match="no known checkpoint family") as caught:
        identify(target_directory.parent)
    assert "encoder.weight" in str(caught.value)
