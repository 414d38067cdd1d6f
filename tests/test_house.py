"""The house itself: public names, light imports, one list of choices and not two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import neuron_spec
from neuron_spec.cli.main import VERBS

PACKAGE = Path(neuron_spec.__file__).parent


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_public_names_are_sorted_and_importable() -> None:
    assert neuron_spec.__all__ == sorted(neuron_spec.__all__)
    for name in neuron_spec.__all__:
        assert getattr(neuron_spec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        neuron_spec.nonsense  # noqa: B018


def test_nothing_else_leaks_from_the_package() -> None:
    code = "import neuron_spec; print(*dir(neuron_spec))"
    assert run_python(code).split() == sorted(neuron_spec.__all__)


@pytest.mark.parametrize(
    "code",
    [
        "import neuron_spec",
        "import neuron_spec; neuron_spec.load_spec, neuron_spec.BuildSpec, neuron_spec.check",
        "from neuron_spec.cli.main import cli; cli.get_help(__import__('click').Context(cli))",
    ],
)
def test_what_must_answer_at_once_does_not_import_torch(code: str) -> None:
    found = run_python(f"import sys; {code}; print('torch' in sys.modules)")
    assert found == "False"


def test_every_verb_has_a_file_and_the_other_way_round() -> None:
    files = {path.stem for path in (PACKAGE / "cli").glob("*.py")}
    assert files - {"__init__", "common", "main"} == set(VERBS)


def test_files_and_functions_stay_small() -> None:
    """Guides of the house; a breach needs a reason, written here."""
    reasons: dict[str, str] = {}
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        num_lines = len(path.read_text().splitlines())
        assert num_lines <= 400 or name in reasons, f"{name} has {num_lines} lines"
