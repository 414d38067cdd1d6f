"""Reading weight files: like safetensors' own library, and never trusting a byte."""

from __future__ import annotations

import json
import math
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from neuron_spec.checkpoints.tensors import (
    ITEM_BYTES,
    TORCH_DTYPES,
    WEIGHT_FILES,
    CheckpointFiles,
    load_pickle,
    read_header,
    read_json,
)
from neuron_spec.errors import CheckpointError

Tensors = dict[str, torch.Tensor]


def sample(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Random bytes of that dtype; not-a-numbers included."""
    num_items = math.prod(shape)
    generator = torch.Generator().manual_seed(num_items)
    raw = torch.randint(0, 256, (num_items * ITEM_BYTES[dtype],), generator=generator)
    raw = (raw % 2 if dtype == "BOOL" else raw).to(torch.uint8)
    return raw.view(getattr(torch, TORCH_DTYPES[dtype])).reshape(shape)


def all_dtypes() -> Tensors:
    shapes = {"matrix": (3, 5), "vector": (7,), "scalar": (), "nothing": (0, 4)}
    return {
        f"{kind}.{dtype}": sample(shape, dtype)
        for dtype in ITEM_BYTES
        for kind, shape in shapes.items()
    }


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    raw = [t.reshape(-1).contiguous().view(torch.uint8) for t in (ours, theirs)]
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(*raw)


def assert_reads(directory: Path, expected: Tensors) -> None:
    files = CheckpointFiles(directory)
    assert files.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        stored = files.tensors[name]
        assert stored.shape == tuple(tensor.shape), name
        assert stored.num_bytes == tensor.numel() * tensor.element_size(), name
        assert same_bits(files.read(name), tensor), name
        pieces = list(files.blocks(stored, max_bytes=8))
        assert all(piece.numel() * piece.element_size() <= 8 for piece in pieces)
        assert same_bits(torch.cat(pieces), tensor.reshape(-1)), name


def write_raw(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin: int, end: int, dtype: Any = "F32", shape: Any = None) -> dict[str, Any]:
    shape = [(end - begin) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_index(directory: Path, shards: dict[str, Any], name: str = "model.safetensors") -> None:
    (directory / f"{name}.index.json").write_text(json.dumps({"weight_map": shards}))


# Reading what others wrote


def test_every_dtype_of_a_single_file(tmp_path: Path) -> None:
    save_file(all_dtypes(), tmp_path / "model.safetensors", {"format": "pt"})
    assert_reads(tmp_path, load_file(tmp_path / "model.safetensors"))


def test_every_dtype_of_sharded_files(tmp_path: Path) -> None:
    tensors = all_dtypes()
    shards = {name: f"model-{len(name) % 3}.safetensors" for name in tensors}
    for shard in set(shards.values()):
        save_file({n: t for n, t in tensors.items() if shards[n] == shard}, tmp_path / shard)
    write_index(tmp_path, shards)
    assert len(CheckpointFiles(tmp_path).files) == 3
    assert_reads(tmp_path, tensors)


def test_every_dtype_of_a_pickle(tmp_path: Path) -> None:
    torch.save(all_dtypes(), tmp_path / "pytorch_model.bin")
    assert_reads(tmp_path, all_dtypes())


def test_a_pickle_from_before_the_zip_format(tmp_path: Path) -> None:
    dtypes = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")
    tensors = {n: t for n, t in all_dtypes().items() if n.split(".")[1] in dtypes}
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert len(tensors) == 4 * len(dtypes)
    assert_reads(tmp_path, tensors)


def test_sharded_pickles(tmp_path: Path) -> None:
    parts = {"a": torch.arange(4.0), "b": torch.arange(6)}
    for name, tensor in parts.items():
        torch.save({name: tensor}, tmp_path / f"pytorch_model-{name}.bin")
    write_index(tmp_path, {n: f"pytorch_model-{n}.bin" for n in parts}, "pytorch_model.bin")
    assert_reads(tmp_path, parts)


def test_values_that_are_not_aligned_are_read(tmp_path: Path) -> None:
    data = b"\x01" + struct.pack("<2f", 1.5, -2.0)
    header = {"a": entry(0, 1, "U8", [1]), "b": entry(1, 9)}
    write_raw(tmp_path / "model.safetensors", json.dumps(header).encode().ljust(160), data)
    assert CheckpointFiles(tmp_path).read("b").tolist() == [1.5, -2.0]


def test_reading_never_writes_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4)}, path)
    before = path.read_bytes()
    CheckpointFiles(tmp_path).read("a").zero_()
    assert path.read_bytes() == before


def test_the_precedence_of_files_is_nxdis(tmp_path: Path) -> None:
    for name in reversed(WEIGHT_FILES):
        (tmp_path / name).write_text("{}")
        assert CheckpointFiles(tmp_path).weight_file.name == name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_parameters_and_views_in_a_pickle(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(6.0).reshape(2, 3).to(dtype)
    torch.save({"p": torch.nn.Parameter(values), "t": values.T}, tmp_path / "pytorch_model.bin")
    files = CheckpointFiles(tmp_path)
    assert not files.read("p").requires_grad
    assert same_bits(files.read("t"), values.T.contiguous())


# Refusing what is damaged


def fault_of(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert str(path) in str(caught.value) and caught.value.exit_code == 2
    return caught.value


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3), "b": torch.ones(2, 2)}, tmp_path / "whole.safetensors")
    whole = (tmp_path / "whole.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        fault_of(path)
    path.write_bytes(whole[:-1])
    assert "truncated" in str(fault_of(path)) and f"{len(whole)} bytes" in str(fault_of(path))
    path.write_bytes(whole + b"\0")
    assert "bytes after the last tensor" in str(fault_of(path))


@pytest.mark.parametrize(
    ("header", "num_data_bytes", "problem"),
    [
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12, "overlaps"),
        ({"a": entry(0, 8), "b": entry(12, 20)}, 20, "gap"),
        ({"a": entry(4, 8)}, 8, "gap"),
        ({"a": entry(-4, 4)}, 8, "entry 'a'"),
        ({"a": entry(8, 4, shape=[1])}, 8, "do not hold"),
        ({"a": entry(0, 8, shape=[3])}, 8, "8 bytes do not hold F32 [3]"),
        ({"a": entry(0, 8, shape=[-2])}, 8, "entry 'a'"),
        ({"a": entry(0, 8, shape=[2.0])}, 8, "entry 'a'"),
        ({"a": entry(0, 8, shape=[True, 2])}, 8, "entry 'a'"),
        ({"a": entry(0, 8, shape=2)}, 8, "entry 'a'"),
        ({"a": entry(0, 0, shape=[0, 2**70])}, 0, "entry 'a'"),
        ({"a": entry(0, 0, shape=[0, 2**30, 2**30])}, 0, "entry 'a'"),
        ({"a": entry(0, 8, "F4")}, 8, "unknown dtype 'F4'"),
        ({"a": entry(0, 8, ["F32"])}, 8, "entry 'a'"),
        ({"a": entry(0, 8, {})}, 8, "entry 'a'"),
        ({"a": entry(0, 8, None)}, 8, "entry 'a'"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}, 8, "entry 'a'"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "entry 'a'"),
        ({"a": []}, 0, "entry 'a'"),
        ({"a": "F32"}, 0, "entry 'a'"),
        ({"a": None}, 0, "entry 'a'"),
        ([], 0, "not an object"),
        (b"{]", 0, "not valid safetensors header"),
        (b"\xff\xfe{}", 0, "not valid safetensors header"),
        (b"[" * 100_000, 0, "not valid safetensors header"),
        (b"1" * 5_000, 0, "not valid safetensors header"),
    ],
)
def test_a_header_that_lies_is_refused(
    tmp_path: Path, header: Any, num_data_bytes: int, problem: str
) -> None:
    path = write_raw(tmp_path / "model.safetensors", header, bytes(num_data_bytes))
    assert problem in str(fault_of(path))


@pytest.mark.parametrize("length", [0, 1, 2**40, 2**64 - 1])
def test_a_header_length_that_lies_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}" + bytes(100))
    assert "not a safetensors file" in str(fault_of(path))


def test_metadata_and_empty_files_are_fine(tmp_path: Path) -> None:
    assert read_header(write_raw(tmp_path / "a.safetensors", {"__metadata__": {"x": "y"}})) == []
    assert read_header(write_raw(tmp_path / "b.safetensors", {})) == []


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_flipped_header_bytes_never_raise_anything_else(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Either both libraries read the same values, or ours says `CheckpointError`."""
    directory = tmp_path_factory.getbasetemp() / "flips"
    directory.mkdir(exist_ok=True)
    path = directory / "model.safetensors"
    save_file({"a": torch.arange(3.0), "bc": torch.ones(2, 2, dtype=torch.bfloat16)}, path)
    content = bytearray(path.read_bytes())
    header_end = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, header_end - 1))
        content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        ours = {name: CheckpointFiles(directory).read(name) for name in tensor_names(directory)}
    except CheckpointError as error:
        assert str(path) in str(error)
        return
    try:
        theirs = load_file(path)
    except (SafetensorError, KeyError):
        return  # theirs is stricter about the metadata, for instance
    assert all(same_bits(ours[name], tensor) for name, tensor in theirs.items())


