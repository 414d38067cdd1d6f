"""Published draft -> prepared checkpoint: bit by bit, whole or not at all, inputs untouched."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from neuron_spec.checkpoints import PreparedCheckpoint, identify, prepare, reading
from neuron_spec.checkpoints.prepare import prepare_draft
from neuron_spec.checkpoints.tensors import CheckpointFiles, read_header
from neuron_spec.errors import CheckpointError, StorageError, UserError
from neuron_spec.files import sha256
from neuron_spec.spec import BuildSpec
from neuron_spec.version import __version__

HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"


def snapshot(directory: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(directory)): (sha256(path), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def record_of(prepared: PreparedCheckpoint) -> dict[str, Any]:
    assert prepared.draft is not None
    record: dict[str, Any] = json.loads((prepared.draft / "prepared.json").read_text())
    return record


def config_of(prepared: PreparedCheckpoint) -> dict[str, Any]:
    assert prepared.draft is not None
    config: dict[str, Any] = json.loads((prepared.draft / "config.json").read_text())
    return config


def tensors_of(prepared: PreparedCheckpoint) -> dict[str, torch.Tensor]:
    assert prepared.draft is not None
    return load_file(prepared.draft / "model.safetensors")


def assert_as_recorded(prepared: PreparedCheckpoint) -> None:
    """Every tensor is bit-equal to the one that the record names, cast where it says so."""
    record, tensors = record_of(prepared)["tensors"], tensors_of(prepared)
    assert record.keys() == tensors.keys()
    for name, source in record.items():
        original = CheckpointFiles(Path(source["from"]).parent).read(source["name"])
        is_same = source["dtype"] == source["stored_dtype"]
        expected = original if is_same else original.to(tensors[name].dtype)
        assert tensors[name].dtype == expected.dtype, name
        assert torch.equal(
            tensors[name].contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
        ), name


def run(tmp_path: Path, **options: Any) -> PreparedCheckpoint:
    """Prepare `eagle` for `target`, check what always holds, and return the result."""
    draft, target = tmp_path / "eagle", tmp_path / "target"
    before = snapshot(draft), snapshot(target)
    prepared = prepare_draft(draft, target, tmp_path / "out", **options)
    assert (snapshot(draft), snapshot(target)) == before
    assert_as_recorded(prepared)
    assert prepared.draft is not None
    identity = identify(prepared.draft)
    assert identity.is_prepared and (identity.unexpected, identity.misshapen) == ((), ())
    return prepared


def shard(directory: Path) -> None:
    """Split model.safetensors in two, the LM head in the second."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    places = {name: f"model-0000{1 + (name == HEAD)}-of-00002.safetensors" for name in tensors}
    for place in set(places.values()):
        save_file({n: t for n, t in tensors.items() if places[n] == place}, directory / place)
    path.unlink()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


# What is copied from where


