"""Medusa heads in every public form become the one file that NxDI reads, beside the target."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_heads
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from neuron_spec.backends.reference.loading import Placement
from neuron_spec.backends.reference.parallel_heads import MedusaHeads
from neuron_spec.checkpoints import identify
from neuron_spec.checkpoints.identify import identify_target
from neuron_spec.checkpoints.prepare import PreparedCheckpoint, prepare_draft
from neuron_spec.errors import CheckpointError

GOLDEN = Path(__file__).parents[1] / "golden"
NUM_HEADS = 3  # as in the golden file
PLACEMENT = Placement(1, 16, torch.float32, torch.device("cpu"))
FORMS = tiny_heads.MEDUSA_FORMS
WITHOUT_PROJECTIONS = ("legacy", "tgi-v2")
WITH_BIAS = tuple(form for form in FORMS if not form.startswith("vllm") or form == "vllm-bias")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny.write_target(tmp_path / "target")


def write(tmp_path: Path, form: str = "authors", **changes: Any) -> Path:
    return tiny_heads.write_medusa(tmp_path / f"published-{form}", form=form, **changes)


def run(draft: Path, target: Path, **options: Any) -> PreparedCheckpoint:
    return prepare_draft(draft, target, draft.parent / "prepared", **options)


def heads_of(folder: Path) -> dict[str, Tensor]:
    """As NxDI loads them: NxDI `models/application_base.py`, `get_state_dict`."""
    loaded: dict[str, Tensor] = torch.load(folder / "medusa_heads.pt", map_location="cpu")
    return loaded


def published(form: str) -> dict[str, Tensor]:
    """What the fixtures of every form are made of, under the authors' keys."""
    config = {"num_heads": NUM_HEADS, "seed": 3}
    return tiny_heads._medusa_tensors(**config)


def expected_of(form: str, target: Path) -> dict[str, Tensor]:
    """NxDI's file for that form, written down independently of the package."""
    source = published(form)
    lm_head = load_file(target / "model.safetensors")["lm_head.weight"]
    expected = {}
    for head in range(NUM_HEADS):
        bias, own = source[f"{head}.0.linear.bias"], source[f"{head}.1.weight"]
        expected[f"medusa_head_{head}.0.linear.weight"] = source[f"{head}.0.linear.weight"]
        expected[f"medusa_head_{head}.0.linear.bias"] = (
            bias if form in WITH_BIAS else torch.zeros_like(bias)
        )
        if form in WITHOUT_PROJECTIONS:
            own = lm_head
        elif form == "vllm-shared":
            own = source["0.1.weight"]
        elif form == "vllm-truncated":
            token_ids = load_file(target.parent / f"published-{form}/model.safetensors")[
                "token_map"
            ]
            mean = own[token_ids].double().mean(dim=0).float()
            own = mean.repeat(len(own), 1).index_copy(0, token_ids, own[token_ids])
        expected[f"medusa_head_{head}.1.weight"] = own
    return expected


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_recognised(form: str, tmp_path: Path) -> None:
    identity = identify(write(tmp_path, form))
    assert identity.family == "medusa"
    assert not (identity.missing or identity.unexpected or identity.misshapen)
    assert identity.refusals() == []
    assert identity.is_prepared == (form == "nxdi")
    steps = " ".join(identity.preparation)
    assert ("copy the target's LM head" in steps) == (form in WITHOUT_PROJECTIONS)
    assert ("zero biases" in steps) == (form not in WITH_BIAS)
    assert ("token_map" in steps) == (form == "vllm-truncated")
    assert ("that they share" in steps) == (form == "vllm-shared")
    assert ("rename" in steps) == (form != "nxdi")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_nxdis_file(form: str, tmp_path: Path, target: Path) -> None:
    prepared = run(write(tmp_path, form), target)
    assert prepared.draft is not None and prepared.is_new
    found, expected = heads_of(prepared.draft), expected_of(form, target)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        if form == "vllm-truncated" and name.endswith("1.weight"):
            torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(found[name], tensor), name
    heads = MedusaHeads(prepared.draft, PLACEMENT)  # and the reference backend computes with it
    logits = heads.head_logits(torch.ones(32), NUM_HEADS)
    weight, bias = (expected[f"medusa_head_1.0.linear.{part}"] for part in ("weight", "bias"))
    state = 1 + F.silu(weight.sum(dim=1) + bias)
    torch.testing.assert_close(logits[1], expected["medusa_head_1.1.weight"] @ state)
    # The keys of the heads that NxDI itself was run with.
    assert found.keys() == load_file(GOLDEN / "medusa/medusa_heads.safetensors").keys()


