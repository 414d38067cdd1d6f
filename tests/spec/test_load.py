"""TOML -> BuildSpec, and every fault told so that it can be mended."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from pydantic import ValidationError

from neuron_spec.drafters import DRAFTERS
from neuron_spec.errors import SpecError
from neuron_spec.rules import CHAIN_RULES, TREE_RULES
from neuron_spec.spec import BuildSpec, load_spec, schema

COMPILE = Path(__file__).parents[2] / "compile"
TARGET = '[target]\nmodel = "t"\n'


def load_text(tmp_path: Path, text: str) -> BuildSpec:
    path = tmp_path / "build.toml"
    path.write_text(text, encoding="utf-8")
    return load_spec(path)


def fault_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_text(tmp_path, text)
    assert str(tmp_path / "build.toml") in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_smallest_spec_gets_the_documented_defaults(tmp_path: Path) -> None:
    spec = load_text(tmp_path, TARGET)
    assert spec.name == "build" and spec.base_directory == tmp_path
    assert spec.target.dtype == "bfloat16"
    assert (spec.draft.method, spec.draft.num_draft_tokens) == ("none", 4)
    assert (spec.speculates, spec.num_draft_tokens) == (False, 0)
    assert spec.verification.rule == "greedy"
    assert spec.shape.model_dump() == {
        "max_prompt_tokens": 1024, "max_total_tokens": 2048, "batch_size": 1,
    }  # fmt: skip
    assert spec.neuron is None
    assert (spec.reference.device, spec.reference.dtype) == ("cpu", "float32")
    assert spec.build_directory == Path("build/build")


def test_every_section_is_read(tmp_path: Path) -> None:
    spec = load_spec(
        tiny.write_spec(
            tmp_path / "full.toml",
            "config.fused_qkv = true",
            target={"model": "t", "dtype": "float16"},
            draft={"method": "eagle", "model": "d", "num_draft_tokens": 7},
            verification={"rule": "greedy"},
            shape={"max_prompt_tokens": 5, "max_total_tokens": 6, "batch_size": 2},
            reference={"device": "cuda", "dtype": "bfloat16", "num_threads": 3},
            neuron={"instance": "trn2.48xlarge", "tp_degree": 64},
        )
    )
    assert spec.speculates and spec.num_draft_tokens == 7 and spec.draft.model == "d"
    assert spec.reference.num_threads == 3 and spec.shape.batch_size == 2
    assert spec.neuron is not None and spec.neuron.config == {"fused_qkv": True}
    assert spec.target.dtype == "float16"


def test_a_relative_path_still_gives_an_absolute_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.toml").write_text(TARGET)
    monkeypatch.chdir(tmp_path)
    assert load_spec("a/x.toml").base_directory == tmp_path / "a"


def test_a_loaded_spec_is_frozen(tmp_path: Path) -> None:
    spec = load_text(tmp_path, TARGET)
    with pytest.raises(ValidationError, match="frozen"):
        spec.shape.batch_size = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[traget]\nmodel = 't'\n", "unknown key 'traget': did you mean 'target'?"),
        (TARGET + "[draft]\nmetod = 'eagle'\n", "key 'draft.metod': did you mean 'method'?"),
        (TARGET + "[shape]\nbatchsize = 1\n", "'shape.batchsize': did you mean 'batch_size'?"),
        (
            TARGET + "[neuron]\ninstance = 'x'\ntp_degre = 1\n",
            "unknown key 'neuron.tp_degre': did you mean 'tp_degree'?",
        ),
        (TARGET + "[verification]\nqqqq = 1\n", "unknown key 'verification.qqqq': known: "),
    ],
)
def test_a_misspelt_key_is_told_the_nearest(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in fault_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "missing key 'target'"),
        ("[target]\n", "missing key 'target.model'"),
        ("target = 'x'\n", "target: "),
        (
            TARGET + "[draft]\nmethod = 'eagel'\n",
            "draft.method: Input should be 'none', 'model', ",
        ),
        (TARGET + "[draft]\nmethod = 'eagle'\n", "draft.method 'eagle' needs draft.model"),
        (TARGET + "[draft]\nmodel = 'x'\n", "draft.model is given but draft.method is 'none'"),
        (TARGET + "[draft]\nnum_draft_tokens = 0\n", "draft.num_draft_tokens: "),
        (TARGET + "[draft]\nnum_draft_tokens = 32\n", "(found 32)"),
        (TARGET + "[draft]\nnum_draft_tokens = 'x'\n", "(found 'x')"),
        (TARGET + "[shape]\nbatch_size = 0\n", "shape.batch_size: "),
        (
            TARGET + "[shape]\nmax_prompt_tokens = 9\nmax_total_tokens = 8\n",
            "shape.max_prompt_tokens 9 is larger than shape.max_total_tokens 8",
        ),
        (TARGET + "[neuron]\ntp_degree = 1\n", "missing key 'neuron.instance'"),
        (TARGET + "[verification]\nrule = 'lossless'\n", "verification.rule: "),
        ("name = 'x'\n" + TARGET, "'name' is not a key of a build spec"),
    ],
)
def test_an_invalid_value_is_told_with_its_key(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in fault_of(tmp_path, text)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    text = (
        "base_directory = 'x'\nname = 'y'\n[target]\ndtype = 'int3'\n"
        "[shape]\nbatch_size = -1\nmax_totl_tokens = 5\n[drft]\n"
    )
    fault = fault_of(tmp_path, text)
    for expected in (
        "'base_directory'", "'name'", "missing key 'target.model'", "target.dtype: ",
        "shape.batch_size: ", "did you mean 'max_total_tokens'?", "did you mean 'draft'?",
    ):  # fmt: skip
        assert expected in fault, expected
    assert len(fault.splitlines()) == 8


@pytest.mark.parametrize("content", [b"[target\n", b"a = 1\na = 2\n", b"x = \xff\n"])
def test_bad_toml_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match="not valid TOML") as caught:
        load_spec(path)
    assert caught.value.where == path


def test_a_missing_file_and_a_directory_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such build spec"):
        load_spec(tmp_path / "none.toml")
    with pytest.raises(SpecError, match="is a directory"):
        load_spec(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec(tmp_path / "file" / "x.toml")


@pytest.mark.parametrize("path", sorted(COMPILE.glob("*.toml")), ids=lambda path: path.stem)
def test_every_spec_of_the_repository_loads(path: Path) -> None:
    assert load_spec(path).name == path.stem


def test_there_are_specs_in_the_repository() -> None:
    assert list(COMPILE.glob("*.toml"))


def test_the_specs_choices_are_the_dispatch_tables() -> None:
    assert set(schema.RULES) == set(CHAIN_RULES) == set(TREE_RULES)
    assert set(schema.DRAFT_METHODS) - {"none"} == set(DRAFTERS)


def test_every_field_has_a_description() -> None:
    models = [schema.BuildSpec, *schema.Section.__subclasses__()]
    fields = [
        (model.__name__, name, field)
        for model in models
        for name, field in model.model_fields.items()
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, schema.Section))
    ]
    undescribed = [(m, n) for m, n, field in fields if not field.description and n != "neuron"]
    assert undescribed == []
