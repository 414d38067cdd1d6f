"""NxDI's double, for whatever compiles or runs on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nxdi_double
import pytest
from nxdi_double.opened import Opened, opened


@pytest.fixture
def nxdi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> nxdi_double.Recorder:
    """The double in place of NxDI, with its packages; what it was called with."""
    return nxdi_double.install(monkeypatch, tmp_path / "site-packages")


Open = Callable[..., Opened]


@pytest.fixture
def open_(nxdi: nxdi_double.Recorder, tmp_path: Path) -> Open:
    """Builds of `nxdi_double.opened`, by name."""

    def open_(name: str, **changes: Any) -> Opened:
        return opened(nxdi, tmp_path, name, **changes)

    return open_
