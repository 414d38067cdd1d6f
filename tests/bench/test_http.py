"""A bench over HTTP: ways, turns, counts, failures, and what servers do not tell."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import served
from conftest import WordTokenizer

from neuron_spec.bench.compare import compare_runs
from neuron_spec.bench.endpoints import open_ways, run_endpoints
from neuron_spec.bench.http import Remote, measure_endpoints, ways_at
from neuron_spec.bench.load import LoadSettings
from neuron_spec.bench.record import NOT_TOLD, record_of_endpoints
from neuron_spec.bench.report import html_report
from neuron_spec.bench.run import Run, run_of
from neuron_spec.bench.workload import WorkloadRow
from neuron_spec.client import OpenAIClient
from neuron_spec.errors import UserError

ROWS = [WorkloadRow("3", "code"), WorkloadRow([{"role": "user", "content": "4"}], "chat")]
SETTINGS = LoadSettings((1, 2), 2, {"max_new_tokens": 6, "temperature": 0})
DRAFTS = "vllm:spec_decode_num_drafts_total"


class Server:
    """A server of some make; what it has and tells is set by attributes."""

    def __init__(self, **traits: Any) -> None:
        self.traits = traits
        self.asked: list[dict[str, Any]] = []
        self.steps = 0
        self.running = self.most_running = 0
        self.lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/models":
            card = {"id": "m", **self.traits.get("card", {})}
            return httpx.Response(200, json={"data": [card]})
        if path == "/metrics":
            return self._metrics()
        body = json.loads(request.content)
        with self.lock:
            self.asked.append(body)
            self.running += 1
            self.most_running = max(self.running, self.most_running)
        try:
            time.sleep(self.traits.get("delay_s", 0.002))
            return self._answer(path, body)
        finally:
            with self.lock:
                self.running -= 1

    def _metrics(self) -> httpx.Response:
        if not self.traits.get("has_metrics"):
            return httpx.Response(404)
        values = {
            DRAFTS: self.steps,
            "vllm:spec_decode_num_draft_tokens_total": 2 * self.steps,
            "vllm:spec_decode_num_accepted_tokens_total": self.steps,
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}': self.steps,
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"}': 0,
        }
        return httpx.Response(200, text="\n".join(f"{k} {v}" for k, v in values.items()))

    def _answer(self, path: str, body: dict[str, Any]) -> httpx.Response:
        refused = set(body) & set(self.traits.get("refuses", ()))
        if refused:
            return httpx.Response(422, json={"detail": f"unexpected {sorted(refused)}"})
        if len(self.asked) > self.traits.get("fails_from", 1000):
            return httpx.Response(503, text="busy")
        count = body["max_tokens"]
        with self.lock:
            self.steps += count // 2
        return httpx.Response(
            200,
            stream=Parts(list(self._events(path, body, count))),
            headers={"content-type": "text/event-stream"},
        )

    def _events(self, path: str, body: dict[str, Any], count: int) -> Iterator[Any]:
        is_chat = path.endswith("chat/completions")
        for number in range(0, count, 2):  # two tokens a chunk
            text = f"{number} {number + 1} "
            yield {"choices": [{"delta": {"content": text}} if is_chat else {"text": text}]}
        yield {"choices": [{"text": "", "finish_reason": "length"}]}
        if (body.get("stream_options") or {}).get("include_usage") and self.traits.get("usage", 1):
            usage: dict[str, Any] = {"completion_tokens": count}
            if body["stream_options"].get("include_acceptance"):
                drafts = 0 if body.get("speculate") is False else 2
                usage["acceptance"] = acceptance(drafts)
            yield {"choices": [], "usage": usage}


def acceptance(drafted: int) -> dict[str, Any]:
    from neuron_spec.metrics import AcceptanceCounts

    counts = AcceptanceCounts()
    counts.add_step(drafted, min(1, drafted))
    counts.add_step(drafted, drafted)
    return counts.as_dict()


class Parts(httpx.SyncByteStream):
    """A body that comes in parts, with time between them."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def __iter__(self) -> Iterator[bytes]:
        for event in [*map(json.dumps, self.events), "[DONE]"]:
            time.sleep(0.001)
            yield f"data: {event}\n\n".encode()


def remote(server: Server, **fields: Any) -> Remote:
    client = OpenAIClient("http://test/v1", transport=httpx.MockTransport(server))
    return Remote(client, **fields)


def run(on: Remote, off: Remote | None = None, settings: LoadSettings = SETTINGS) -> Run:
    ways = ways_at(on, off, ROWS[0], settings.options)
    rounds = measure_endpoints(ways, ROWS, settings)
    record = record_of_endpoints(ways, ROWS, settings.options)
    result: Run = json.loads(json.dumps(run_of(record, ROWS, rounds, None)))
    return result


