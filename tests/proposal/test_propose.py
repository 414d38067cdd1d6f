"""Proposals for published pairs: they load, come back as they were, and pass the preflight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sparse_checkpoints as sparse

from neuron_spec.errors import CheckpointError, SpecError, UserError
from neuron_spec.files import write_text
from neuron_spec.platforms.instances import INSTANCES
from neuron_spec.preflight import check
from neuron_spec.proposal import Proposal, find_instance, propose, read_models, toml_text
from neuron_spec.spec import BuildSpec, load_spec

PAIRS = {
    "eagle": ("llama-8b", "eagle"),
    "eagle3": ("llama-8b", "eagle3"),
    "70b": ("llama-70b", "llama-1b"),
    "qwen3": ("qwen3-32b", "qwen3-0.6b"),
    "medusa": ("mistral-7b", "medusa"),
    "ngram": ("llama-8b", None),
}
# Pair, instance -> SDK release and TP degree; of the first three, those of the SDK's tutorials.
PLACES = {
    ("eagle", "trn2.48xlarge"): ("2.29", 8),
    ("eagle3", "trn2.48xlarge"): ("2.29", 8),
    ("70b", "trn2.48xlarge"): ("2.29", 64),
    ("eagle", "trn2.3xlarge"): ("2.29", 4),
    ("eagle", "trn1.32xlarge"): ("2.28", 8),
    ("eagle", "inf2.xlarge"): ("2.28", 2),
    ("eagle", "inf2.24xlarge"): ("2.28", 8),
    ("eagle", "inf2.48xlarge"): ("2.28", 8),
    ("eagle", "trn3-gen1"): ("2.29", 8),
    ("eagle3", "trn2.3xlarge"): ("2.29", 4),
    ("eagle3", "trn1.32xlarge"): ("2.28", 8),
    ("eagle3", "inf2.8xlarge"): ("2.28", 2),
    ("70b", "trn1.32xlarge"): ("2.28", 32),
    ("70b", "inf2.48xlarge"): ("2.28", 24),
    ("qwen3", "trn2.48xlarge"): ("2.29", 32),
    ("qwen3", "trn2.3xlarge"): ("2.29", 4),
    ("qwen3", "trn1.32xlarge"): ("2.28", 32),
    ("qwen3", "inf2.48xlarge"): ("2.28", 8),
    ("medusa", "trn2.48xlarge"): ("2.29", 8),
    ("medusa", "trn2.3xlarge"): ("2.29", 4),
    ("medusa", "trn1.32xlarge"): ("2.28", 8),
    ("medusa", "inf2.48xlarge"): ("2.28", 8),
    ("ngram", "trn2.3xlarge"): ("2.29", 4),
}


def written(
    folder: Path, proposal: Proposal, name: str = "spec.toml"
) -> tuple[BuildSpec, dict[str, Any]]:
    """The spec as it is read back, and what the proposal says."""
    write_text(folder / name, toml_text(proposal))
    return load_spec(folder / name), proposal.data


def proposed(
    zoo: Path, target: str, draft: str | None, instance: str | None, **options: Any
) -> Proposal:
    models = read_models(
        str(zoo / target), str(zoo / draft) if draft else None,
        method=options.get("method"), folder=zoo,
    )  # fmt: skip
    return propose(models, instance=None if instance is None else find_instance(instance))


@pytest.mark.parametrize(("pair", "instance"), PLACES)
def test_published_pairs_on_instances(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: str, instance: str
) -> None:
    monkeypatch.chdir(tmp_path)
    proposal = proposed(zoo, *PAIRS[pair], instance)
    spec, data = written(tmp_path, proposal)
    for table, fields in data.items():
        stored = getattr(spec, table).model_dump()
        assert {name: stored[name] for name in fields} == fields
    assert spec.neuron is not None and spec.neuron.instance == instance
    assert (spec.neuron.sdk, spec.neuron.tp_degree) == PLACES[pair, instance]
    errors = {f.code for f in check(spec) if f.severity == "error" and f.concerns("neuron")}
    assert errors == ({"draft-unprepared"} if pair in ("eagle", "eagle3", "medusa") else set())
    assert "tp_degree" in toml_text(proposal) and "neuron.tp_degree" in proposal.reasons


@pytest.mark.parametrize("pair", ["eagle", "70b", "ngram"])
def test_without_an_instance_it_is_for_the_reference_backend(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: str
) -> None:
    monkeypatch.chdir(tmp_path)
    spec, data = written(tmp_path, proposed(zoo, *PAIRS[pair], None))
    assert spec.neuron is None and data["reference"] == {"device": "cpu", "dtype": "float32"}
    errors = {f.code for f in check(spec) if f.severity == "error" and f.concerns("reference")}
    assert errors <= {"draft-unprepared"}


def test_the_method_and_its_draft_length(zoo: Path) -> None:
    lengths = {
        pair: proposed(zoo, *models, None).data["draft"]["num_draft_tokens"]
        for pair, models in PAIRS.items()
    }
    assert lengths == {"eagle": 4, "eagle3": 3, "70b": 6, "qwen3": 6, "medusa": 4, "ngram": 5}
    close = proposed(zoo, "llama-8b", "llama-1b", None)
    assert close.data["draft"]["num_draft_tokens"] == 4
    assert "6 times the draft" in close.reasons["draft.num_draft_tokens"]
    suffix = proposed(zoo, "llama-8b", None, None, method="suffix").data["draft"]
    assert suffix == {"method": "suffix", "num_draft_tokens": 8}
    alone = proposed(zoo, "llama-8b", None, "trn2.3xlarge", method="none").data
    assert "draft" not in alone and alone["shape"]["max_total_tokens"] == 4096


def test_what_does_not_fit_is_proposed_with_its_finding(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    proposal = proposed(zoo, *PAIRS["70b"], "trn2.3xlarge")
    assert proposal.reasons["neuron.tp_degree"].startswith("no degree passes")
    spec, _ = written(tmp_path, proposal)
    assert "neuron-memory" in {f.code for f in check(spec) if f.severity == "error"}


def test_large_weights_are_written_split(zoo: Path) -> None:
    tables = proposed(zoo, *PAIRS["70b"], "trn2.48xlarge")
    assert tables.data["neuron"]["save_sharded_checkpoint"] is True
    assert "131 GiB" in tables.reasons["neuron.save_sharded_checkpoint"]
    assert tables.reasons["neuron.tp_degree"].startswith("2.1 GiB of weights a core (SDK tutorials")
    small = proposed(zoo, *PAIRS["eagle"], "trn2.48xlarge").data["neuron"]
    assert "save_sharded_checkpoint" not in small


def test_a_window_is_kept_by_two_graphs_and_short_requests(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for draft in ("mistral-7b", None):
        proposal = proposed(zoo, "mistral-windowed", draft, "trn2.3xlarge")
        spec, data = written(tmp_path, proposal)
        assert data["shape"]["max_total_tokens"] < 4096 - 5
        assert "window" in proposal.reasons["shape.max_total_tokens"]
        assert data["neuron"].get("fused") is (False if draft else None)
        errors = [f for f in check(spec) if f.severity == "error" and f.concerns("neuron")]
        assert errors == []
    short = proposed(zoo, "gpt-oss-120b", None, "trn2.48xlarge")
    assert short.data["shape"]["max_total_tokens"] == 4090, "128 positions are no use"


@pytest.mark.parametrize(
    ("given", "expected", "reason"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16", ""),
        ({"torch_dtype": "float16"}, "float16", "as in config.json"),
        ({"torch_dtype": None, "dtype": "float32"}, "float32", "as in config.json"),
        ({"torch_dtype": None}, "bfloat16", "config.json names none"),
        ({"torch_dtype": "float8_e4m3fn"}, "bfloat16", "config.json: float8_e4m3fn"),
        ({"torch_dtype": ["x"]}, "bfloat16", "config.json: ['x']"),
    ],
)
def test_the_dtype_is_that_of_the_weights(
    tmp_path: Path, given: dict[str, Any], expected: str, reason: str
) -> None:
    small = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "head_dim": 2}
    sparse.language_model(tmp_path / "t", sparse.raw_config("llama-8b", **small, **given))
    proposal = proposed(tmp_path, "t", None, None)
    assert proposal.data["target"]["dtype"] == expected
    assert proposal.reasons.get("target.dtype", "").startswith(reason)


def test_what_contradicts_itself_is_refused(zoo: Path) -> None:
    with pytest.raises(UserError, match="--method ngram drafts without a checkpoint"):
        proposed(zoo, "llama-8b", "eagle", None, method="ngram")
    with pytest.raises(CheckpointError, match=r"no language model\n.*family eagle\n.*target first"):
        proposed(zoo, "eagle", "llama-8b", None)
    with pytest.raises(SpecError, match=r"--instance 'trn2\.3xl'.*did you mean 'trn2\.3xlarge'"):
        proposed(zoo, "llama-8b", None, "trn2.3xl")
    with pytest.raises(CheckpointError, match="no such directory"):
        proposed(zoo, "nothing", None, None)


def test_every_instance_has_a_place_for_a_small_target(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for instance in INSTANCES:
        spec, _ = written(tmp_path, proposed(zoo, "llama-1b", None, instance))
        assert not [f for f in check(spec) if f.severity == "error" and f.concerns("neuron")]


def test_paths_are_seen_from_the_specs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "head_dim": 2}
    sparse.language_model(tmp_path / "owner" / "model", sparse.raw_config("llama-8b", **small))
    (tmp_path / "real" / "specs").mkdir(parents=True)
    (tmp_path / "specs").symlink_to(tmp_path / "real" / "specs")
    monkeypatch.chdir(tmp_path)
    for given, folder, expected in (
        ("owner/model", ".", "./owner/model"),  # never mistaken for a hub id
        ("owner/model", "new", "../owner/model"),
        ("owner/model", "specs", "../../owner/model"),
        ("owner/model", "owner", "./model"),
        (str(tmp_path / "owner/model"), "new", str(tmp_path / "owner/model")),
    ):
        models = read_models(given, None, method=None, folder=Path(folder))
        assert models.target_name == expected
        (tmp_path / folder).mkdir(exist_ok=True)
        spec, _ = written(Path(folder), propose(models, instance=None))
        assert check(spec)[:0] == [] and spec.target.model == expected
