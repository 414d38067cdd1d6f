"""Replicas on a real Ray: one is killed under load, one run drains, another is updated."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import fleet
import httpx
import pytest
from fleet import HEADERS, KEY, PROMPTS, Outcome, Program, ask, program
from openai import OpenAI
from served import wait_until

from neuron_spec.artifacts import Artifact

pytest.importorskip("ray", reason="Ray is not installed: pip install 'neuron-spec[ray]'")

NUM_TOKENS, MANY_TOKENS, LONG = 60, 150, 900
"""Of outputs; the long ones are streams that are cut in the middle."""
RETURN_S = 120


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return fleet.build(tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def expected(artifact: Artifact) -> dict[str, str]:
    return fleet.answers(artifact, NUM_TOKENS)


@pytest.fixture(scope="module")
def expected_many(artifact: Artifact) -> dict[str, str]:
    return fleet.answers(artifact, MANY_TOKENS)


@pytest.fixture(scope="module")
def expected_long(artifact: Artifact) -> dict[str, str]:
    return fleet.answers(artifact, LONG)


@pytest.fixture(scope="module")
def two(artifact: Artifact) -> Iterator[Program]:
    """`neuron-spec serve --ray --replicas 2`, ready."""
    code = "from neuron_spec.cli.main import main; main()"
    options = ("--ray", "--replicas", "2", "--port", "0", "--drain-timeout", "120")
    arguments = ("-c", code, "serve", str(artifact.directory), *options)
    with program(*arguments, NEURON_SPEC_API_KEYS=KEY) as running:
        running.wait_for("ready")
        yield running


def health(url: str) -> dict[str, Any]:
    response = httpx.get(f"{url}/health", timeout=30)
    answer: dict[str, Any] = response.json() if response.status_code in (200, 503) else {}
    return answer


def ready_replicas(url: str) -> set[str]:
    return {told["replica"] for told in health(url).get("replicas", []) if told["ready"]}


def check(outcome: Outcome, expected: dict[str, str]) -> None:
    """Right and whole, or seen to have failed: never wrong, never silently short."""
    if outcome.status == 200:
        assert outcome.is_complete
        assert outcome.text == expected[outcome.prompt]
    elif outcome.status is None:
        assert not outcome.is_complete
        assert expected[outcome.prompt].startswith(outcome.text)
    else:
        assert outcome.status in (500, 503), outcome


def test_two_replicas_answer_what_one_session_does(two: Program, expected: dict[str, str]) -> None:
    with ThreadPoolExecutor(8) as clients:
        for stream in (False, True):
            jobs = [clients.submit(ask, two.url, p, NUM_TOKENS, stream=stream) for p in PROMPTS]
            for job in jobs:
                assert job.result().status == 200
                check(job.result(), expected)
    states = health(two.url)["replicas"]
    assert len({state["replica"] for state in states}) == len(two.replicas()) == 2


def test_metrics_add_up_over_the_replicas(two: Program) -> None:
    before = ended_by_replica(two.url)
    for _ in range(6):
        assert ask(two.url, "abc", 5, stream=False).status == 200
    after = ended_by_replica(two.url)
    assert before.keys() == after.keys() == ready_replicas(two.url)
    assert sum(after.values()) - sum(before.values()) == 6


def ended_by_replica(url: str, reason: str = "length") -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    text = httpx.get(f"{url}/metrics", timeout=30).text
    return {
        sample.labels["replica"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "vllm:request_success_total"
        and sample.labels["finished_reason"] == reason
    }


def test_keys_are_asked_for_and_reach_no_log(two: Program) -> None:
    response = httpx.post(f"{two.url}/v1/completions", json=fleet.body_of("abc", 3), timeout=60)
    assert response.status_code == 401
    files = [path for path in two.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 5
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_the_request_id_stands_once(two: Program) -> None:
    headers = {**HEADERS, "X-Request-ID": "mine-1"}
    response = httpx.get(f"{two.url}/v1/models", headers=headers, timeout=60)
    assert response.headers.get_list("x-request-id") == ["mine-1"]


def test_a_client_that_leaves_frees_its_slot(two: Program) -> None:
    before = sum(ended_by_replica(two.url, "abort").values())
    body = fleet.body_of("abc", 190, stream=True)
    url = f"{two.url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=HEADERS, timeout=60) as response:
        next(response.iter_lines())
    wait_until(lambda: sum(ended_by_replica(two.url, "abort").values()) == before + 1, timeout_s=20)


def test_a_replica_killed_under_load(
    two: Program, expected: dict[str, str], expected_long: dict[str, str]
) -> None:
    """No answer is wrong or silently short, what failed is seen, and the replica returns."""
    before = ready_replicas(two.url)
    statuses: Counter[int] = Counter()
    hooks = {"response": [lambda response: statuses.update([response.status_code])]}
    with httpx.Client(event_hooks=hooks, timeout=100) as http:
        client = OpenAI(base_url=f"{two.url}/v1", api_key=KEY, http_client=http, max_retries=5)
        streams, wholes = _load_with_a_kill(two, client)
    for outcome in streams:
        check(outcome, expected_long)
    # All slots were taken by streams: two were cut, and the clients saw it.
    assert any(outcome.status is None and outcome.text for outcome in streams)
    assert any(outcome.status == 200 for outcome in streams)
    for prompt, text in wholes:  # OpenAI's client asks again what was answered with 5xx
        assert text == expected[prompt]
    assert statuses[200] == len(wholes)
    assert statuses.keys() <= {200, 500, 503}

    wait_until(lambda: len(ready_replicas(two.url)) == 2, timeout_s=RETURN_S)
    assert len(ready_replicas(two.url) - before) == 1
    with ThreadPoolExecutor(8) as clients:
        jobs = [clients.submit(ask, two.url, p, NUM_TOKENS, stream=True) for p in PROMPTS]
        assert all(job.result().text == expected[job.result().prompt] for job in jobs)
    assert ended_by_replica(two.url).keys() == ready_replicas(two.url)


def _load_with_a_kill(two: Program, client: OpenAI) -> tuple[list[Outcome], list[tuple[str, str]]]:
    def whole(prompt: str) -> tuple[str, str]:
        options = {"max_tokens": NUM_TOKENS, "temperature": 0, "extra_body": {"ignore_eos": True}}
        answer = client.completions.create(model="tiny", prompt=prompt, **options)
        return prompt, answer.choices[0].text

    is_over = threading.Event()
    with ThreadPoolExecutor(16) as clients:
        streams = _streams_until(is_over, two.url, clients)
        try:
            wait_until(lambda: _all_busy(two.url), timeout_s=60)
            wholes = [clients.submit(whole, prompt) for prompt in PROMPTS]
            os.kill(two.replicas()[0], signal.SIGKILL)
        finally:
            is_over.set()
        outcomes = [outcome for job in streams for outcome in job.result()]
        return outcomes, [job.result() for job in wholes]


def _streams_until(
    is_over: threading.Event, url: str, clients: ThreadPoolExecutor
) -> list[Future[list[Outcome]]]:
    """Take every slot again and again, and leave the proxy free to tell so."""

    def streams_of(prompt: str) -> list[Outcome]:
        outcomes = []
        while not is_over.is_set():
            outcomes.append(ask(url, prompt, LONG, stream=True))
        return outcomes

    return [clients.submit(streams_of, prompt) for prompt in PROMPTS[:6]]


def _all_busy(url: str) -> bool:
    states = health(url).get("replicas", [])
    return len(states) == 2 and all(state["num_running"] == 2 for state in states)


def test_sigterm_lets_what_runs_end_and_leaves_nothing(
    two: Program, expected_many: dict[str, str], expected_long: dict[str, str]
) -> None:
    """The last test of this program: it ends."""
    started, is_over = fleet.below(two.process.pid), threading.Event()
    with ThreadPoolExecutor(100) as clients:
        first = _streams_until(is_over, two.url, clients)
        try:
            wait_until(lambda: _all_busy(two.url), timeout_s=60)
        finally:
            is_over.set()
        later = [  # wait at the proxy
            clients.submit(ask, two.url, prompt, MANY_TOKENS, stream=True)
            for prompt in PROMPTS * 11
        ]
        two.process.terminate()
        two.wait_for("draining")
        refusal = ask(two.url, "abc", 3, stream=False)
        ran, waited = [job.result() for job in first], [job.result() for job in later]
    for outcome in chain(*ran):
        check(outcome, expected_long)
    for outcome in waited:
        check(outcome, expected_many)
    assert [outcomes[-1].status for outcomes in ran].count(200) >= 4  # those that had a slot
    assert {outcome.status for outcome in (*chain(*ran), *waited)} <= {200, 503}
    assert refusal.status == 503
    assert "retry-after" in refusal.headers
    assert two.process.wait(60) == 0
    assert two.output.splitlines()[-1] == "ended"
    end = time.monotonic() + 20
    while [pid for pid in started if "ray" in fleet.command(pid)]:
        assert time.monotonic() < end, "processes are left"
        time.sleep(0.2)


# Updates and full queues

UPDATED = """
import json, sys
from neuron_spec.scaling.ray_serve import application, import_ray
from neuron_spec.serving.server import bind

