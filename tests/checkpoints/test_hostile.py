"""Checkpoints made to harm: refused with one readable message, before anything is run or written.

`test_tensors.py` has the damaged ones, `test_opening.py` links and pipes, `test_fuzz.py` the random
ones.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raw_checkpoints as raw
import tiny
import torch
from raw_checkpoints import refusal

import neuron_spec.cli.main as program
from neuron_spec.checkpoints import identify, pickles
from neuron_spec.checkpoints.contradictions.vocabulary import read_vocabulary
from neuron_spec.checkpoints.json_files import MAX_JSON_BYTES, read_json
from neuron_spec.checkpoints.pickle_ranges import value_offsets
from neuron_spec.checkpoints.pickles import load_pickle
from neuron_spec.checkpoints.prepare import prepare_draft
from neuron_spec.checkpoints.safetensors_header import read_header
from neuron_spec.errors import UserError, readable, shown

CONFIG, WEIGHTS, PICKLE = "config.json", "model.safetensors", "pytorch_model.bin"
ESCAPE = "\x1b[2J\x07"


# JSON with two meanings, or none


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' stands twice"),
        ('{"x": [{"b": {}, "b": {}}]}', "the key 'b' stands twice"),
        ('{"\\u0061": 1, "a": 2}', "the key 'a' stands twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": 1e999}', "'1e999' is too large"),
        ('{"a": ' + "9" * 101 + "}", "an integer of 101 digits"),
        ('{"a": -' + "9" * 5_000 + "}", "an integer of 5001 digits"),
        ('{"a": ' + "[" * 64 + "]" * 64 + "}", "nested deeper than 64 levels"),
        ('{"a": ' * 70 + "1" + "}" * 70, "nested deeper than 64 levels"),
        ('{"a": "\\ud800"}', "half a character"),
        ('{"\\udfff": 1}', "half a character"),
        ('\ufeff{"a": 1}', "BOM"),
        ('{"' + ESCAPE + '": 1}', "not valid"),
    ],
)
def test_json_that_programs_could_read_in_two_ways(tmp_path: Path, text: str, problem: str) -> None:
    raw.write(tmp_path, {CONFIG: text.encode(), WEIGHTS: raw.with_header(text.encode())})
    for read, name in ((read_json, CONFIG), (read_header, WEIGHTS)):
        message = refusal(lambda read=read, name=name: read(tmp_path / name))
        assert problem in message and str(tmp_path / name) in message


def test_json_in_another_encoding_is_refused(tmp_path: Path) -> None:
    raw.write(tmp_path, {CONFIG: json.dumps(raw.CONFIG).encode("utf-16")})
    assert "not valid JSON" in refusal(lambda: read_json(tmp_path / CONFIG))


def test_json_of_a_size_that_no_config_has_is_not_read(tmp_path: Path) -> None:
    raw.write(tmp_path, {CONFIG: b'{"a": 1}'.ljust(MAX_JSON_BYTES)})
    assert read_json(tmp_path / CONFIG) == {"a": 1}
    raw.write(tmp_path, {CONFIG: b'{"a": 1}'.ljust(MAX_JSON_BYTES + 1)})
    assert "too large" in refusal(lambda: read_json(tmp_path / CONFIG))


def test_the_largest_depth_and_number_that_are_allowed(tmp_path: Path) -> None:
    text = '{"a": ' + "[" * 63 + "]" * 63 + ', "b": ' + "9" * 100 + ', "c": "\\ud83d\\ude00"}'
    raw.write(tmp_path, {CONFIG: text.encode()})
    assert read_json(tmp_path / CONFIG)["c"] == "😀"


# Names and values that would end up in a message


@pytest.mark.parametrize("name", [ESCAPE, "a\nerror: all is well", "x" * 513, "\u202egnp.exe"])
@pytest.mark.parametrize("kind", ["safetensors", "pickle"])
def test_a_tensor_name_that_is_no_name_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    if kind == "pickle":
        torch.save({name: torch.ones(1)}, tmp_path / PICKLE)
        message = refusal(lambda: load_pickle(tmp_path / PICKLE))
    else:
        raw.write(tmp_path, {WEIGHTS: raw.safetensors(raw.floats({name: (1,)}))})
        message = refusal(lambda: read_header(tmp_path / WEIGHTS))
    assert "a tensor's name is not a name" in message and "\nerror" not in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", ESCAPE), ("hidden_act", ESCAPE), ("hidden_size", "9" * 100_000),
        ("eos_token_id", [ESCAPE * 10_000]), ("rope_parameters", {"rope_theta": [ESCAPE]}),
        ("draft_vocab_size", "5"), ("draft_vocab_size", [5]), ("num_hidden_layers", 10**9),
        ("vocab_size", 10**50), ("rope_theta", -1), ("pad_token_id", 10**30),
    ],
)  # fmt: skip
def test_a_config_field_is_checked_and_quoted_short(tmp_path: Path, field: str, value: Any) -> None:
    raw.write(tmp_path, {**raw.EAGLE, CONFIG: {**raw.CONFIG, field: value}})
    assert f"{field}" in refusal(lambda: identify(tmp_path))


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 10**12}, {"num_labels": 10**12, "hidden_size": "x"},
        {"hidden_size": []}, {"rope_scaling": {"rope_type": {}}, "hidden_act": 3},
        {"model_type": "encoder-decoder"},
        {"model_type": ESCAPE}, {"attention_bias": {"a": [1]}, "hidden_size": 0.5},
    ],
)  # fmt: skip
def test_a_nested_config_is_checked_before_transformers_builds_it(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    nested = {"speculators_model_type": "eagle", "transformer_layer_config": raw.CONFIG | fields}
    raw.write(tmp_path, {**raw.EAGLE, CONFIG: nested})
    assert "transformer_layer_config" in refusal(lambda: identify(tmp_path))


def test_messages_are_escaped_and_cut() -> None:
    assert readable("a\nb\x1b[31m\ud800ü") == "a\nb\\x1b[31m\\ud800ü"
    assert shown("x" * 1_000) == f"'{'x' * 99}… (1002 characters)"
    assert str(UserError("found \x1b[2J", where="\x07")) == "\\x07: found \\x1b[2J"


def test_a_shape_of_a_million_dimensions_takes_no_time(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [10**99] * 100_000, "data_offsets": [0, 0]}
    raw.write(tmp_path, {WEIGHTS: raw.with_header({"a": entry})})
    assert "entry 'a'" in refusal(lambda: read_header(tmp_path / WEIGHTS))


@pytest.mark.parametrize("prefix", ["", "medusa_head_"])
def test_a_head_of_a_high_number_makes_no_list_of_heads(tmp_path: Path, prefix: str) -> None:
    name = f"{prefix}9999999999.0.linear.weight"
    tensors = raw.medusa_tensors() | raw.floats({name: (4, 4)})
    raw.write(tmp_path, {**raw.MEDUSA, WEIGHTS: raw.safetensors(tensors)})
    assert identify(tmp_path).unexpected == (name,)


@pytest.mark.parametrize(
    "data", [{"model": [1]}, {"added_tokens": [3]}, {"model": {"vocab": [[]]}}]
)
def test_a_tokenizer_without_tokens_is_refused(tmp_path: Path, data: Any) -> None:
    raw.write(tmp_path, {"tokenizer.json": data})
    assert "not a tokenizer" in refusal(lambda: read_vocabulary(tmp_path))


# Pickles


def recompressed(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(packed, "w") as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def overlapping(content: bytes) -> bytes:
    """Every entry of the table names the bytes of the largest: small on the disk, large in use."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(packed, "w") as new:
        entries = old.infolist()
        largest = max(entries, key=lambda entry: entry.file_size)
        new.writestr(largest.filename, old.read(largest))
        for number in range(100):
            entry = copy.copy(new.filelist[0])
            entry.filename = f"archive/data/{number}"
            new.filelist.append(entry)
        new._didModify = True
    return packed.getvalue()