def test_two_servers_are_asked_in_turn() -> None:
    on, off = Server(delay_s=0.05), Server(delay_s=0.05)  # long enough to be asked twice at once
    data = run(remote(on), remote(off))
    assert [(load["way"], load["concurrency"]) for load in data["loads"]] == [
        ("off", 1), ("on", 1), ("off", 2), ("on", 2),
    ]  # fmt: skip
    load = data["loads"][1]
    assert (load["num_requests"], load["num_repetitions"], load["num_output_tokens"]) == (4, 2, 24)
    assert load["num_failed"] == 0
    assert load["ttft_s"]["p50"]["num_samples"] == 4
    first = data["speed_ups"][0]
    assert (first["identical"], first["num_prompts"]) == (2, 2)
    assert first["throughput"]["num_samples"] == 2
    assert {prompt["identical"] for prompt in data["prompts"]} == {True}
    assert {kind["kind"] for kind in data["kinds"]} == {"code", "chat"}
    # A try, warm-ups of 1 and 2, then two rows, at two in flight in four passes, twice.
    assert len(on.asked) == len(off.asked) == 1 + 3 + 2 * (2 + 8)
    assert on.most_running == 2
    assert {body["max_tokens"] for body in on.asked} == {8, 6}
    assert all(body["stream"] and body["stream_options"]["include_usage"] for body in on.asked)
    assert "messages" in on.asked[-1] or "messages" in on.asked[-2]


def test_time_per_token_is_by_tokens_and_not_by_chunks() -> None:
    """Six tokens in three chunks: two times between chunks, five after the first token."""
    data = run(remote(Server()))
    (load,) = [load for load in data["loads"] if load["concurrency"] == 1]
    chunk_s = 0.001  # at least, between two chunks
    assert load["tpot_s"]["p50"]["value"] >= 2 * chunk_s / 5
    assert load["tpot_s"]["p50"]["value"] * 5 < load["total_s"]["p50"]["value"]
    assert any("a chunk may hold several" in note for note in data["notes"])


def test_a_single_server_without_a_switch_is_one_way() -> None:
    data = run(remote(Server()))
    assert {load["way"] for load in data["loads"]} == {"as served"}
    assert data["speed_ups"] == []
    assert {kind["speed_up"] for kind in data["kinds"]} == {None}
    assert data["prompts"][0]["ratio"] is None
    assert any("one way of decoding only" in note for note in data["notes"])
    assert any("acceptance: not told" in note for note in data["notes"])
    assert data["loads"][0]["acceptance"] is None


def test_fields_of_the_body_switch_a_server() -> None:
    server = Server()
    data = run(remote(server, extra={"lookup": 4}), remote(server, extra={"lookup": 0}))
    assert {load["way"] for load in data["loads"]} == {"off", "on"}
    assert {body["lookup"] for body in server.asked} == {0, 4}
    extra = {way: end["extra_fields"] for way, end in data["record"]["endpoints"].items()}
    assert extra == {"off": {"lookup": 0}, "on": {"lookup": 4}}


OURS = {"owned_by": "neuron-spec", "speculation": True, "num_draft_tokens": 2}


def test_our_own_server_switches_itself_and_tells_acceptance() -> None:
    server = Server(card={**OURS, "verification_rule": "greedy", "backend": "reference"})
    data = run(remote(server))
    by_way = {load["way"]: load for load in data["loads"]}
    assert set(by_way) == {"off", "on"}
    assert {body.get("speculate") for body in server.asked} == {False, None}
    assert by_way["on"]["acceptance"]["num_steps"] == 4
    assert by_way["on"]["acceptance_length"]["value"] == 1 + 6 / 4
    assert by_way["off"]["acceptance_length"] is None
    assert data["kinds"][0]["acceptance"]["num_drafted_tokens"] == 4
    record = data["record"]
    assert (record["rule"]["name"], record["backend"]) == ("greedy", "reference")
    assert (record["target"]["sha256"], record["precision"]) == (NOT_TOLD, NOT_TOLD)


def test_ours_without_the_switch_is_one_way_and_others_are_never_asked_for_it() -> None:
    data = run(remote(Server(card=OURS, refuses=["speculate"])))
    assert {load["way"] for load in data["loads"]} == {"as served"}
    other = Server(card={**OURS, "owned_by": "another"})
    run(remote(other))
    assert not any("speculate" in body for body in other.asked)
    assert not any("include_acceptance" in body["stream_options"] for body in other.asked)


def test_acceptance_from_the_servers_metrics() -> None:
    data = run(remote(Server(has_metrics=True)), remote(Server()))
    by_way = {load["way"]: load for load in data["loads"]}
    assert by_way["off"]["acceptance"] is None
    counts = by_way["on"]["acceptance"]
    assert (counts["num_steps"], counts["num_drafted_tokens"]) == (24, 48)  # of 8 requests
    assert counts["acceptance_rate_by_position"] == [1.0, 0.0]
    length = by_way["on"]["acceptance_length"]
    assert (length["value"], length["low"]) == (2.0, None)
    assert data["kinds"][0]["acceptance"] is None  # of a round, not of a request
    assert "Acceptance by position" in html_report(data)


