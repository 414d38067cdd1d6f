"""Whatever the sizes and the instance: the spec loads, and what stops its build is told."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import sparse_checkpoints as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_spec.platforms.instances import INSTANCES
from neuron_spec.preflight import Finding, check
from neuron_spec.preflight.neuron import check_build, neuron_build
from neuron_spec.proposal import Models, propose, read_models, toml_text
from neuron_spec.spec import BuildSpec, load_spec

TYPES = ("llama", "mistral", "qwen2", "qwen3")


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Of decoders from tiny to larger than any instance."""
    kv_heads = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    heads = kv_heads * draw(st.integers(1, 8))
    head_dim = draw(st.sampled_from([16, 64, 80, 128]))
    kind = draw(st.sampled_from(TYPES))
    return {
        "model_type": kind,
        "num_key_value_heads": kv_heads,
        "num_attention_heads": heads,
        "head_dim": head_dim,
        "hidden_size": heads * head_dim,
        "intermediate_size": draw(st.sampled_from([128, 4864, 14336, 53248])),
        "num_hidden_layers": draw(st.sampled_from([7, 32, 80, 126])),
        "vocab_size": draw(st.sampled_from([1000, 32000, 32001, 151936])),
        "max_position_embeddings": draw(st.integers(64, 200_000)),
        "tie_word_embeddings": draw(st.booleans()),
        "sliding_window": draw(st.sampled_from([None, 100, 4096])) if kind == "mistral" else None,
        "torch_dtype": draw(st.sampled_from(["bfloat16", "float32"])),
        "eos_token_id": 2,
    }


def write_draft(folder: Path, method: str, raw: dict[str, Any]) -> None:
    whole = {**raw, "model_type": "llama", "sliding_window": None}
    if method == "eagle":
        sparse.eagle_head(folder, whole)
    elif method == "eagle3":
        sparse.eagle3_head(folder, whole, 500)
    elif method == "medusa":
        sparse.medusa_heads(folder, raw, 3)
    elif method == "model":
        sparse.language_model(folder, {**whole, "num_hidden_layers": 2})


def at(spec: BuildSpec, models: Models, degree: int) -> set[str]:
    """Errors of the build with another TP degree."""
    assert spec.neuron is not None
    neuron = spec.neuron.model_copy(update={"tp_degree": degree})
    other = neuron_build(spec.model_copy(update={"neuron": neuron}), models.target, models.draft)
    return {f.code for f in check_build(other) if f.severity == "error"}


def stopping(spec: BuildSpec) -> list[Finding]:
    """Errors for Neuron, but for what prepare mends."""
    return [
        finding
        for finding in check(spec)
        if finding.severity == "error"
        and finding.concerns("neuron")
        and finding.code != "draft-unprepared"
    ]


@settings(max_examples=60, deadline=None)
@given(
    raw=configs(),
    method=st.sampled_from(["eagle", "eagle3", "medusa", "model", "ngram", "none"]),
    instance=st.sampled_from(sorted(INSTANCES)),
)
def test_a_proposal_is_the_best_that_the_instance_allows(
    raw: dict[str, Any], method: str, instance: str
) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        patch.chdir(folder)
        sparse.language_model(folder / "target", raw)
        write_draft(folder / "draft", method, raw)
        has_draft = (folder / "draft").exists()
        models = read_models(
            "target", "draft" if has_draft else None,
            method=None if has_draft else method, folder=folder,
        )  # fmt: skip
        proposal = propose(models, instance=INSTANCES[instance])
        (folder / "spec.toml").write_text(toml_text(proposal), encoding="utf-8")
        spec = load_spec("spec.toml")
        assert models.method == method and spec.neuron is not None
        found = {f.code for f in stopping(spec)}
        told = {code for code in found if code.startswith("neuron-")}
        says_so = proposal.reasons["neuron.tp_degree"].startswith("no degree passes")
        assert says_so is bool(told)
        for degree in INSTANCES[instance].tp_degrees(INSTANCES[instance].default_lnc):
            assert len(at(spec, models, degree)) >= len(told), degree
