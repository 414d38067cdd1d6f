"""Names of requests and answers."""

from __future__ import annotations

import re

from neuron_spec.serving.ids import Ids


def test_no_two_are_the_same_whoever_makes_them() -> None:
    makers = [Ids() for _ in range(10)]
    names = [maker.new() for _ in range(100) for maker in makers]
    assert len(set(names)) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)