ray, serve = import_ray()
with bind("127.0.0.1", 0) as listening:
    port = listening.getsockname()[1]
ray.init(address="local", num_cpus=4, include_dashboard=False)
serve.start(http_options={"host": "127.0.0.1", "port": port})
for line in sys.stdin:
    print(f"http://127.0.0.1:{port}", flush=True)
    serve.run(application(json.loads(line)), name="app", route_prefix="/")
    print("deployed", json.loads(line)["model_name"], flush=True)
serve.shutdown()
ray.shutdown()
"""


def deploy(running: Program, artifact: Artifact, name: str, **args: Any) -> None:
    import json

    line = {"artifact": str(artifact.directory), "model_name": "tiny", **args}
    assert running.process.stdin
    print(json.dumps({**line, "model_name": name}), file=running.process.stdin, flush=True)


@pytest.mark.slow
def test_an_update_under_load_drops_no_request(
    artifact: Artifact, expected: dict[str, str], tmp_path: Path
) -> None:
    """Every request is answered by the old artifact or by the new one, at last by the new."""
    other = fleet.build(tmp_path / "second", seed=7)
    new = fleet.answers(other, NUM_TOKENS)
    assert all(new[prompt] != expected[prompt] for prompt in PROMPTS)
    with program("-c", UPDATED) as running:
        deploy(running, artifact, "tiny", replicas=2)
        running.wait_for("deployed tiny")
        is_over = False

        def client(prompt: str) -> list[Outcome]:
            found = []
            while not is_over:
                found.append(ask(running.url, prompt, NUM_TOKENS, stream=len(found) % 2 == 0))
            return found

        with ThreadPoolExecutor(6) as clients:
            jobs = [clients.submit(client, prompt) for prompt in PROMPTS[:6]]
            time.sleep(2)
            deploy(running, other, "tiny", replicas=2, max_waiting=255)
            wait_until(lambda: running.output.count("deployed tiny") == 2, timeout_s=120)
            time.sleep(3)
            is_over = True
            outcomes = [outcome for job in jobs for outcome in job.result()]
        for outcome in outcomes:
            assert outcome.status == 200
            assert outcome.is_complete
            assert outcome.text in (expected[outcome.prompt], new[outcome.prompt])
        by_new = [outcome.text == new[outcome.prompt] for outcome in outcomes]
        assert True in by_new
        assert False in by_new
        assert ask(running.url, "abc", NUM_TOKENS, stream=True).text == new["abc"]


@pytest.mark.slow
def test_a_full_queue_is_told(artifact: Artifact, expected: dict[str, str]) -> None:
    """One replica of two slots takes four; one more waits at the proxy, the rest gets 429."""
    with program("-c", UPDATED) as running:
        deploy(running, artifact, "tiny", max_waiting=1)
        running.wait_for("deployed tiny")
        with ThreadPoolExecutor(16) as clients:
            prompts = PROMPTS * 2
            jobs = [clients.submit(ask, running.url, p, NUM_TOKENS, stream=False) for p in prompts]
            outcomes = [job.result() for job in jobs]
    refused = [outcome for outcome in outcomes if outcome.status == 429]
    assert refused
    assert all(int(outcome.headers["retry-after"]) > 0 for outcome in refused)
    for outcome in outcomes:
        if outcome not in refused:
            check(outcome, expected)
            assert outcome.status == 200
