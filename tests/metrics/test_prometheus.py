"""Metrics from counts alone."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from neuron_spec.metrics.prometheus import ServerMetrics
from neuron_spec.metrics.totals import EngineTotals


def samples(metrics: ServerMetrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_steps_without_a_draft_are_no_drafts() -> None:
    totals = EngineTotals()
    for drafted, accepted in ((4, 2), (0, 0), (4, 0), (0, 0)):
        totals.acceptance.add_step(drafted, accepted)
    told = samples(ServerMetrics("m", totals, lambda: (1, 2)))
    assert told["vllm:spec_decode_num_drafts_total"] == 2
    assert told["neuron_spec:steps_total"] == 4
    assert told["vllm:spec_decode_num_draft_tokens_total"] == 8
    assert (told["vllm:num_requests_running"], told["vllm:num_requests_waiting"]) == (1, 2)


def test_of_a_tree_positions_are_depths() -> None:
    totals = EngineTotals()
    totals.acceptance.add_step(20, 3, 5)
    told = samples(ServerMetrics("m", totals, lambda: (0, 0)))
    assert told["vllm:spec_decode_num_drafts_total"] == 1


def test_times_go_where_they_belong_and_what_did_not_happen_is_not_counted() -> None:
    metrics = ServerMetrics("a name", EngineTotals(), lambda: (0, 0))
    metrics.observe(queued_s=1, ttft_s=2, tpot_s=0.25, total_s=8)
    metrics.observe(queued_s=0, ttft_s=None, tpot_s=None, total_s=0)
    told = samples(metrics)
    assert told["vllm:request_queue_time_seconds_sum"] == 1
    assert told["vllm:time_to_first_token_seconds_sum"] == 2
    assert told["vllm:time_to_first_token_seconds_count"] == 1
    assert told["vllm:time_per_output_token_seconds_sum"] == 0.25
    assert told["vllm:request_time_per_output_token_seconds_sum"] == 0.25
    assert told["vllm:e2e_request_latency_seconds_sum"] == 8
    assert told["vllm:e2e_request_latency_seconds_count"] == 2
