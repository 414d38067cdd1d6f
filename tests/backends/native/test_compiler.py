"""How the kernels come to be: compiled once, found again, tried out; and what is said without."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import torch

from neuron_spec.backends.reference.native import choice, compiler
from neuron_spec.backends.reference.native.choice import native_of
from neuron_spec.errors import BackendError, UserError
from neuron_spec.spec import BuildSpec


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_SPEC_CACHE", str(tmp_path / "cache"))
    compiler.kernels.cache_clear()


def spec_of(*, pins: bool = False, **reference: object) -> BuildSpec:
    verification = {"pin_shapes": pins}
    return BuildSpec.model_validate(
        {"target": {"model": "target"}, "verification": verification, "reference": reference}
    )


def test_they_are_compiled_once_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiler.kernels().path
    assert made == compiler.path_of_kernels()
    assert [path.name for path in made.parent.iterdir()] == [made.name]  # nothing left beside
    compiler.kernels.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler any more
    assert compiler.kernels().path == made


@pytest.mark.parametrize("without", [["amx-bf16", "amx-tile"], ["avx512bf16"]])
def test_they_do_without_wide_instructions(
    without: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor that has fewer, and where the compiler is too old for them."""
    has = {kind: compiler.kernels().has_wide(kind) for kind in ("float32", "bfloat16")}
    is_to_lack = "float32" if "amx-tile" in without else "bfloat16"
    if not has[is_to_lack] or (is_to_lack == "bfloat16" and has["float32"]):
        pytest.skip("they do without them here")
    monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, *(f"-mno-{one}" for one in without)))
    compiler.kernels.cache_clear()
    plain = compiler.kernels()  # tried out before it is kept
    assert not plain.has_wide(is_to_lack)
    weight, x = torch.randn(40, 70).bfloat16(), torch.randn(90, 70)
    for packed in (plain.pack([weight]), plain.pack([weight.float()])):
        rounds = packed.numbers == "bfloat16" and plain.has_wide("bfloat16")
        expected = (x.bfloat16().float() if rounds else x) @ weight.float().T
        found = plain.linear(packed, x, is_wide=True)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: object) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BackendError, match=r"no C\+\+ compiler found \(g\+\+, clang\+\+, c\+\+"):
        compiler.kernels()
    assert not (tmp_path / "cache").exists()


def test_without_a_compiler_operators_are_used_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING):
        assert native_of(spec_of()) is None
    assert "PyTorch's operators are used, which is slower: no C++ compiler" in caplog.text
    with pytest.raises(UserError, match=r"reference\.target_weights.*no C\+\+ compiler"):
        native_of(spec_of(target_weights="int8"))
    assert native_of(spec_of(draft_weights="int8"), "draft") is None


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'kernels.cpp:1: it is broken' >&2; exit 1", "failed: kernels.cpp:1: it is broken"),
        ('while [ "$1" != -o ]; do shift; done; echo no > "$2"', "do not load"),
        ("exit 0", "cannot keep|do not load"),
    ],
)
def test_a_compiler_that_does_not_work(
    script: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "fake"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setattr(compiler, "COMPILERS", ())
    with pytest.raises(BackendError, match=told):
        compiler.kernels()
    assert list((tmp_path / "cache" / "kernels").iterdir()) == []


def test_a_library_that_multiplies_wrongly_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = shutil.copytree(compiler.SOURCE.parent, tmp_path / "wrong")
    text = (wrong / "products.hpp").read_text()
    assert "sums[r] + more : sums[r];" in text
    changed = text.replace("sums[r] + more : sums[r];", "sums[r] + more : 2 * sums[r];")
    (wrong / "products.hpp").write_text(changed)
    before = compiler.path_of_kernels()
    monkeypatch.setattr(compiler, "SOURCE", wrong / "kernels.cpp")
    assert compiler.path_of_kernels() != before  # a header counts
    with pytest.raises(BackendError, match="multiply wrongly"):
        compiler.kernels()
    assert list((tmp_path / "cache" / "kernels").iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(BackendError, match="cannot keep compiled kernels in"):
        compiler.kernels()


@pytest.mark.parametrize(
    "reference",
    [{"device": "cuda"}, {"kernels": "eager"}, {"dtype": "float16"}],
)
def test_where_they_do_not_run(reference: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "kernels", lambda: pytest.fail("not asked for"))
    assert native_of(spec_of(**reference)) is None


@pytest.mark.parametrize("has_vectors", [False, True])
@pytest.mark.parametrize("takes_wide", [False, True])
def test_how_many_rows_they_take(
    takes_wide: bool, has_vectors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_has_wide_vectors", lambda: has_vectors)
    monkeypatch.setattr(compiler.Kernels, "has_wide", lambda *_: takes_wide)
    takes_all, is_any_wide = takes_wide or has_vectors, takes_wide or not has_vectors
    draft = {"method": "ngram", "num_draft_tokens": 7}
    wide = {"target": {"model": "t"}, "draft": draft, "shape": {"batch_size": 32}}
    pinned = BuildSpec.model_validate({**wide, "verification": {"pin_shapes": True}})
    plain, rounded = native_of(spec_of(dtype="bfloat16")), native_of(spec_of(target_weights="int8"))
    whole = native_of(pinned)
    assert plain and rounded and whole
    for native, limit in ((plain, 64), (whole, 32 * 8)):
        assert (native.takes(limit), native.takes(limit + 1)) == (True, takes_all)
        assert (native.is_wide(limit), native.is_wide(limit + 1)) == (False, is_any_wide)
    assert not rounded.is_wide(10_000)
    assert rounded.takes(10_000) and rounded.is_int8 and not whole.is_int8
    assert native_of(spec_of(draft_weights="int8"), "draft") == rounded
    assert not (native_of(spec_of(draft_weights="int8")) or rounded).is_int8
    kept = (plain.keeps_weights, rounded.keeps_weights, whole.keeps_weights)
    assert kept == (not takes_all, False, True)  # who else may take them


@pytest.mark.parametrize(
    "reference",
    [
        {"target_weights": "int8", "kernels": "eager"},
        {"draft_weights": "int8", "device": "cuda"},
        {"draft_weights": "int8", "dtype": "float16"},
    ],
)
def test_int8_needs_them(reference: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"reference\.\w+_weights: int8 needs the compiled"):
        spec_of(**reference)
