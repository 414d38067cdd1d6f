"""What a checkpoint says twice and differently is an error or a decision, each with its mend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from contradictory import change_dtypes, decisions, only, refusal
from safetensors.torch import load_file, save_file
from tiny import change_config

from neuron_spec.checkpoints import contradictions, identify, prepare
from neuron_spec.checkpoints.contradictions import head, of_checkpoint, of_pair
from neuron_spec.checkpoints.identify import identify_target
from neuron_spec.checkpoints.model_config import TIED_BY_DEFAULT, read_config
from neuron_spec.checkpoints.prepare import prepare_draft
from neuron_spec.errors import CheckpointError
from neuron_spec.spec import BuildSpec

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    """A target whose config ties the head, with the embedding stored as head too."""
    directory = tiny.write_target(tmp_path / "tied", tie_word_embeddings=True)
    embedding = load_file(directory / "model.safetensors")[EMBEDDING]
    tiny.change_tensors(directory, lm_head__weight=embedding.clone())
    return directory


def test_nothing_to_say(target_directory: Path, eagle_directory: Path, tmp_path: Path) -> None:
    target, draft = identify(target_directory), identify(eagle_directory)
    assert of_checkpoint(target) == of_checkpoint(draft) == of_pair(draft, target) == []
    assert decisions(eagle_directory, target_directory, tmp_path / "out") == []


# The tied head


def test_a_tied_head_stored_again_is_a_decision(
    tied: Path, eagle_directory: Path, tmp_path: Path
) -> None:
    found = only(of_checkpoint(identify(tied)))
    assert (found.code, found.severity) == ("tied-head-stored", "info")
    (decision,) = decisions(eagle_directory, tied, tmp_path / "out")
    assert decision == f"target: {found.message}"
    assert "tie_word_embeddings: true" in decision and "equals model.embed_tokens" in decision


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_tied_head_that_differs_is_refused(
    tied: Path, eagle_directory: Path, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one value, wherever: blocks are compared to the end."""
    monkeypatch.setattr(head, "_PIECE_BYTES", 1000)
    values = load_file(tied / "model.safetensors")[HEAD]
    values[0 if where == "first" else -1, -1] += 1
    tiny.change_tensors(tied, lm_head__weight=values)
    found = only(of_checkpoint(identify(tied)))
    assert (found.code, found.severity) == ("tied-head", "error")
    error = refusal(eagle_directory, tied, tmp_path / "out")
    assert error.where == tied
    assert "lm_head.weight is stored too and differs from model.embed_tokens.weight" in str(error)
    assert "transformers 5 the stored head" in str(error)
    assert error.mend == found.mend
    assert "set tie_word_embeddings" in found.mend and "false if the stored head" in found.mend


def test_a_tied_head_in_a_pickle_is_compared_too(tied: Path) -> None:
    tensors = load_file(tied / "model.safetensors")
    (tied / "model.safetensors").unlink()
    torch.save(tensors, tied / "pytorch_model.bin")
    assert only(of_checkpoint(identify(tied))).code == "tied-head-stored"
    torch.save({**tensors, HEAD: tensors[HEAD] + 1}, tied / "pytorch_model.bin")
    assert only(of_checkpoint(identify(tied))).code == "tied-head"


def test_another_dtype_is_another_head(tied: Path) -> None:
    change_dtypes(tied, torch.bfloat16, HEAD)
    found = only(of_checkpoint(identify(tied)))
    assert found.code == "tied-head" and "(stored as BF16 and F32)" in found.message


def test_the_same_bytes_in_another_dtype_are_other_values(tmp_path: Path) -> None:
    directory = tiny.write_target(
        tmp_path / "tied", tie_word_embeddings=True, torch_dtype="bfloat16"
    )
    embedding = load_file(directory / "model.safetensors")[EMBEDDING]
    tiny.change_tensors(directory, lm_head__weight=embedding.view(torch.float16))
    assert only(of_checkpoint(identify(directory))).code == "tied-head"


