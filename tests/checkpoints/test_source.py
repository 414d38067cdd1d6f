"""A model's name -> a directory; the hub is never really asked here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from neuron_spec.checkpoints import demo_target
from neuron_spec.checkpoints.source import resolve_model
from neuron_spec.errors import CheckpointError


class Hub:
    """Stands in for huggingface_hub: file names or an exception, and what it was asked."""

    def __init__(self, files: list[str] | Exception, cached: Path | None, downloaded: Path) -> None:
        self.files, self.cached, self.downloaded = files, cached, downloaded
        self.listed: list[tuple[str, str | None]] = []
        self.asked: list[dict[str, Any]] = []

    def list_repo_files(self, repository: str, *, revision: str | None) -> list[str]:
        self.listed.append((repository, revision))
        if isinstance(self.files, Exception):
            raise self.files
        return self.files

    def snapshot_download(self, repository: str, **options: Any) -> str:
        self.asked.append({"repository": repository, **options})
        if not options.get("local_files_only"):
            return str(self.downloaded)
        if self.cached is None:
            raise LocalEntryNotFoundError("outgoing traffic has been disabled")
        return str(self.cached)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hub]:
    def install(files: list[str] | Exception, cached: Path | None = None) -> Hub:
        double = Hub(files, cached, tmp_path / "snapshot")
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: double)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", double.snapshot_download)
        return double

    return install


def test_a_relative_directory_starts_at_the_spec(tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "models" / "m").mkdir(parents=True)
    assert resolve_model("../models/m", tmp_path / "specs") == tmp_path / "models" / "m"
    absolute = str(tmp_path / "models" / "m")
    assert resolve_model(absolute, tmp_path / "specs") == Path(absolute)


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    assert resolve_model("~/m", tmp_path / "x") == tmp_path / "m"


def test_a_directory_wins_over_a_hub_id(tmp_path: Path, hub: Callable[..., Hub]) -> None:
    double = hub(["model.safetensors"])
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert resolve_model("owner/name", tmp_path) == tmp_path / "owner" / "name"
    assert double.listed == []


@pytest.mark.parametrize("model", ["./owner/name", "../m", "just-a-name", "/no/such", "a/b/c", "."])
def test_what_can_only_be_a_path_is_not_looked_up(
    tmp_path: Path, hub: Callable[..., Hub], model: str
) -> None:
    double = hub([])
    with pytest.raises(CheckpointError, match="no such directory") as caught:
        resolve_model(model, tmp_path / "none")
    assert double.listed == [] and caught.value.exit_code == 2
    assert str(tmp_path / "none" / model) in str(caught.value)
    assert "start at the spec file's folder" in str(caught.value)


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match="is not a directory"):
        resolve_model("model.gguf", tmp_path)


def test_a_hub_id_with_safetensors_leaves_the_pickles(
    tmp_path: Path, hub: Callable[..., Hub]
) -> None:
    double = hub(["config.json", "model.safetensors", "pytorch_model.bin"])
    progress = Mock()
    assert resolve_model("owner/name", tmp_path, progress=progress) == tmp_path / "snapshot"
    assert double.listed == [("owner/name", None)]
    [asked] = double.asked
    assert asked["repository"] == "owner/name" and asked["revision"] is None
    assert "*.safetensors" in asked["allow_patterns"] and "*.json" in asked["allow_patterns"]
    assert "*.bin" not in asked["allow_patterns"]
    assert "medusa_heads.pt" in asked["allow_patterns"]  # as NxDI has them beside the weights
    progress.assert_called_once_with("hub owner/name", 0, 0)


def test_a_hub_id_with_pickles_only_gets_them(tmp_path: Path, hub: Callable[..., Hub]) -> None:
    double = hub(["config.json", "pytorch_model.bin"])
    assert resolve_model("owner/name@v1.0", tmp_path) == tmp_path / "snapshot"
    assert double.listed == [("owner/name", "v1.0")]
    [asked] = double.asked
    assert asked["revision"] == "v1.0" and "*.bin" in asked["allow_patterns"]


class NotAnOSError(Exception):
    """As httpx's errors, which huggingface_hub 1.x lets through."""


@pytest.mark.parametrize("error", [ConnectionError("no route to host"), NotAnOSError("no route")])
def test_without_network_an_earlier_download_is_used(
    tmp_path: Path, hub: Callable[..., Hub], error: Exception
) -> None:
    double = hub(error, cached=tmp_path / "cached")
    assert resolve_model("owner/name", tmp_path) == tmp_path / "cached"
    assert double.asked == [
        {"repository": "owner/name", "revision": None, "local_files_only": True}
    ]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionError("no route to host"), "no route to host"),
        (NotAnOSError("no route\nsecond line"), "no route"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_without_network_and_cache_the_id_and_the_reason_are_told(
    tmp_path: Path, hub: Callable[..., Hub], error: Exception, reason: str
) -> None:
    hub(error)
    with pytest.raises(CheckpointError) as caught:
        resolve_model("owner/name", tmp_path)
    assert str(caught.value).startswith("owner/name: ") and caught.value.exit_code == 2
    assert reason in str(caught.value) and "second line" not in str(caught.value)
    assert "outgoing traffic" not in str(caught.value), "the cache's answer is not the reason"
    assert "HF_TOKEN" in str(caught.value)


def test_a_model_that_the_hub_does_not_have_is_not_looked_for_in_the_cache(
    tmp_path: Path, hub: Callable[..., Hub]
) -> None:
    response = Mock(headers={}, status_code=404)
    double = hub(RepositoryNotFoundError("404 Client Error", response=response))
    with pytest.raises(CheckpointError, match="404"):
        resolve_model("owner/nmae", tmp_path)
    assert double.asked == []


def test_a_download_that_breaks_off_is_told(
    tmp_path: Path, hub: Callable[..., Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub(["model.safetensors"])
    broken = Mock(side_effect=OSError("connection reset"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    with pytest.raises(CheckpointError, match="connection reset"):
        resolve_model("owner/name", tmp_path)


def test_the_demo_target_is_asked_for_by_its_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure = Mock(return_value=tmp_path)
    monkeypatch.setattr(demo_target, "ensure", ensure)
    progress = Mock()
    assert resolve_model("demo:anything", Path("/none"), progress=progress) == tmp_path
    ensure.assert_called_once_with("demo:anything", progress)
