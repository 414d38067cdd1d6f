"""What NxDI compiles and our runner cannot run is told before the compile."""

from __future__ import annotations

from typing import Any

import pytest
from neuron_builds import RUNNER_CODES, assert_found, codes_of, findings_of

from neuron_spec.preflight.neuron.runner import UNREAD

BLOCKS = {"is_block_kv_layout": True, "pa_num_blocks": 64, "pa_block_size": 32}


def on(method: str, **tables: Any) -> dict[str, Any]:
    return {"method": method, "neuron": tables}


@pytest.mark.parametrize(
    ("code", "broken", "passing"),
    [
        ("runner-async-mode", on("eagle", config={"async_mode": True}),
         on("eagle", config={"async_mode": False})),
        ("runner-block-kv-layout", on("none", config=BLOCKS),
         on("none", config={**BLOCKS, "is_block_kv_layout": False})),
        ("runner-prefix-caching", on("none", config={"is_prefix_caching": True, **BLOCKS}),
         on("none", config={"is_prefix_caching": False})),
        ("runner-global-top-k", on("eagle", sampling={"global_topk": 0}),
         on("eagle", sampling={"global_topk": 1})),
        ("runner-global-top-k",
         on("none", sample_on_device=True, sampling={"global_topk": -1}),
         on("none", sample_on_device=True, sampling={"global_topk": 256})),
    ],
)  # fmt: skip
def test_settings_that_only_another_server_runs(
    code: str, broken: dict[str, Any], passing: dict[str, Any]
) -> None:
    assert_found(code, broken, passing)
    (finding,) = (f for f in findings_of(**broken) if f.code == f"neuron-{code}")
    assert "compile --backend neuron" in finding.message
    assert finding.backend == "neuron"


def test_every_unread_keyword_has_its_finding() -> None:
    codes = {f"runner-{code}" for code in RUNNER_CODES} - {"runner-global-top-k"}
    found = [codes_of(**on("none", config={name: True})) & codes for name in UNREAD]
    assert {code for (code,) in found} == codes


def test_a_sampler_that_is_not_in_the_graph_is_told_otherwise() -> None:
    codes = codes_of(**on("none", sampling={"global_topk": 0}))
    assert "sampling-unused" in codes and "runner-global-top-k" not in codes


def test_a_build_as_usual_has_none_of_them() -> None:
    for method in ("none", "eagle", "model", "medusa", "ngram"):
        assert not [code for code in codes_of(**on(method)) if code.startswith("runner-")]
