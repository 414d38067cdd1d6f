"""What /metrics tells agrees with what clients were told, to the token."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from served import COMPLETIONS, MODEL, AnySpeculator, TestClient, any_app, wait_until

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "5 6 7", "max_tokens": 9}


def scraped(client: Any) -> dict[tuple[str, str], float]:
    """Values by sample name and the label beside vLLM's two."""
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    values = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("model_name"), labels.pop("engine")) == (MODEL, "0")
            values[sample.name, "".join(labels.values())] = sample.value
    return values


def test_counts_agree_with_usage_and_acceptance() -> None:
    with TestClient(any_app()) as client:
        before = scraped(client)
        assert before["vllm:generation_tokens_total", ""] == 0
        usages, by_accepted = [], [0] * 4
        for seed in range(5):
            request = {**COMPLETION, "seed": seed, "include_acceptance": True}
            usages.append(client.post(COMPLETIONS, json=request).json()["usage"])
        now = scraped(client)
    told = [usage["acceptance"] for usage in usages]
    for record in told:
        for accepted, count in enumerate(record["steps_by_num_accepted"]):
            by_accepted[accepted] += count
    wanted = {
        "vllm:prompt_tokens_total": sum(usage["prompt_tokens"] for usage in usages),
        "vllm:generation_tokens_total": sum(usage["completion_tokens"] for usage in usages),
        "vllm:spec_decode_num_drafts_total": sum(record["num_steps"] for record in told),
        "vllm:spec_decode_num_draft_tokens_total": sum(r["num_drafted_tokens"] for r in told),
        "vllm:spec_decode_num_accepted_tokens_total": sum(r["num_accepted_tokens"] for r in told),
        "vllm:time_to_first_token_seconds_count": 5,
        "vllm:time_per_output_token_seconds_count": 5,
        "vllm:request_time_per_output_token_seconds_count": 5,
        "vllm:e2e_request_latency_seconds_count": 5,
        "vllm:request_queue_time_seconds_count": 5,
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "neuron_spec:steps_total": sum(record["num_steps"] for record in told),
        "neuron_spec:request_failures_total": 0,
    }
    assert {name: now[name, ""] for name in wanted} == wanted
    assert sum(usage["completion_tokens"] for usage in usages) == 45
    assert now["vllm:request_success_total", "length"] == 5
    assert now["vllm:request_success_total", "stop"] == 0
    positions = [
        now["vllm:spec_decode_num_accepted_tokens_per_pos_total", str(place)] for place in range(3)
    ]
    assert positions == [sum(by_accepted[place + 1 :]) for place in range(3)]
    steps = [now.get(("neuron_spec:steps_by_accepted_tokens_total", str(n)), 0) for n in range(4)]
    assert steps == by_accepted


def test_load_failures_and_clients_that_leave_are_told() -> None:
    speculator = AnySpeculator()
    app = any_app(speculator)
    with TestClient(app) as client:
        speculator.pause_s = 0.02
        with client.stream(
            "POST", COMPLETIONS, json={**COMPLETION, "max_tokens": 60, "n": 6, "stream": True}
        ):
            pass
        wait_until(lambda: not speculator.rows)
        speculator.pause_s = 0
        request = {**COMPLETION, "prompt": [[5], [6]], "max_tokens": 1}
        client.post(COMPLETIONS, json=request)
        now = scraped(client)
    assert now["vllm:request_success_total", "length"] >= 2
    assert now["vllm:num_requests_running", ""] == 0


def test_every_application_has_its_own() -> None:
    with TestClient(any_app()) as first, TestClient(any_app()) as second:
        first.post(COMPLETIONS, json=COMPLETION)
        assert scraped(first)["vllm:generation_tokens_total", ""] == 9
        assert scraped(second)["vllm:generation_tokens_total", ""] == 0