def test_an_untied_head_is_nobodys_business(target_directory: Path) -> None:
    change_config(target_directory, tie_word_embeddings=...)
    assert of_checkpoint(identify(target_directory)) == []


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [(False, "llama", "says tie_word_embeddings: false"),
     (..., "llama", "does not say tie_word_embeddings (false is transformers' default for llama)"),
     (..., "unheard", "does not say tie_word_embeddings (false is taken)")],
)  # fmt: skip
def test_no_head_and_no_tie(
    target_directory: Path, eagle_directory: Path, tmp_path: Path, said: Any, kind: str, words: str
) -> None:
    change_config(target_directory, tie_word_embeddings=said, model_type=kind)
    tiny.change_tensors(target_directory, lm_head__weight=None)
    found = only(of_checkpoint(identify(target_directory)))
    assert (found.code, found.severity) == ("no-lm-head", "error")
    error = refusal(eagle_directory, target_directory, tmp_path / "out")
    assert words in str(error) and "missing: lm_head.weight" in str(error)
    assert "set tie_word_embeddings: true" in str(error)


def test_a_type_that_is_tied_by_default(
    tmp_path: Path, eagle_directory: Path, target_directory: Path
) -> None:
    change_config(target_directory, tie_word_embeddings=..., model_type="gemma2")
    tiny.change_tensors(target_directory, lm_head__weight=None)
    (decision,) = decisions(eagle_directory, target_directory, tmp_path / "out")
    assert "true is transformers' default for gemma2" in decision
    embedding = load_file(target_directory / "model.safetensors")[EMBEDDING]
    assert torch.equal(load_file(tmp_path / "out/model.safetensors")[HEAD], embedding)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", *TIED_BY_DEFAULT])
def test_the_default_is_transformers(target_directory: Path, kind: str) -> None:
    change_config(target_directory, tie_word_embeddings=..., model_type=kind)
    default = transformers.CONFIG_MAPPING[kind]().tie_word_embeddings
    assert read_config(target_directory).tie_word_embeddings is default
    change_config(target_directory, tie_word_embeddings=not default)
    assert read_config(target_directory).tie_word_embeddings is not default


def test_what_transformers_does_with_a_tied_head_that_differs(tied: Path) -> None:
    """The fact behind the refusal: version 4 uses the embedding, version 5 the stored head."""
    tiny.change_tensors(tied, lm_head__weight=torch.ones(259, 32))
    model = transformers.AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    is_stored = torch.equal(model.lm_head.weight, torch.ones(259, 32))
    assert is_stored == (int(transformers.__version__.split(".")[0]) >= 5)


@pytest.mark.parametrize("where", ["outer", "nested"])
def test_a_tie_flag_of_the_speculators_form_is_seen(tmp_path: Path, where: str) -> None:
    draft = tiny.write_eagle3(tmp_path / "draft", form="speculators")
    nested = json.loads((draft / "config.json").read_text())["transformer_layer_config"]
    flag = {"tie_word_embeddings": True}
    if where == "outer":
        change_config(draft, **flag)
    else:
        change_config(draft, transformer_layer_config={**nested, **flag})
    said = "write tie_word_embeddings: false (NxDI would overwrite the LM head)"
    assert said in identify(draft).preparation


