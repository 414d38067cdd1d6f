"""Absent, placeholder, too old, ready: told apart by what pip would have installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from neuron_spec.platforms.neuron_packages import (
    OLDEST_REAL_VERSIONS,
    PackageState,
    neuron_packages,
    package_state,
)

NXDI, TORCH = "neuronx-distributed-inference", "torch-neuronx"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands before site-packages; its dist-infos are found first."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def install(site: Path, name: str, version: str, description: str = "The real thing.") -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n{description}\n"
    (folder / "METADATA").write_text(text)


def test_absent(site: Path) -> None:
    assert package_state(NXDI) == PackageState(NXDI, "absent", None)
    assert str(package_state(NXDI)) == f"{NXDI}: absent"


@pytest.mark.parametrize(("name", "version"), [(NXDI, "0.1.0"), (TORCH, "1.0"), (TORCH, "9.9")])
def test_a_placeholder_is_known_by_its_description(site: Path, name: str, version: str) -> None:
    install(site, name, version, "WRONG PACKAGE\n=============\nUse the Neuron index.")
    assert package_state(name) == PackageState(name, "placeholder", version)


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        (NXDI, "0.1.0", "too old"),
        (NXDI, "0.7.99", "too old"),
        (NXDI, "0.8.0", "ready"),
        (NXDI, "0.9.0", "ready"),
        (NXDI, "0.10.1+2be24", "ready"),
        (NXDI, "1.0", "ready"),
        (NXDI, "0.9rc1", "ready"),
        (TORCH, "1.0", "too old"),
        (TORCH, "2.7.0.2.10", "too old"),
        (TORCH, "2.8.0.2.10.9", "ready"),
        (TORCH, "2.9.0.1.2", "ready"),
        (TORCH, "2.10.0.1", "ready"),
    ],
)
def test_versions_are_compared_as_numbers(
    site: Path, name: str, version: str, expected: str
) -> None:
    install(site, name, version)
    assert package_state(name) == PackageState(name, expected, version)  # type: ignore[arg-type]
    assert str(package_state(name)) == f"{name} {version}: {expected}"


def test_all_packages_are_reported_in_order(site: Path) -> None:
    install(site, TORCH, "2.9.0.1.2")
    states = neuron_packages()
    assert [state.name for state in states] == list(OLDEST_REAL_VERSIONS) == [NXDI, TORCH]
    assert [state.state for state in states] == ["absent", "ready"]