@pytest.mark.parametrize("form", ["legacy", "vllm-shared"])
def test_a_shared_projection_is_stored_once(form: str, tmp_path: Path, target: Path) -> None:
    prepared = run(write(tmp_path, form), target)
    assert prepared.draft is not None
    heads = heads_of(prepared.draft)
    places = {heads[f"medusa_head_{head}.1.weight"].data_ptr() for head in range(NUM_HEADS)}
    assert len(places) == 1
    blocks = NUM_HEADS * (32 * 32 + 32) * 4
    size = (prepared.draft / "medusa_heads.pt").stat().st_size
    assert blocks + 259 * 32 * 4 < size < blocks + 259 * 32 * 4 + 4096


def test_a_tied_target_gives_its_embedding(tmp_path: Path) -> None:
    target = tiny.write_target(tmp_path / "target", tie_word_embeddings=True)
    prepared = run(write(tmp_path, "legacy"), target)
    assert prepared.draft is not None
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(heads_of(prepared.draft)["medusa_head_2.1.weight"], embedding)
    assert any("embedding" in decision for decision in prepared.decisions)


@pytest.mark.parametrize("form", ["authors", "legacy"])
def test_the_file_is_a_sound_pytorch_file(form: str, tmp_path: Path, target: Path) -> None:
    """Mapped or not, with aligned values and right checksums, the same for the same input."""
    prepared = run(write(tmp_path, form), target)
    assert prepared.draft is not None
    path = prepared.draft / "medusa_heads.pt"
    mapped = torch.load(path, mmap=True, weights_only=True)
    for name, tensor in heads_of(prepared.draft).items():
        assert torch.equal(mapped[name], tensor), name
        assert mapped[name].data_ptr() % 64 == 0
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
    first = path.read_bytes()
    run(tmp_path / f"published-{form}", target, force=True)
    assert path.read_bytes() == first


def test_the_folder_is_the_target_with_heads_beside(tmp_path: Path, target: Path) -> None:
    prepared = run(write(tmp_path), target)
    assert prepared.draft is not None
    own = {path.name for path in prepared.draft.iterdir()}
    assert own == {path.name for path in target.iterdir()} | {"medusa_heads.pt", "prepared.json"}
    for path in target.iterdir():
        assert (prepared.draft / path.name).samefile(path)  # no second copy of the weights
    assert identify(prepared.draft).family == "medusa" and identify(prepared.draft).is_prepared
    assert identify_target(prepared.draft).family == "causal-lm"


def test_without_hard_links_files_are_copied(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    prepared = run(write(tmp_path), target)
    assert prepared.draft is not None
    for path in target.iterdir():
        assert (prepared.draft / path.name).read_bytes() == path.read_bytes()
        assert not (prepared.draft / path.name).samefile(path)


def test_a_sharded_target_is_linked_with_its_index(tmp_path: Path, target: Path) -> None:
    tensors = load_file(target / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, target / shard)
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    index = json.dumps({"weight_map": weight_map})
    (target / "model.safetensors.index.json").write_text(index)
    (target / "model.safetensors").unlink()
    (target / "pytorch_model.bin").write_bytes(b"stale")
    prepared = run(write(tmp_path, "legacy"), target)
    assert prepared.draft is not None
    linked = {path.name for path in prepared.draft.iterdir()}
    assert {"a.safetensors", "b.safetensors", "model.safetensors.index.json"} <= linked
    assert "pytorch_model.bin" not in linked
    head = heads_of(prepared.draft)["medusa_head_0.1.weight"]
    assert torch.equal(head, tensors["lm_head.weight"])


def test_running_again_does_nothing_until_something_changes(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path, "legacy")
    assert run(draft, target).is_new
    again = run(draft, target)
    assert not again.is_new and again.decisions
    tokenizer = target / "tokenizer.json"
    replaced = tokenizer.read_text()
    tokenizer.unlink()
    tokenizer.write_text(replaced + " ")
    assert run(draft, target).is_new
    (tmp_path / "prepared/medusa_heads.pt").write_bytes(b"")
    assert run(draft, target).is_new


def test_a_medusa_2_model_is_split(tmp_path: Path) -> None:
    model = tiny_heads.write_medusa_2(tmp_path / "model")
    before = load_file(model / "model.safetensors")
    prepared = run(model, model)
    assert prepared.draft is not None
    base = load_file(prepared.draft / "model.safetensors")
    assert base.keys() == {name for name in before if not name.startswith("medusa_head.")}
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.items())
    for name, tensor in heads_of(prepared.draft).items():
        assert torch.equal(tensor, before[name.replace("medusa_head_", "medusa_head.")])
    config = json.loads((prepared.draft / "config.json").read_text())
    assert config["hidden_size"] == 32 and "medusa_num_heads" not in config
    logits = MedusaHeads(prepared.draft, PLACEMENT).head_logits(torch.ones(32), NUM_HEADS)
    assert logits.shape == (NUM_HEADS, 259)
    assert (prepared.draft / "tokenizer.json").is_file()


