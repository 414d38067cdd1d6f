"""int8 weights: the draft's change proposals alone; the target's make another model, and say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_spec import load
from neuron_spec.backends.reference.models import Target
from neuron_spec.backends.reference.native import choice
from neuron_spec.bench.record import precision_of
from neuron_spec.checkpoints.prepare import prepare
from neuron_spec.compiler import compile_model
from neuron_spec.spec import BuildSpec
from neuron_spec.spec.guarantees import INT8_NUMERICS

PROMPTS = [[5, 6, 7], [9, 9, 9, 9], [30, 2, 41, 17, 8]]


def with_weights(spec: BuildSpec, **weights: str) -> BuildSpec:
    return spec.model_copy(update={"reference": spec.reference.model_copy(update=weights)})


def outputs(session: Any, *, speculate: bool) -> list[tuple[int, ...]]:
    options = {"max_new_tokens": 24, "ignore_eos": True, "speculate": speculate}
    return [session.generate(prompt, **options).token_ids for prompt in PROMPTS]


def test_the_drafts_weights_change_no_output(spec: BuildSpec, tmp_path: Path) -> None:
    prepared = prepare(spec)
    plain = compile_model(spec, prepared, tmp_path / "plain")
    rounded = compile_model(with_weights(spec, draft_weights="int8"), prepared, tmp_path / "int8")
    assert rounded.manifest.numerics == plain.manifest.numerics
    assert precision_of(rounded) == "float32"
    session = load(rounded.directory)
    expected = outputs(load(plain.directory), speculate=False)
    assert outputs(session, speculate=True) == expected
    assert session.speculator.limits.num_draft_tokens == 3


def test_the_targets_make_another_model(spec: BuildSpec, tmp_path: Path) -> None:
    artifact = compile_model(
        with_weights(spec, target_weights="int8"), prepare(spec), tmp_path / "artifact"
    )
    assert artifact.manifest.numerics.endswith(INT8_NUMERICS)
    assert precision_of(artifact) == "float32, int8 weights"
    session = load(artifact.directory)
    assert outputs(session, speculate=True) == outputs(session, speculate=False)


@pytest.mark.parametrize("count", [1, 5, 40])
def test_any_number_of_rows_is_of_the_rounded_weights(
    spec: BuildSpec, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt must not be read by another model than the one that answers."""
    from neuron_spec.backends.reference.opening import placement_of

    rounded = placement_of(with_weights(spec, target_weights="int8"))
    whole = placement_of(spec)
    assert choice.native_of(spec) == whole.native
    directory = prepare(spec).target
    ids = torch.arange(3, 3 + count)[None]
    found, exact = (Target(directory, place) for place in (rounded, whole))
    rows = found.logits(found.hidden(ids, [0])[0])
    single = torch.cat(
        [found.logits(found.hidden(ids[:, i : i + 1], [i])[0]) for i in range(count)], dim=1
    )
    assert torch.equal(rows, single)
    assert not torch.equal(rows, exact.logits(exact.hidden(ids, [0])[0]))
