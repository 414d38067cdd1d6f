"""`neuron-spec serve --ray`: what is refused before Ray is started."""

from __future__ import annotations

import sys
from pathlib import Path

import fleet
import pytest
from click.testing import CliRunner

from neuron_spec.cli.main import cli
from neuron_spec.errors import ArtifactError, DependencyError, UserError
from neuron_spec.scaling import run as running
from neuron_spec.scaling.run import check_room


@pytest.mark.parametrize(
    "option", [("--replicas", "2"), ("--max-replicas", "2"), ("--cpus-per-replica", "2")]
)
def test_options_of_ray_need_ray(option: tuple[str, str]) -> None:
    result = CliRunner().invoke(cli, ["serve", "nowhere", "--port", "0", *option])
    assert result.exit_code == 2
    assert f"{option[0]} needs --ray" in result.output


def test_most_is_not_less_than_least() -> None:
    arguments = ["serve", "nowhere", "--ray", "--port", "0", "--replicas", "3"]
    result = CliRunner().invoke(cli, [*arguments, "--max-replicas", "2"])
    assert isinstance(result.exception, UserError)
    assert "max_replicas 2 is below replicas 3" in str(result.exception)


def test_without_an_artifact_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "import_ray", lambda: pytest.fail("Ray was asked for"))
    result = CliRunner().invoke(cli, ["serve", "nowhere", "--ray", "--port", "0"])
    assert isinstance(result.exception, ArtifactError)


def test_where_ray_is_missing_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    artifact = fleet.build(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(cli, ["serve", str(artifact.directory), "--ray", "--port", "0"])
    assert isinstance(result.exception, DependencyError)
    assert "pip install 'neuron-spec[ray]'" in str(result.exception)


def test_too_few_resources_are_told_instead_of_waiting_for_ever() -> None:
    check_room(3, {"CPU": 1, "neuron_cores": 4}, {"CPU": 8, "neuron_cores": 12})
    with pytest.raises(UserError, match="not enough neuron_cores for 3 replicas") as caught:
        check_room(3, {"CPU": 1, "neuron_cores": 4}, {"CPU": 8, "neuron_cores": 8})
    assert "found: 8" in str(caught.value)
    assert "expected: 12, 4 each" in str(caught.value)
    with pytest.raises(UserError, match="not enough CPU"):
        check_room(3, {"CPU": 1}, {})


def test_a_replica_that_does_not_answer_does_not_end_the_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "_POLL_S", 0.0)
    asked: list[str] = []

    class Silent:
        """A handle of replicas, one of which hangs until it is asked for the third time."""

        def broadcast(self, method: str) -> Silent:
            asked.append(method)
            return self

        def results(self, **_: object) -> list[int]:
            if asked.count("close") < 3:
                raise TimeoutError
            return [0, 0]

    running._drain(Silent(), 60.0)
    assert asked == ["close", "close", "close", "stop"]