def test_the_targets_own_head_and_embedding(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    prepared = run(tmp_path)
    target, draft = (
        load_file(directory / "model.safetensors")
        for directory in (target_directory, eagle_directory)
    )
    tensors = tensors_of(prepared)
    assert tensors.keys() == draft.keys() | {HEAD, EMBEDDING}
    assert torch.equal(tensors[HEAD], target["lm_head.weight"])
    assert torch.equal(tensors[EMBEDDING], target["model.embed_tokens.weight"])
    assert all(torch.equal(tensors[name], tensor) for name, tensor in draft.items())
    assert prepared.is_new
    weights = target_directory / "model.safetensors"
    assert prepared.decisions == (
        f"copied {HEAD} from lm_head.weight [259, 32] in {weights}: the target's own LM head",
        f"copied {EMBEDDING} from model.embed_tokens.weight [259, 32] in {weights}: "
        "the draft was trained on the target's embedding",
        "write fc_bias: true (NxDI drops fc.bias otherwise)",
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json", "model.safetensors", "prepared.json",
    ]  # fmt: skip


def test_the_record_says_what_was_read(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    record = record_of(run(tmp_path))
    assert record["neuron_spec_version"] == __version__
    for role, directory in (("target", target_directory), ("draft", eagle_directory)):
        source = record["sources"][role]
        assert source["directory"] == str(directory)
        # A target may be huge: of its weights only the head is read, its digest is the tensor's.
        weights = sha256(directory / "model.safetensors") if role == "draft" else None
        assert [(f["name"], f["sha256"]) for f in source["files"]] == [
            ("config.json", sha256(directory / "config.json")),
            ("model.safetensors", weights),
        ]
    head = load_file(target_directory / "model.safetensors")["lm_head.weight"]
    digest = hashlib.sha256(head.numpy().tobytes()).hexdigest()
    assert record["tensors"]["lm_head.weight"]["sha256"] == digest
    assert [(f["name"], f["sha256"]) for f in record["files"]] == [
        (name, sha256(tmp_path / "out" / name)) for name in ("config.json", "model.safetensors")
    ]


@pytest.mark.parametrize("stores_head", [False, True])
def test_a_tied_target_gives_its_embedding(
    tmp_path: Path, eagle_directory: Path, stores_head: bool
) -> None:
    """Also when the same values are stored as a head; another head: see test_contradictions."""
    target = tiny.write_target(tmp_path / "target", tie_word_embeddings=True)
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    if stores_head:
        tiny.change_tensors(target, lm_head__weight=embedding.clone())
    prepared = run(tmp_path)
    assert torch.equal(tensors_of(prepared)[HEAD], embedding)
    assert "ties its LM head to its embedding" in prepared.decisions[0]
    assert config_of(prepared)["tie_word_embeddings"] is False


def test_a_sharded_target_gives_its_head(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    shard(target_directory)
    prepared = run(tmp_path)
    source = record_of(prepared)["tensors"][HEAD]
    assert source["from"] == str(target_directory / "model-00002-of-00002.safetensors")
    names = [f["name"] for f in record_of(prepared)["sources"]["target"]["files"]]
    assert names == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "old format"])
def test_a_published_pickle(
    tmp_path: Path, target_directory: Path, eagle_directory: Path, is_zip: bool
) -> None:
    tensors = load_file(eagle_directory / "model.safetensors")
    (eagle_directory / "model.safetensors").unlink()
    path = eagle_directory / "pytorch_model.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=is_zip)
    assert tensors_of(run(tmp_path)).keys() == tensors.keys() | {HEAD, EMBEDDING}


def test_an_embedding_and_a_head_that_the_draft_has_are_kept(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    own = torch.full((259, 32), 3.0)
    tiny.change_tensors(eagle_directory, embed_tokens__weight=own, lm_head__weight=own + 1)
    prepared = run(tmp_path)
    assert torch.equal(tensors_of(prepared)[EMBEDDING], own)
    assert torch.equal(tensors_of(prepared)[HEAD], own + 1)
    assert not any(decision.startswith("copied") for decision in prepared.decisions)


def test_a_prefix_is_removed_and_derived_buffers_are_dropped(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    path = eagle_directory / "model.safetensors"
    tensors = {f"model.{name}": tensor for name, tensor in load_file(path).items()}
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file({**tensors, buffer: torch.ones(4)}, path)
    prepared = run(tmp_path)
    assert tensors_of(prepared).keys() == {n.removeprefix("model.") for n in tensors} | {
        HEAD, EMBEDDING,
    }  # fmt: skip
    assert "renamed model.fc.weight to fc.weight" in prepared.decisions
    assert f"dropped {buffer}: rebuilt by every loader" in prepared.decisions


# The config


@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize("in_config", [True, False])
def test_the_file_decides_about_fc_bias(
    tmp_path: Path, target_directory: Path, in_file: bool, in_config: bool
) -> None:
    draft = tiny.write_eagle(tmp_path / "eagle", bias=in_config)
    tiny.change_tensors(draft, fc__bias=torch.ones(32))
    if not in_file:
        tiny.change_tensors(draft, fc__bias=None)
    config = config_of(run(tmp_path))
    assert config["fc_bias"] is in_file and "bias" not in config


def test_the_config_keeps_what_the_draft_says_and_adds_what_decides(
    tmp_path: Path, target_directory: Path
) -> None:
    draft = tiny.write_eagle(tmp_path / "eagle", model_type="qwen2", attention_bias=False, note=1)
    raw = json.loads((draft / "config.json").read_text())
    raw.pop("pad_token_id")
    (draft / "config.json").write_text(json.dumps({**raw, "tie_word_embeddings": True}))
    config = config_of(run(tmp_path))
    assert config["note"] == 1 and config["num_hidden_layers"] == 1
    assert (config["architectures"], config["model_type"]) == (["LlamaForCausalLM"], "llama")
    assert config["tie_word_embeddings"] is False
    assert (config["torch_dtype"], config["pad_token_id"]) == ("float32", 0)


# Dtypes


@pytest.mark.parametrize("target_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("draft_dtype", ["float16", "bfloat16", "float32"])
def test_a_head_of_another_dtype_is_cast_and_recorded(
    tmp_path: Path, draft_dtype: str, target_dtype: str
) -> None:
    tiny.write_target(tmp_path / "target", torch_dtype=target_dtype)
    tiny.write_eagle(tmp_path / "eagle", torch_dtype=draft_dtype)
    prepared = run(tmp_path)
    assert {str(t.dtype) for t in tensors_of(prepared).values()} == {f"torch.{draft_dtype}"}
    assert config_of(prepared)["torch_dtype"] == draft_dtype
    short = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
    note = f", cast from {short[target_dtype]} to {short[draft_dtype]}"
    assert (note in prepared.decisions[0]) == (draft_dtype != target_dtype)
    source = record_of(prepared)["tensors"][HEAD]
    assert (source["stored_dtype"], source["dtype"]) == (short[target_dtype], short[draft_dtype])


def test_a_cast_that_overflows_leaves_nothing(tmp_path: Path, target_directory: Path) -> None:
    tiny.write_eagle(tmp_path / "eagle", torch_dtype="float16")
    tiny.change_tensors(target_directory, lm_head__weight=torch.full((259, 32), 1e6))
    with pytest.raises(CheckpointError, match="overflows"):
        prepare_draft(tmp_path / "eagle", target_directory, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_quantized_head_is_refused(
    tmp_path: Path, target_directory: Path, eagle_directory: Path, dtype: torch.dtype
) -> None:
    """Without its scale a cast would give another matrix."""
    tiny.change_tensors(target_directory, lm_head__weight=torch.ones(259, 32).to(dtype))
    with pytest.raises(CheckpointError, match=r"quantized: lm_head\.weight \((I8|F8_E4M3)\)"):
        prepare_draft(eagle_directory, target_directory, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


# What does not belong together


def test_all_faults_of_a_pair_are_in_one_error(tmp_path: Path, target_directory: Path) -> None:
    draft = tiny.write_eagle(tmp_path / "eagle", hidden_size=16, vocab_size=300)
    tiny.change_tensors(
        draft,
        fc__bias=torch.ones(3),
        layers__0__mlp__up_proj__weight=None,
        layers__7__mlp__up_proj__weight=torch.ones(1),
    )
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(CheckpointError) as caught:
        prepare_draft(draft, target_directory, tmp_path / "out")
    for expected in (
        f"does not fit the target {target_directory}",
        "missing: layers.0.mlp.up_proj.weight",
        "unexpected: layers.7.mlp.up_proj.weight",
        "misshapen: fc.bias: found [3], expected [16] by config.json",
        "hidden_size: draft 16, target 32",
        "vocab_size: draft 300, target 259",
        "num_hidden_layers: found 2, expected 1",
    ):
        assert expected in str(caught.value), expected
    assert caught.value.where == draft
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("change", [{"hidden_size": 16}, {"vocab_size": 258}])
def test_one_wrong_size_is_enough(
    tmp_path: Path, target_directory: Path, change: dict[str, int]
) -> None:
    draft = tiny.write_eagle(tmp_path / "eagle", **change)
    with pytest.raises(CheckpointError, match=next(iter(change))):
        prepare_draft(draft, target_directory, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_an_incomplete_target_is_refused(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    tiny.change_tensors(
        target_directory,
        lm_head__weight=None,
        model__layers__1__mlp__up_proj__weight=torch.ones(2, 2),
    )
    with pytest.raises(CheckpointError) as caught:
        prepare_draft(eagle_directory, target_directory, tmp_path / "out")
    assert caught.value.where == target_directory
    assert "missing: lm_head.weight" in str(caught.value)
    assert "model.layers.1.mlp.up_proj.weight: found [2, 2]" in str(caught.value)


def test_models_in_each_others_place_are_told_so(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    for draft, target, culprit in (
        (target_directory, target_directory, target_directory),
        (eagle_directory, eagle_directory, eagle_directory),
        (target_directory, eagle_directory, target_directory),
    ):
        with pytest.raises(CheckpointError, match="is a (causal-lm|eagle) checkpoint") as caught:
            prepare_draft(draft, target, tmp_path / "out")
        assert caught.value.where == culprit


# Again, anew, interrupted


def test_running_again_writes_nothing(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    first = run(tmp_path)
    before = snapshot(tmp_path / "out")
    second = run(tmp_path)
    assert (second.is_new, second.decisions) == (False, first.decisions)
    assert snapshot(tmp_path / "out") == before
    for path in (target_directory / "config.json", eagle_directory / "model.safetensors"):
        os.utime(path, ns=(1, 1))  # touched, the same bytes
    assert not run(tmp_path).is_new
    os.utime(target_directory / "model.safetensors", ns=(1, 1))  # has no digest: prepared anew
    assert run(tmp_path).is_new


@pytest.mark.usefixtures("eagle_directory")
def test_of_the_target_only_the_grafted_tensors_are_read(
    tmp_path: Path, target_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large the target is, a graft costs its head and its embedding."""
    weights = target_directory / "model.safetensors"
    ranges: list[tuple[int, int]] = []

    class CountedReads(io.BufferedReader):
        def readinto(self, buffer: Any) -> int:
            offset, count = self.tell(), super().readinto(buffer)
            if self.name == weights:
                ranges.append((offset, count))
            return count

        def read(self, size: int | None = -1) -> bytes:
            offset, data = self.tell(), super().read(size)
            if self.name == weights:
                ranges.append((offset, len(data)))
            return data

    monkeypatch.setattr(reading, "open_regular", lambda path: CountedReads(io.FileIO(path)))
    run(tmp_path)
    entries = {entry.name: entry for entry in read_header(weights)}
    grafted = [entries[name] for name in ("lm_head.weight", "model.embed_tokens.weight")]
    assert sorted(ranges) == sorted((t.offset, t.num_bytes) for t in grafted)


def transferred() -> dict[str, int]:
    """Bytes that this process has read and written by system calls so far, of whatever file."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(count) for name, count in (line.split(": ") for line in lines)}


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="nothing counts the bytes here")
@pytest.mark.parametrize("form", ["one file", "shards", "pickle"])
def test_each_byte_is_read_once_and_written_once(tmp_path: Path, form: str) -> None:
    """Copied and digested at once: the draft's, the target's two matrices, and the output's."""
    target = tiny.write_target(tmp_path / "target", vocab_size=40_000)
    draft = tiny.write_eagle(tmp_path / "eagle", vocab_size=40_000, intermediate_size=40_000)
    if form == "shards":
        tiny.change_tensors(draft, lm_head__weight=torch.ones(40_000, 32))
        shard(draft)
        shard(target)
    elif form == "pickle":
        tensors = load_file(draft / "model.safetensors")
        (draft / "model.safetensors").unlink()
        torch.save(tensors, draft / "pytorch_model.bin")
    before = transferred()
    prepared = prepare_draft(draft, target, tmp_path / "out")
    after = transferred()
    size = (tmp_path / "out" / "model.safetensors").stat().st_size
    slack = 500_000  # headers, configs, records; the smallest of the large tensors has 5 MB
    assert size > 20e6
    assert size <= after["rchar"] - before["rchar"] < size + slack
    assert size <= after["wchar"] - before["wchar"] < size + slack
    assert_as_recorded(prepared)


def test_what_keeps_its_dtype_is_prepared_without_torch(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    """Importing torch alone takes seconds, and most of the memory that a preparation may have."""
    code = """
import sys
from pathlib import Path
from neuron_spec.checkpoints.prepare import prepare_draft
assert prepare_draft(*map(Path, sys.argv[1:])).is_new
print({"torch", "numpy", "transformers"} & set(sys.modules))
"""
    folders = [str(path) for path in (eagle_directory, target_directory, tmp_path / "out")]
    command = [sys.executable, "-c", code, *folders]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("set()\n", "")


@pytest.mark.parametrize("role", ["eagle", "target"])
def test_a_source_that_changes_while_it_is_copied_is_noticed_later(
    tmp_path: Path, target_directory: Path, eagle_directory: Path, role: str
) -> None:
    changed = []

    def change(label: str, done: int, total: int) -> None:
        if label.startswith("write") and not changed:
            tiny.change_tensors(tmp_path / role, **{CHANGED[role]: torch.zeros(32)})
            changed.append(role)

    prepare_draft(eagle_directory, target_directory, tmp_path / "out", progress=change)
    assert changed
    assert prepare_draft(eagle_directory, target_directory, tmp_path / "out").is_new
    assert_as_recorded(run(tmp_path))


CHANGED = {"eagle": "fc__bias", "target": "model__norm__weight"}


def test_force_writes_anew(tmp_path: Path, target_directory: Path, eagle_directory: Path) -> None:
    run(tmp_path)
    before = snapshot(tmp_path / "out")
    assert run(tmp_path, force=True).is_new
    after = snapshot(tmp_path / "out")
    assert after["model.safetensors"][0] == before["model.safetensors"][0]
    assert after["model.safetensors"][1] != before["model.safetensors"][1]


@pytest.mark.parametrize(
    "change",
    ["target weights", "draft weights", "draft config", "other folder", "version",
     "output gone", "output cut", "output config gone", "record damaged", "record of another"],
)  # fmt: skip
def test_whatever_changed_is_written_anew(
    tmp_path: Path, target_directory: Path, eagle_directory: Path, change: str
) -> None:
    run(tmp_path)
    out, target = tmp_path / "out", target_directory
    if change == "target weights":
        tiny.change_tensors(target, lm_head__weight=torch.zeros(259, 32))
    elif change == "draft weights":
        tiny.change_tensors(eagle_directory, fc__bias=torch.zeros(32))
    elif change == "draft config":
        config = eagle_directory / "config.json"
        config.write_text(config.read_text().replace("10000.0", "20000.0"))
    elif change == "other folder":
        target.rename(tmp_path / "moved")
        (tmp_path / "target").symlink_to(tmp_path / "moved")
        target = tmp_path / "moved"
    elif change == "version":
        record = out / "prepared.json"
        record.write_text(record.read_text().replace(__version__, "0.0.0"))
    elif change == "output gone":
        (out / "model.safetensors").unlink()
    elif change == "output cut":
        os.truncate(out / "model.safetensors", 1000)
    elif change == "output config gone":
        (out / "config.json").unlink()
    else:
        (out / "prepared.json").write_text("{" if change == "record damaged" else "{}")
    prepared = prepare_draft(eagle_directory, target, out)
    assert prepared.is_new
    assert_as_recorded(prepared)


def test_a_file_that_takes_precedence_is_noticed(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    """The files that were read are unchanged, but would not be read any more."""
    shard(target_directory)
    run(tmp_path)
    config = json.loads((target_directory / "config.json").read_text())
    save_file(tiny.target_tensors(config, seed=9), target_directory / "model.safetensors")
    assert run(tmp_path).is_new


@pytest.mark.parametrize("label", ["write model.safetensors", "digest config.json"])
def test_an_interruption_leaves_nothing(
    tmp_path: Path, target_directory: Path, eagle_directory: Path, label: str
) -> None:
    def interrupt(current: str, done: int, total: int) -> None:
        if current == label:
            raise KeyboardInterrupt

    before = snapshot(eagle_directory), snapshot(target_directory)
    with pytest.raises(KeyboardInterrupt):
        prepare_draft(eagle_directory, target_directory, tmp_path / "out", progress=interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eagle", "target"]
    assert (snapshot(eagle_directory), snapshot(target_directory)) == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_storage_error_and_leaves_nothing(
    tmp_path: Path,
    target_directory: Path,
    eagle_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(StorageError, match=os.strerror(number)) as caught:
        prepare_draft(eagle_directory, target_directory, tmp_path / "out")
    assert caught.value.exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eagle", "target"]


def test_an_input_is_never_the_output(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    prepared = run(tmp_path).draft
    assert prepared is not None
    before = snapshot(prepared)
    (tmp_path / "link").symlink_to(prepared)
    for draft, target, out in (
        (prepared, target_directory, prepared),
        (prepared, target_directory, tmp_path / "link"),
        (eagle_directory, target_directory, target_directory),
    ):
        with pytest.raises(UserError, match="is an input"):
            prepare_draft(draft, target, out, force=True)
    assert snapshot(prepared) == before


def test_a_prepared_draft_can_be_prepared_elsewhere(
    tmp_path: Path, target_directory: Path, eagle_directory: Path
) -> None:
    first = run(tmp_path)
    assert first.draft is not None
    again = prepare_draft(first.draft, target_directory, tmp_path / "again")
    assert again.decisions == ()
    assert tensors_of(again).keys() == tensors_of(first).keys()
    assert_as_recorded(again)


# From a build spec


def test_a_spec_is_prepared_into_its_build_folder(spec: BuildSpec, tmp_path: Path) -> None:
    prepared = prepare(spec)
    assert prepared.draft == Path("build/tiny/draft")
    assert prepared.target == tmp_path / "target"
    assert (tmp_path / "build" / "tiny" / "draft" / "prepared.json").is_file()
    assert not prepare(spec).is_new
    assert prepare(spec, tmp_path / "elsewhere").draft == tmp_path / "elsewhere"


def test_without_a_draft_there_is_nothing_to_prepare(spec: BuildSpec, tmp_path: Path) -> None:
    alone = spec.model_copy(update={"draft": type(spec.draft)()})
    assert prepare(alone) == PreparedCheckpoint(tmp_path / "target", None)
    assert not (tmp_path / "build").exists()