@pytest.mark.parametrize("write", [tiny.write_eagle, tiny.write_eagle3])
def test_a_tied_draft_with_its_own_head_keeps_it(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    target = tiny.write_target(tmp_path / "target", num_hidden_layers=8)
    draft = write(tmp_path / "draft", **({} if write is tiny.write_eagle else {"num_rows": 259}))
    own = torch.full((259, 32), 2.0)
    tiny.change_tensors(draft, lm_head__weight=own)
    change_config(draft, tie_word_embeddings=True)
    prepared = prepare_draft(draft, target, tmp_path / "out")
    said = "write tie_word_embeddings: false (NxDI would overwrite the LM head)"
    assert said in prepared.decisions
    assert json.loads((tmp_path / "out/config.json").read_text())["tie_word_embeddings"] is False
    assert torch.equal(load_file(tmp_path / "out/model.safetensors")[HEAD], own)


def test_a_tied_draft_model_with_another_head_is_refused(
    spec: BuildSpec, tmp_path: Path, tied: Path
) -> None:
    draft = spec.draft.model_copy(update={"method": "model", "model": str(tied)})
    model_spec = spec.model_copy(update={"draft": draft})
    (decision,) = prepare(model_spec).decisions
    assert decision.startswith("draft: config.json says tie_word_embeddings: true")
    tiny.change_tensors(tied, lm_head__weight=torch.ones(259, 32))
    with pytest.raises(CheckpointError, match=r"cannot be the draft\n.*differs from") as caught:
        prepare(model_spec)
    assert caught.value.where == tied and "tie_word_embeddings" in str(caught.value.mend)


# Files that are not read


def test_a_stale_pickle_is_told(
    target_directory: Path, eagle_directory: Path, tmp_path: Path
) -> None:
    for directory in (target_directory, eagle_directory):
        torch.save({}, directory / "pytorch_model.bin")
    found = only(of_checkpoint(identify(eagle_directory)))
    assert (found.code, found.severity) == ("unread-files", "warning")
    sentence = "model.safetensors is read, pytorch_model.bin beside it is not (NxDI's precedence)"
    assert decisions(eagle_directory, target_directory, tmp_path / "out") == [
        f"draft: {sentence}", f"target: {sentence}",
    ]  # fmt: skip
    assert str(eagle_directory) in found.mend


def test_an_index_beside_a_whole_file_is_told(target_directory: Path) -> None:
    (target_directory / "model.safetensors.index.json").write_text("{}")
    save_file({}, target_directory / "model-00001-of-00002.safetensors")
    message = only(of_checkpoint(identify(target_directory))).message
    assert message.startswith(
        "model.safetensors is read, model-00001-of-00002.safetensors, "
        "model.safetensors.index.json beside it are not"
    )


def test_a_shard_that_the_index_does_not_name_is_told(target_directory: Path) -> None:
    whole = target_directory / "model.safetensors"
    places = dict.fromkeys(load_file(whole), "model-00001-of-00001.safetensors")
    whole.rename(target_directory / "model-00001-of-00001.safetensors")
    index = target_directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert of_checkpoint(identify(target_directory)) == []
    save_file({}, target_directory / "model-00002-of-00002.safetensors")
    message = only(of_checkpoint(identify(target_directory))).message
    assert "model-00002-of-00002.safetensors beside it is not" in message
    assert "00001" not in message


def test_heads_beside_a_model_are_another_models_business(target_directory: Path) -> None:
    save_file({}, target_directory / "medusa_lm_head.safetensors")
    assert of_checkpoint(identify_target(target_directory)) == []


# Quantized weights


SCALES = {
    "weight_scale": torch.ones(1),
    "weight_scale_inv": torch.ones(1),
    "qweight": torch.ones(4, 4, dtype=torch.int32),
    "weight_packed": torch.ones(4, 4, dtype=torch.int32),
}


@pytest.mark.parametrize("suffix", SCALES)
@pytest.mark.parametrize("tensor", ["lm_head", "model.embed_tokens"])
def test_a_head_with_scales_is_refused(
    target_directory: Path, eagle_directory: Path, tmp_path: Path, suffix: str, tensor: str
) -> None:
    name = f"{tensor}.{suffix}"
    tiny.change_tensors(target_directory, **{name.replace(".", "__"): SCALES[suffix]})
    found = only(of_checkpoint(identify(target_directory)))
    assert (found.code, found.severity) == ("quantized-head", "error")
    error = refusal(eagle_directory, target_directory, tmp_path / "out")
    assert f"quantized: {name} (" in str(error) and "unquantized checkpoint" in str(error.mend)


def test_a_float_head_of_a_quantized_target_is_copied(
    target_directory: Path, eagle_directory: Path, tmp_path: Path
) -> None:
    """Its layers are packed under other names: of them nothing is needed."""
    change_config(target_directory, quantization_config={"quant_method": "awq"})
    tiny.change_tensors(
        target_directory,
        model__layers__0__mlp__up_proj__weight=None,
        model__layers__0__mlp__up_proj__qweight=SCALES["qweight"],
        model__layers__1__mlp__up_proj__weight=torch.ones(64, 16).to(torch.int8),
    )
    found = only(of_checkpoint(identify(target_directory)))
    assert (found.code, found.severity) == ("quantized-layers", "info")
    (decision,) = decisions(eagle_directory, target_directory, tmp_path / "out")
    assert "quantization_config in config.json: 'awq'" in decision
    assert "up_proj.qweight" in decision and "lm_head.weight is not (F32)" in decision
    head_copy = load_file(tmp_path / "out/model.safetensors")[HEAD]
    assert torch.equal(head_copy, load_file(target_directory / "model.safetensors")[HEAD])


def test_a_quantized_target_without_its_head_is_still_refused(
    target_directory: Path, eagle_directory: Path, tmp_path: Path
) -> None:
    change_config(target_directory, quantization_config={"quant_method": "awq"})
    tiny.change_tensors(target_directory, lm_head__weight=None)
    assert "missing: lm_head.weight" in str(
        refusal(eagle_directory, target_directory, tmp_path / "out")
    )


@pytest.mark.parametrize("how", ["config", "scale", "dtype"])
def test_a_quantized_draft_is_refused(
    target_directory: Path, eagle_directory: Path, tmp_path: Path, how: str
) -> None:
    name = "layers.0.mlp.up_proj.weight"
    if how == "config":
        change_config(eagle_directory, quantization_config={"quant_method": "fp8"})
    elif how == "scale":
        tiny.change_tensors(eagle_directory, **{f"{name}_scale": torch.ones(1)})
    else:
        change_dtypes(eagle_directory, torch.float8_e4m3fn, name)
    found = of_checkpoint(identify(eagle_directory))
    assert [(item.code, item.severity) for item in found] == [("quantized", "error")]
    error = refusal(eagle_directory, target_directory, tmp_path / "out")
    assert "the draft is quantized (" in str(error)
    mend = "remove quantization_config" if how == "config" else "use the unquantized draft"
    assert mend in str(error)


# Dtypes, and all together


def test_mixed_dtypes_are_kept_and_told(
    target_directory: Path, eagle_directory: Path, tmp_path: Path
) -> None:
    change_dtypes(eagle_directory, torch.float16, "fc.weight", "fc.bias")
    found = only(of_checkpoint(identify(eagle_directory)))
    assert (found.code, found.severity) == ("mixed-dtypes", "info")
    (decision,) = decisions(eagle_directory, target_directory, tmp_path / "out")
    assert "2 x F16 (fc.bias, fc.weight), 8 x F32 (" in decision
    assert decision.endswith("copies of the target follow fc.weight, F16")
    tensors = load_file(tmp_path / "out/model.safetensors")
    dtypes = {tensors[name].dtype for name in (HEAD, "embed_tokens.weight", "fc.weight")}
    assert dtypes == {torch.float16}
    assert tensors["layers.0.mlp.up_proj.weight"].dtype == torch.float32
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["torch_dtype"] == "float16"


def test_a_contradiction_is_plain_data() -> None:
    found = contradictions.Contradiction("code", "info", "message", "mend", "source")
    assert found.as_dict() == {
        "code": "code", "severity": "info", "message": "message", "mend": "mend",
        "source": "source",
    }  # fmt: skip


def test_all_contradictions_are_in_one_error(target_directory: Path, tmp_path: Path) -> None:
    draft = tiny.write_eagle(
        tmp_path / "eagle", vocab_size=300, rope_scaling={"type": "yarn"},
        quantization_config={"quant_method": "fp8"}, num_hidden_layers=2,
    )  # fmt: skip
    message = str(refusal(draft, target_directory, tmp_path / "out"))
    for expected in ("num_hidden_layers", "vocab_size", "rope_scaling", "the draft is quantized"):
        assert expected in message
    assert message.count("mend: ") == 4