def test_failures_are_counted_and_not_in_the_figures() -> None:
    server = Server(fails_from=1 + 3 + 11)  # from the second row of the second repetition on
    data = run(remote(server), settings=SETTINGS)
    failed = sum(load["num_failed"] for load in data["loads"])
    assert failed == 1 + 8
    assert sum(load["num_requests"] for load in data["loads"]) == 11
    assert {kind for load in data["loads"] for kind in load["failures"]} == {"status 503"}
    assert any("9 of 20 requests failed" in note for note in data["notes"])
    assert ", 8 failed" in html_report(data) or ", 9 failed" in html_report(data)


def test_rounds_with_failures_give_no_speed_up() -> None:
    data = run(remote(Server(fails_from=4)), remote(Server()))
    assert [entry["throughput"] for entry in data["speed_ups"]] == [None, None]
    assert {prompt["on_tokens_per_s"] for prompt in data["prompts"]} == {None}
    assert "-" in html_report(data)
    with pytest.raises(UserError, match="no request was answered"):
        run(remote(Server(fails_from=4)))


def test_a_server_that_refuses_the_field_is_asked_without_it() -> None:
    server = Server(refuses=["stream_options"])
    with pytest.raises(UserError, match="tells no usage") as caught:
        run(remote(server))
    assert "--tokenizer" in str(caught.value)
    counted = run(remote(server, tokenizer=WordTokenizer()))
    assert counted["loads"][0]["num_output_tokens"] == 24
    assert any("tokenizing its text again" in note for note in counted["notes"])
    ends = counted["record"]["endpoints"]
    assert ends["as served"]["tokens_counted_by"] == "tokenizer"
    # A tokenizer that is not needed counts nothing.
    told = run(remote(Server(), tokenizer=WordTokenizer()))
    assert not any("tokenizing its text again" in note for note in told["notes"])


def test_a_server_that_is_down_is_told_at_once() -> None:
    with pytest.raises(UserError, match="status 503"):
        run(remote(Server(fails_from=0)))


def test_runs_of_endpoints_are_compared_with_what_is_not_told() -> None:
    one, other = run(remote(Server())), run(remote(Server()))
    result = compare_runs(one, other)
    assert result["comparable"]
    assert len(result["loads"]) == 2
    told = " ".join(result["told"])
    assert "target.sha256: not told by an endpoint" in told
    other["record"]["options"] = {"max_new_tokens": 7}
    assert not compare_runs(one, other)["comparable"]
    inside = json.loads(json.dumps(one))
    inside["record"]["measured"] = "in process"
    refused = compare_runs(one, inside)
    assert any("over HTTP" in line for line in refused["forbidding"])


def test_our_own_server_on_a_socket() -> None:
    """Real HTTP, real streams, real usage; drafts are accepted by position."""
    with served.live(served.any_app()) as live:
        named = dict.fromkeys(("off_endpoint", "model", "body", "off_body", "tokenizer"))
        named |= {"endpoint": f"{live.url}/v1", "timeout_s": 10.0}  # type: ignore[dict-item]
        rows = [WorkloadRow("3 4 5", "code"), WorkloadRow("6", "chat")]
        settings = LoadSettings((1, 2), 1, {"max_new_tokens": 12, "temperature": 0})
        data = run_endpoints(open_ways(named, rows[0], settings.options), rows, settings)
    loads = {load["concurrency"]: load for load in data["loads"] if load["way"] != "off"}
    assert set(loads) == {1, 2}
    for concurrency, load in loads.items():
        number = {1: 2, 2: 8}[concurrency]
        assert (load["num_requests"], load["num_output_tokens"]) == (
            number,
            12 * number,
        )
        assert load["acceptance"]["num_drafted_tokens"] > 0
        assert load["tpot_s"]["p50"]["value"] > 0
    assert data["record"]["endpoints"]
    assert html_report(data).startswith("<!doctype html>")


def test_the_models_name_may_follow_the_address(tmp_path: Path) -> None:
    named: dict[str, Any] = dict.fromkeys(("off_endpoint", "model", "off_body", "tokenizer"))
    named |= {"endpoint": "http://127.0.0.1:9/v1#mine", "body": "{}", "timeout_s": 1.0}
    with pytest.raises(UserError, match="cannot be reached") as caught:
        open_ways(named, ROWS[0], {})
    assert "#mine" in str(caught.value)


def test_a_server_that_always_drafts_has_no_off() -> None:
    always = {**OURS, "always_drafts": True}
    server = Server(card=always)
    data = run(remote(server))
    assert {load["way"] for load in data["loads"]} == {"as served"} and data["speed_ups"] == []
    assert not any("speculate" in body for body in server.asked)
    (note,) = (note for note in data["notes"] if note.startswith("one way of decoding only"))
    assert "--off-endpoint" in note and "--off-body" not in note
    for off in (
        remote(server, extra={"speculate": False}),
        remote(Server(card={**always, "speculation": False})),  # served with --no-speculation
    ):
        with pytest.raises(UserError, match="nothing to compare speculation with"):
            run(remote(server), off)
    alone = remote(Server(card={**OURS, "speculation": False}))
    assert {load["way"] for load in run(remote(server), alone)["loads"]} == {"off", "on"}
