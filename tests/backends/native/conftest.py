"""Everything here needs a C++ compiler. Where there is one, kernels that do not compile fail."""

from __future__ import annotations

import pytest
from compilers import has_compiler


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if has_compiler():
        return
    for item in items:
        if "backends/native" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason="no C++ compiler"))