def with_entry_nowhere(content: bytes) -> bytes:
    """The table names one entry too many, far behind the end of the file."""
    packed = io.BytesIO(content)
    with zipfile.ZipFile(packed, "a") as archive:
        entry = copy.copy(archive.filelist[-1])
        entry.filename, entry.header_offset, entry.file_size = "archive/data/99", 1 << 40, 1
        archive.filelist.append(entry)
        archive._didModify = True
    return packed.getvalue()


def saved(content: Any, is_zip: bool = True) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=is_zip)
    return file.getvalue()


class Sized:
    """Unpickling it fills memory with zeros, which `weights_only=True` allows."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (1 << 20,)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (recompressed(saved({"a": torch.zeros(100_000)})), "a compressed entry"),
        (overlapping(saved({"a": torch.zeros(100)})), "its entries overlap"),
        (saved({"a": Sized()}), "it makes a bytearray"),
        (saved({"a": Sized()}, is_zip=False), "it makes a bytearray"),
        (pickle.dumps({"a": Sized()}, protocol=0), "it makes a bytearray"),
        (saved({"a": torch.zeros(1).expand(1 << 40)}), "not a flat mapping"),
        (saved({"a": torch.zeros(2)._neg_view()}), "not a flat mapping"),
        (saved({1: torch.zeros(1), "1": torch.ones(1)}), "a tensor's name is not a name"),
        (saved({("a",): torch.zeros(1)}), "a tensor's name is not a name"),
        (b"", "it is empty"),
        (b"PK\x03\x04" + bytes(100), "cannot be loaded safely"),
    ],
    ids=["zip bomb", "overlap", "bytearray", "bytearray in the old format", "bytearray in text",
         "expanded", "negated", "number as name", "tuple as name", "empty", "zip without a table"],
)  # fmt: skip
def test_a_pickle_that_would_fill_the_memory_or_lie(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    raw.write(tmp_path, {PICKLE: content})
    assert problem in refusal(lambda: load_pickle(tmp_path / PICKLE))


def test_a_pickle_whose_table_leads_nowhere_is_refused(tmp_path: Path) -> None:
    raw.write(tmp_path, {PICKLE: with_entry_nowhere(saved({"a": torch.zeros(9)}))})
    assert "cannot be loaded safely" in refusal(lambda: load_pickle(tmp_path / PICKLE))


def test_a_zip_behind_an_old_pickle_is_not_unpacked(tmp_path: Path) -> None:
    tensors = {name: torch.zeros(shape) for name, (_, shape, _) in raw.eagle_tensors().items()}
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/byteorder", bytes(1 << 20))
    content = saved(tensors, is_zip=False) + bomb.getvalue()
    raw.write(tmp_path, {CONFIG: raw.CONFIG, PICKLE: content})
    assert identify(tmp_path).family == "eagle"
    assert value_offsets(tmp_path / PICKLE, load_pickle(tmp_path / PICKLE)) == {}


def test_a_pickle_without_its_values_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"a": torch.zeros(10_000)}, tmp_path / PICKLE)
    monkeypatch.setattr(pickles, "_MAX_PROGRAM_BYTES", 1_000)
    assert load_pickle(tmp_path / PICKLE).keys() == {"a"}
    torch.save({"a" * 500 + str(n): torch.zeros(1) for n in range(3)}, tmp_path / PICKLE)
    assert "a pickle of more than" in refusal(lambda: load_pickle(tmp_path / PICKLE))


# The whole way to the command line

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    handler = signal.getsignal(signal.SIGTERM)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["neuron-spec", *arguments])
        with pytest.raises(SystemExit) as caught:
            program.main()
        return int(caught.value.code or 0), *capsys.readouterr()

    yield call
    signal.signal(signal.SIGTERM, handler)


HOSTILE: dict[str, dict[str, Any]] = {
    "key twice": {CONFIG: b'{"a": 1, "a": 2}', WEIGHTS: raw.EAGLE[WEIGHTS]},
    "layers": {**raw.EAGLE, CONFIG: {**raw.CONFIG, "num_hidden_layers": 10**9}},
    "escapes": {**raw.EAGLE, CONFIG: {**raw.CONFIG, "model_type": ESCAPE}},
    "name": {**raw.EAGLE, WEIGHTS: raw.safetensors(raw.floats({ESCAPE: (1,)}))},
    "shard": raw.sharded(a="../../etc/passwd"),
    "code": {CONFIG: raw.CONFIG, PICKLE: b"cos\nsystem\n(S'touch it-ran'\ntR."},
    "zip bomb": {CONFIG: raw.CONFIG, PICKLE: recompressed(saved({"a": torch.zeros(9)}))},
}


@pytest.mark.parametrize("role", ["draft", "target"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_every_verb_ends_with_one_message_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, kind: str, role: str
) -> None:
    monkeypatch.chdir(tmp_path)
    models = {"draft": raw.EAGLE, "target": raw.TARGET, role: HOSTILE[kind]}
    for name, files in models.items():
        raw.write(tmp_path / name, files)
    tiny.write_spec(
        tmp_path / "x.toml",
        target={"model": "target"},
        draft={"method": "eagle", "model": "draft", "num_draft_tokens": 3},
        shape={"max_prompt_tokens": 16, "max_total_tokens": 32},
    )
    before = sorted(tmp_path.rglob("*"))
    for arguments in (("inspect", role), ("prepare", "x.toml"), ("check", "x.toml")):
        code, out, err = run(*arguments)
        assert code == 2, (out, err)
        assert "Traceback" not in out + err and "\x1b" not in out + err
        told = [line for line in (out + err).splitlines() if line.startswith("error")]
        assert sum(f"{role}-unreadable" in line or "error: " in line for line in told) == 1
        assert sorted(tmp_path.rglob("*")) == before


def test_a_refused_draft_leaves_an_earlier_one_alone(tmp_path: Path) -> None:
    draft, target = (raw.write(tmp_path / n, f) for n, f in (("d", raw.EAGLE), ("t", raw.TARGET)))
    prepare_draft(draft, target, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    raw.write(draft, {WEIGHTS: raw.EAGLE[WEIGHTS][:-1]})
    assert "truncated" in refusal(lambda: prepare_draft(draft, target, tmp_path / "out"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "out", "t"]
