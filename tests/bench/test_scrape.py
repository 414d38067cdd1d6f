"""Acceptance from /metrics, before and after, under vLLM's names."""

from __future__ import annotations

from dataclasses import replace

from neuron_spec.bench.scrape import SpeculationMetrics
from neuron_spec.metrics import AcceptanceCounts
from neuron_spec.metrics.prometheus import ServerMetrics
from neuron_spec.metrics.totals import EngineTotals

VLLM = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="another"} 99.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 40.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 22.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 15.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 7.0
vllm:generation_tokens_total{engine="0",model_name="m"} 42.0
"""


def parsed(text: str = VLLM) -> SpeculationMetrics:
    metrics = SpeculationMetrics.parse(text, "m")
    assert metrics is not None
    return metrics


ZERO = SpeculationMetrics(0.0, 0.0, 0.0, 0.0, {})


def test_counters_are_summed_over_engines_of_the_model() -> None:
    assert parsed() == SpeculationMetrics(20.0, 40.0, 22.0, 42.0, {0: 15.0, 1: 7.0})
    assert SpeculationMetrics.parse("vllm:generation_tokens_total 3", "m") is None
    assert SpeculationMetrics.parse(None, "m") is None
    assert SpeculationMetrics.parse("<html>\nnot metrics", "m") is None


def test_the_difference_is_what_the_round_accepted() -> None:
    counts = parsed().since(ZERO, own_tokens=42)
    assert counts == AcceptanceCounts(20, 40, 22, [15, 7], [20, 20], [5, 8, 7])
    assert counts.rate == 22 / 40
    assert counts.length == 1 + 22 / 20
    assert counts.rate_by_position == [15 / 20, 7 / 20]


def test_steps_that_drafted_less_leave_positions_untold() -> None:
    counts = replace(parsed(), num_drafted=35.0).since(ZERO, own_tokens=42)
    assert counts is not None
    assert (counts.rate_by_position, counts.steps_by_accepted) == ([], [5, 8, 7])


def test_other_traffic_and_a_new_start_are_noticed() -> None:
    assert parsed().since(ZERO, own_tokens=20) is None  # 42 were generated
    assert parsed().since(ZERO, own_tokens=43) is None  # fewer than we got: not this model's
    assert ZERO.since(parsed(), own_tokens=0) is None
    untold = replace(parsed(), num_generated=0.0)
    assert untold.since(ZERO, own_tokens=1) is not None  # no such counter, nothing to check by


def test_our_own_metrics_are_read_back() -> None:
    totals = EngineTotals()
    for accepted in (2, 0, 1, 2):
        totals.acceptance.add_step(2, accepted)
    totals.num_output_tokens = 9
    text = ServerMetrics("m", totals, lambda: (0, 0)).render().decode()
    assert parsed(text).since(ZERO, own_tokens=9) == totals.acceptance
