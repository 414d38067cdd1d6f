"""`neuron-spec serve --ray`: what is refused before Ray is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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


class Replicas:
    """A handle of replicas that answer `close` with these, one after the other; None: too late."""

    def __init__(self, *answers: list[Any] | None) -> None:
        self._answers, self.asked = iter(answers), list[str]()

    def broadcast(self, method: str) -> Replicas:
        self.asked.append(method)
        return self

    def results(self, **_: object) -> list[Any]:
        answers = next(self._answers, [])
        if answers is None:
            raise TimeoutError
        return answers


@pytest.mark.parametrize(
    ("answers", "num_asked"),
    [
        ([[9.0, 9.0]], 1),
        ([None, None, [9.0, 9.0]], 3),  # one that does not answer does not end the drain
        ([[9.0, 0.0], [9.0, 0.1], [0.0, 9.0], [9.0, 9.0]], 4),  # more came from Ray's proxy
        ([[0.0, RuntimeError()], [9.0, RuntimeError()]], 2),  # one that is gone has none open
        ([[RuntimeError()]], 1),
    ],
)
def test_a_drain_ends_when_no_replica_has_had_a_request_for_a_while(
    answers: list[list[Any] | None], num_asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_POLL_S", 0.0)
    handle = Replicas(*answers)
    running._drain(handle, 60.0)
    assert handle.asked == ["close"] * num_asked + ["stop"]


def test_a_drain_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_POLL_S", 0.0)
    handle = Replicas([0.0], None)
    running._drain(handle, 0.0)
    assert handle.asked == ["close", "stop"]