def tensor_names(directory: Path) -> list[str]:
    return list(CheckpointFiles(directory).tensors)


def test_a_directory_instead_of_a_weight_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").mkdir()
    assert "cannot be read" in str(fault_of(tmp_path / "x.safetensors"))


# Directories and indexes


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_what_is_not_a_checkpoint_directory(tmp_path: Path, kind: str) -> None:
    path, problem = {
        "missing": (tmp_path / "none", "no such directory"),
        "file": (tmp_path / "file", "is not a directory"),
        "empty": (tmp_path, "no weight file"),
    }[kind]
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=problem) as caught:
        _ = CheckpointFiles(path).files
    assert str(path) in str(caught.value)


def test_a_name_in_two_shards_is_refused(tmp_path: Path) -> None:
    for shard in ("one.safetensors", "two.safetensors"):
        save_file({"same": torch.ones(1)}, tmp_path / shard)
    write_index(tmp_path, {"same": "one.safetensors", "other": "two.safetensors"})
    with pytest.raises(CheckpointError, match="'same' is in two shards") as caught:
        _ = CheckpointFiles(tmp_path).tensors
    assert "one.safetensors" in str(caught.value) and "two.safetensors" in str(caught.value)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "model-00001-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match="missing") as caught:
        _ = CheckpointFiles(tmp_path).files
    assert str(tmp_path / "model-00001-of-00002.safetensors") in str(caught.value)


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/etc/hostname", "sub/x.safetensors", "..", ".", ""]
)
def test_a_shard_outside_the_directory_is_refused(tmp_path: Path, shard: str) -> None:
    directory = tmp_path / "model"
    (directory / "sub").mkdir(parents=True)
    for path in (tmp_path / "secret.safetensors", directory / "sub" / "x.safetensors"):
        save_file({"a": torch.ones(1)}, path)
    write_index(directory, {"a": shard})
    with pytest.raises(CheckpointError):
        _ = CheckpointFiles(directory).tensors


