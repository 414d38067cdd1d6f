"""`make test-neuron` away from a device: skipped, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(os.path.exists("/dev/neuron0"), reason="there is a device here")  # noqa: PTH110
def test_without_a_device_every_test_is_skipped_and_says_why() -> None:
    tests = ROOT / "tests" / "neuron" / "test_behaviours.py"
    command = [sys.executable, "-m", "pytest", "-m", "neuron", "-p", "no:cacheprovider", tests]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    assert "no /dev/neuron0: run on a trn or inf instance" in done.stdout
    assert " skipped" in done.stdout and " passed" not in done.stdout.splitlines()[-1]


def test_the_ordinary_suite_leaves_the_device_alone() -> None:
    settings = (ROOT / "pyproject.toml").read_text()
    assert '"not slow and not neuron"' in settings
