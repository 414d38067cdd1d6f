"""What `--help` imports: it has to be there at once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# As console entry point; the last line is what was imported.
CODE = """
import json, sys
from neuron_spec.cli.main import main
sys.argv = ["neuron-spec", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert ended.code == 0
print(json.dumps(sorted(sys.modules)))
"""
# Of everybody's, only what all verbs need before they know what to do.
SELDOM = {"asyncio", "jinja2", "numpy", "pydantic", "rich", "tokenizers", "torch", "transformers"}
OWN = {
    "neuron_spec", "neuron_spec.backends", "neuron_spec.bench", "neuron_spec.bench.peers",
    "neuron_spec.cli", "neuron_spec.errors", "neuron_spec.version",
}  # fmt: skip


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) > 1  # it has said something
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "--help"), ("bench", "--help")])
def test_help_imports_little(arguments: tuple[str, ...]) -> None:
    modules = imported(*arguments)
    assert modules & SELDOM == set()
    own = {name for name in modules if name.split(".")[0] == "neuron_spec"}
    assert {name for name in own if not name.startswith("neuron_spec.cli.")} <= OWN


def test_a_verb_that_prints_imports_what_it_prints_with() -> None:
    """So that the test above looks at the right names."""
    assert "rich" in imported("methods")


def test_a_server_does_not_spin_for_long_unless_told_to() -> None:
    from neuron_spec.cli.serve import spin_briefly

    bare: dict[str, str] = {}
    spin_briefly(bare)
    assert int(bare["GOMP_SPINCOUNT"]) < 300_000  # libgomp's own
    for given in ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "5"}):
        kept = dict(given)
        spin_briefly(kept)
        assert kept == given


def test_nothing_of_serve_imports_torch_before_that() -> None:
    code = "import sys, neuron_spec.cli.serve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