@pytest.mark.parametrize("weight_map", [None, [], "x", {"a": 1}, {"a": ["x"]}, {"a": "x", "b": 0}])
def test_an_index_that_is_no_index_is_refused(tmp_path: Path, weight_map: Any) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match="weight_map") as caught:
        _ = CheckpointFiles(tmp_path).files
    assert "model.safetensors.index.json" in str(caught.value)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    (tmp_path / "two.safetensors").write_bytes(b"damaged")
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    with pytest.raises(CheckpointError, match=r"two\.safetensors"):
        _ = CheckpointFiles(tmp_path).tensors


def test_reading_a_name_that_is_not_there(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="no tensor 'b'"):
        CheckpointFiles(tmp_path).read("b")


# JSON files


@pytest.mark.parametrize("content", [b"{", b"[]", b"3", b"\xff", b"[" * 100_000, b""])
def test_json_that_is_no_object_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json.*not "):
        read_json(path)


def test_json_that_is_missing_or_a_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_json(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json(tmp_path)


# Pickles


class Bomb:
    """Unpickling it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("kind", ["zip", "old format", "plain"])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run_it(tmp_path: Path, kind: str) -> None:
    path, mark = tmp_path / "pytorch_model.bin", tmp_path / "it-ran"
    content = {"a": torch.ones(1), "b": Bomb(mark)}
    if kind == "plain":
        path.write_bytes(pickle.dumps({"b": Bomb(mark)}))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    with pytest.raises(CheckpointError, match="cannot be loaded safely") as caught:
        load_pickle(path)
    assert str(path) in str(caught.value)
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04garbage", b"\x80\x02."])
def test_a_damaged_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        load_pickle(path)


def test_a_cut_pickle_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1000)}, tmp_path / "whole.bin")
    whole = (tmp_path / "whole.bin").read_bytes()
    path = tmp_path / "pytorch_model.bin"
    for length in range(1, len(whole), len(whole) // 7):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
            load_pickle(path)


@pytest.mark.parametrize(
    "content",
    [
        [torch.ones(1)],
        {"model": {"a": torch.ones(1)}},
        {"a": torch.ones(1), "epoch": 3},
        {"a": torch.eye(2).to_sparse()},
        {"a": torch.empty(2, device="meta")},
    ],
    ids=["list", "nested", "number", "sparse", "meta"],
)
def test_a_pickle_that_is_not_a_flat_mapping_is_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="not a flat mapping") as caught:
        load_pickle(path)
    assert str(path) in str(caught.value)


def test_a_pickle_of_an_unsupported_dtype_names_the_file(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1, dtype=torch.complex64)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*complex64"):
        _ = CheckpointFiles(tmp_path).tensors