def test_medusa_2_heads_fit_no_other_base(tmp_path: Path, target: Path) -> None:
    model = tiny_heads.write_medusa_2(tmp_path / "model")
    with pytest.raises(CheckpointError, match="base model that was tuned with them") as caught:
        run(model, target)
    assert "set target.model to this directory" in str(caught.value)


def faults_of(draft: Path, target: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        run(draft, target)
    assert not (draft.parent / "prepared").exists()
    return str(caught.value)


def change(path: Path, **changes: Tensor | None) -> None:
    """Replace or remove tensors of a file of the safetensors kind; `_` stands for a dot."""
    tensors = load_file(path)
    for name, tensor in changes.items():
        key = name.lstrip("n").replace("_", ".")
        tensors.pop(key, None)
        if tensor is not None:
            tensors[key] = tensor
    save_file(tensors, path)


def test_all_faults_are_in_one_error(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path, "authors-safetensors")
    change(
        draft / "medusa_lm_head.safetensors",
        n1_0_linear_weight=None,
        n2_1_weight=None,
        n0_0_linear_bias=torch.zeros(31),
        n7x=torch.zeros(2),
    )
    text = faults_of(draft, target)
    assert "missing: medusa_head_1.0.linear.weight" in text
    assert "missing: medusa_head_2.1.weight" in text
    assert "medusa_head_0.0.linear.bias: found [31], expected [32]" in text
    assert "unexpected: 7x" in text


def test_more_blocks_than_nxdi_has_are_refused(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path, "authors-safetensors", medusa_num_layers=2)
    tensors = load_file(draft / "medusa_lm_head.safetensors")
    two = {name.replace(".1.weight", ".2.weight"): t for name, t in tensors.items()}
    two |= {
        name.replace(".0.linear", ".1.linear"): t.clone()
        for name, t in tensors.items()
        if ".0.linear" in name
    }
    save_file(two, draft / "medusa_lm_head.safetensors")
    text = faults_of(draft, target)
    assert "2 blocks a head: NxDI has exactly one" in text and "unexpected" not in text


def test_another_targets_heads_are_refused(tmp_path: Path) -> None:
    wide = tiny.write_target(tmp_path / "wide", hidden_size=64)
    assert "hidden_size: draft 32, target 64" in faults_of(write(tmp_path, "legacy"), wide)
    many = tiny.write_target(tmp_path / "many", vocab_size=300)
    assert "vocab_size: draft 259, target 300" in faults_of(write(tmp_path, "authors"), many)
    # Heads without a projection know no vocabulary.
    assert run(tmp_path / "published-legacy", many).is_new


@pytest.mark.parametrize(
    "token_map",
    [
        torch.arange(101) + 200,  # beyond the vocabulary
        torch.arange(101) - 1,
        torch.zeros(101, dtype=torch.long),
        torch.arange(101.0),
    ],
    ids=["beyond", "negative", "repeated", "floats"],
)
def test_a_map_that_is_none_is_refused(token_map: Tensor, tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path, "vllm-truncated")
    tensors = load_file(draft / "model.safetensors")
    save_file({**tensors, "token_map": token_map}, draft / "model.safetensors")
    assert "token_map is no list of different tokens" in faults_of(draft, target)


def test_a_truncated_head_without_its_map_is_refused(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path, "vllm-truncated")
    tensors = load_file(draft / "model.safetensors")
    del tensors["token_map"]
    save_file(tensors, draft / "model.safetensors")
    text = faults_of(draft, target)
    assert "truncated_vocab_size 101, but no token_map" in text


def test_a_quantized_head_is_refused(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path, "authors-safetensors")
    path = draft / "medusa_lm_head.safetensors"
    save_file({name: tensor.to(torch.int8) for name, tensor in load_file(path).items()}, path)
    assert "the draft is quantized" in faults_of(draft, target)


def test_the_number_of_heads_is_counted_not_believed(tmp_path: Path, target: Path) -> None:
    """Published configs name another number than their files hold."""
    prepared = run(write(tmp_path, medusa_num_heads=2), target)
    assert prepared.draft is not None
    assert len(heads_of(prepared.draft)) == 3 * NUM_HEADS
