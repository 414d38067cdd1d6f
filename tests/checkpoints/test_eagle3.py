"""EAGLE-3: every public form is recognised, prepared for NxDI, and refused where NxDI is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from neuron_spec.backends.reference.models import HEADS
from neuron_spec.backends.reference.opening import open_speculator
from neuron_spec.checkpoints import identify
from neuron_spec.checkpoints.formats import eagle3
from neuron_spec.checkpoints.plans.widening import widened
from neuron_spec.checkpoints.prepare import prepare_draft
from neuron_spec.errors import CheckpointError
from neuron_spec.spec import BuildSpec

FORMS = ("authors", "specforge", "speculators")
NUM_TARGET_LAYERS = 8
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tiny.write_target(tmp_path / "target8", num_hidden_layers=NUM_TARGET_LAYERS)


def write(path: Path, form: str = "authors", **changes: Any) -> Path:
    return tiny.write_eagle3(path / form, form=form, **changes)


def prepared_tensors(draft: Path, target: Path, output: Path) -> dict[str, torch.Tensor]:
    prepare_draft(draft, target, output)
    return load_file(output / "model.safetensors")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_recognised(form: str, tmp_path: Path) -> None:
    identity = identify(write(tmp_path, form))
    assert identity.family == "eagle3"
    assert not (identity.missing or identity.unexpected or identity.misshapen)
    steps = " ".join(identity.preparation)
    assert "widen lm_head.weight from 97 to 259 rows" in steps
    assert "copy embed_tokens.weight from the target" in steps
    assert ("flat" in steps) == (form == "speculators")


@pytest.mark.parametrize("form", FORMS)
def test_what_should_change_does_and_the_rest_is_identical(
    form: str, tmp_path: Path, target: Path
) -> None:
    draft = write(tmp_path, form)
    before = load_file(draft / "model.safetensors")
    after = prepared_tensors(draft, target, tmp_path / "out")
    kept = {name: eagle3.canonical_name(name) for name in before}
    for name in before.keys() - {"d2t", "t2d", "lm_head.weight"}:
        assert torch.equal(after[kept[name]], before[name]), name
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(after["embed_tokens.weight"], embedding)
    token_ids = torch.arange(97) + before["d2t"]
    assert torch.equal(after["lm_head.weight"][token_ids], before["lm_head.weight"])
    # The names and shapes that NxDI's own EAGLE-3 run had.
    golden = load_file(GOLDEN / "eagle3/model.safetensors")
    assert after.keys() == golden.keys()


@pytest.mark.parametrize("form", FORMS)
def test_the_prepared_head_is_flat_ready_and_runs(form: str, tmp_path: Path, target: Path) -> None:
    output = tmp_path / "out"
    prepare_draft(write(tmp_path, form), target, output)
    config = json.loads((output / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert (config["num_hidden_layers"], config["vocab_size"]) == (1, 259)
    assert config["tie_word_embeddings"] is False
    assert config["fc_bias"] is False
    assert config["rope_theta"] == 10000.0
    assert not {"draft_vocab_size", "speculators_model_type"} & config.keys()
    identity = identify(output)
    assert identity.is_prepared
    assert identity.refusals(identify(target)) == []
    spec = BuildSpec.model_validate(
        {
            "target": {"model": str(target)},
            "draft": {"method": "eagle3", "model": str(output), "num_draft_tokens": 3},
            "shape": {"max_prompt_tokens": 16, "max_total_tokens": 64},
        }
    )
    speculator = open_speculator(spec, target, output)
    speculator.prefill(0, [5, 6, 7])
    assert speculator.step(3)[0].num_drafted == 3


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shift=st.sampled_from([-50.0, 0.0, 50.0]),
    block=st.integers(1, 70),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_no_unmapped_token_is_ever_drafted(
    seed: int, shift: float, block: int, dtype: torch.dtype
) -> None:
    """The widened head's argmax is the mapped argmax of the trained head, also when all real logits
    are negative, for any state."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(20, 16, generator=generator)
    token_ids = torch.randperm(64, generator=generator)[:20].sort().values
    states = torch.randn(30, 16, generator=generator)
    # Shift every logit of every state by about the same amount.
    rows = torch.cat([rows, torch.full((20, 1), shift)], dim=1).to(dtype)
    states = torch.cat([states, torch.ones(30, 1)], dim=1).to(dtype)
    wide = torch.cat(list(widened(lambda first, last: rows[first:last], token_ids, 64, block)))
    assert wide.shape == (64, 17)
    narrow_logits = states.double() @ rows.double().T
    wide_logits = states.double() @ wide.double().T
    if shift < 0:
        assert bool((narrow_logits < 0).all())
    assert torch.equal(wide_logits.argmax(dim=1), token_ids[narrow_logits.argmax(dim=1)])


def test_zero_rows_would_have_been_drafted() -> None:
    """The reason for the mean: with zero rows the test above fails at once."""
    rows, state = torch.full((3, 4), -1.0), torch.ones(4)
    wide = torch.zeros(8, 4).index_copy(0, torch.tensor([1, 4, 6]), rows)
    assert int((wide @ state).argmax()) not in (1, 4, 6)


def test_a_full_vocabulary_needs_no_map(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path, num_rows=259)
    after = prepared_tensors(draft, target, tmp_path / "out")
    before = load_file(draft / "model.safetensors")
    assert torch.equal(after["lm_head.weight"], before["lm_head.weight"])


