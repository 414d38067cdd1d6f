"""Prompts that begin as an earlier one did: told to the caller, counted, and answered the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tiny
from served import TestClient

from neuron_spec import compile_model, load_spec, prepare
from neuron_spec.artifacts import Artifact
from neuron_spec.backends.reference.speculator import PREFILL_CHUNK_TOKENS
from neuron_spec.engine import open_session
from neuron_spec.serving.app import create_app

COMPLETIONS = "/v1/completions"
SYSTEM = "a system prompt that all requests share " * 8  # a byte is a token
REQUEST: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("prefixes")
    tiny.write_target(folder / "target", max_position_embeddings=512)
    tiny.write_eagle(folder / "eagle", max_position_embeddings=512)
    path = tiny.write_spec(
        folder / "tiny.toml",
        target={"model": "target"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
        shape={"max_prompt_tokens": 400, "max_total_tokens": 440, "batch_size": 2},
    )
    spec = load_spec(path)
    return compile_model(spec, prepare(spec, folder / "draft"), folder / "artifact")


@pytest.fixture(params=[0, 1 << 26])
def client(artifact: Artifact, request: pytest.FixtureRequest) -> Iterator[tuple[TestClient, bool]]:
    session = open_session(artifact)
    session.cache_prefixes(request.param)
    with TestClient(create_app(artifact, session=session)) as client:
        yield client, request.param > 0


def test_a_shared_beginning_is_run_once(
    client: tuple[TestClient, bool], artifact: Artifact
) -> None:
    http, is_kept = client
    num_shared = len(SYSTEM) // PREFILL_CHUNK_TOKENS * PREFILL_CHUNK_TOKENS
    assert num_shared > 0
    prompts = [SYSTEM + question for question in ("first?", "second?", "first?")]
    bodies = [
        http.post(COMPLETIONS, json={**REQUEST, "prompt": prompt}).json() for prompt in prompts
    ]
    told = [body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in bodies]
    assert told == [0, num_shared * is_kept, num_shared * is_kept]
    solo = open_session(artifact)
    for prompt, body in zip(prompts, bodies, strict=True):
        expected = solo.generate(prompt, max_new_tokens=12, ignore_eos=True).text
        assert body["choices"][0]["text"] == expected
    lines = dict(
        line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if line[0] != "#"
    )
    queries, hits = (
        float(lines[f'vllm:prefix_cache_{name}_total{{engine="0",model_name="tiny"}}'])
        for name in ("queries", "hits")
    )
    assert queries == sum(map(len, prompts))
    assert hits == 2 * num_shared * is_kept


def test_choices_of_one_prompt_count_it_once(client: tuple[TestClient, bool]) -> None:
    http, is_kept = client
    request = {**REQUEST, "prompt": [SYSTEM + "a", SYSTEM + "b"], "n": 2}
    num_shared = len(SYSTEM) // PREFILL_CHUNK_TOKENS * PREFILL_CHUNK_TOKENS
    usage = http.post(COMPLETIONS, json=request).json()["usage"]
    assert usage["prompt_tokens"] == 2 * len(SYSTEM) + 2
    # The first choice of the first prompt runs it, that of the second finds it.
    assert usage["prompt_tokens_details"]["cached_tokens"] == num_shared * is_kept
