"""Everything here needs a C++ compiler, or kernels compiled before."""

from __future__ import annotations

import pytest

from neuron_spec.backends.reference.native.compiler import kernels
from neuron_spec.errors import BackendError


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        kernels()
    except BackendError as error:
        for item in items:
            if "backends/native" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=str(error)))