def test_absolute_ids_are_told_by_t2d(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path)
    offsets = load_file(draft / "model.safetensors")["d2t"]
    tiny.change_tensors(draft, d2t=offsets + torch.arange(97))
    after = prepared_tensors(draft, target, tmp_path / "out")
    head = load_file(draft / "model.safetensors")["lm_head.weight"]
    assert torch.equal(after["lm_head.weight"][offsets + torch.arange(97)], head)
    record = json.loads((tmp_path / "out/prepared.json").read_text())
    assert "absolute ids" in record["tensors"]["lm_head.weight"]["computed"]


def test_an_exporters_own_embedding_is_replaced(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path)
    tiny.change_tensors(draft, embed_tokens__weight=torch.randn(259, 32))
    after = prepared_tensors(draft, target, tmp_path / "out")
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(after["embed_tokens.weight"], embedding)


def test_a_trained_embedding_is_kept(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path, embed_requires_grad=True)
    own = torch.randn(259, 32)
    tiny.change_tensors(draft, embed_tokens__weight=own)
    after = prepared_tensors(draft, target, tmp_path / "out")
    assert torch.equal(after["embed_tokens.weight"], own)


def edit(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "residual": ("authors", {"norm_before_residual": True}, "norm_before_residual is true"),
    "residual-unknown": ("speculators", {"norm_before_residual": ...}, "readers disagree"),
    "fc-norm": ("specforge", {"fc_norm": True}, "fc_norm is true"),
    "before-fc": ("speculators", {"norm_before_fc": True}, "norm_before_fc is true"),
    "output": ("speculators", {"norm_output": True}, "norm_output is true"),
    "layers": ("specforge", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [4, 2, 5]}},
               "expected 3 rising layers of the target's 8, as [2, 4, 5]"),
    "layers-beyond": ("authors", {"eagle_aux_hidden_state_layer_ids": [2, 4, 8]}, "target's 8"),
    "two-layers": ("authors", {"eagle_aux_hidden_state_layer_ids": [2, 4]}, "3 rising layers"),
    "target-hidden": ("authors", {"target_hidden_size": 64}, "target_hidden_size 64"),
    "too-many-rows": ("authors", {"draft_vocab_size": 300}, "exceeds vocab_size 259"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_nxdi_would_compute_wrongly_is_refused(
    case: str, tmp_path: Path, target: Path
) -> None:
    form, changes, message = REFUSED[case]
    draft = write(tmp_path, form)
    edit(draft, **changes)
    with pytest.raises(CheckpointError) as caught:
        prepare_draft(draft, target, tmp_path / "out")
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("ids", "layers"),
    [
        ([2, 4, 5], (2, 4, 5)),  # as the authors count
        ([1, 3, 4], (2, 4, 5)),  # as SpecForge counts
        ([0, 3, 7], (0, 3, 7)),
        ([1, 2, 6], (2, 3, 7)),
        (None, (2, 4, 5)),
    ],
)
def test_features_are_those_that_the_config_names(
    ids: list[int] | None, layers: tuple[int, ...], tmp_path: Path, target: Path
) -> None:
    draft = write(tmp_path)
    if ids is not None:
        edit(draft, eagle_aux_hidden_state_layer_ids=ids)
    prepared = prepare_draft(draft, target, tmp_path / "out")
    assert HEADS["eagle3"].taps(tmp_path / "out", NUM_TARGET_LAYERS) == layers
    # Prepared once more it stays what it is, whatever its own list begins with.
    prepare_draft(tmp_path / "out", target, tmp_path / "again")
    assert HEADS["eagle3"].taps(tmp_path / "again", NUM_TARGET_LAYERS) == layers
    told = any("NxDI taps those of [2, 4, 5]" in decision for decision in prepared.decisions)
    assert told == (layers != (2, 4, 5))


def test_norm_output_of_specforge_is_the_norm_before_the_head(tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path, "specforge")
    edit(draft, norm_output=True)
    prepare_draft(draft, target, tmp_path / "out")


@pytest.mark.parametrize("name", ["input_norm.weight", "fc_norm.0.weight", "layers.1.mlp.x"])
def test_tensors_that_nxdi_has_no_place_for_are_refused(
    name: str, tmp_path: Path, target: Path
) -> None:
    draft = write(tmp_path)
    tiny.change_tensors(draft, **{name.replace(".", "__"): torch.ones(32)})
    with pytest.raises(CheckpointError, match=f"unexpected: {name}"):
        prepare_draft(draft, target, tmp_path / "out")


def test_a_shallow_target_is_refused(tmp_path: Path) -> None:
    shallow = tiny.write_target(tmp_path / "shallow", num_hidden_layers=6)
    with pytest.raises(CheckpointError, match="the target has 6 layers"):
        prepare_draft(write(tmp_path), shallow, tmp_path / "out")


@pytest.mark.parametrize("fault", ["missing", "unsorted", "contradiction", "floats"])
def test_a_broken_vocabulary_map_is_refused(fault: str, tmp_path: Path, target: Path) -> None:
    draft = write(tmp_path)
    d2t = load_file(draft / "model.safetensors")["d2t"]
    changes = {
        "missing": {"d2t": None},
        "unsorted": {"d2t": d2t.flip(0), "t2d": None},
        "contradiction": {"t2d": torch.ones(259, dtype=torch.bool)},
        "floats": {"d2t": d2t.float()},
    }
    tiny.change_tensors(draft, **changes[fault])
    with pytest.raises(CheckpointError):
        prepare_draft(draft, target, tmp_path / "out")
    assert not (tmp_path / "out").exists()
