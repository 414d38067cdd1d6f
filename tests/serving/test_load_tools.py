"""A public load generator against the server, unchanged: GuideLLM 0.8.1, in an environment of its
own that `make test-slow` makes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tiny
from served import live

from neuron_spec import compile_model, load_spec, prepare
from neuron_spec.engine import open_session
from neuron_spec.serving.app import create_app

VERSION = "0.8.1"
TOOL = Path(__file__).parents[2] / ".venv-tools" / "bin" / "guidellm"
NUM_REQUESTS, NUM_STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 24, 6, 60, 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TOOL.exists(), reason="no .venv-tools/bin/guidellm: run make test-slow"),
]


def guidellm(folder: Path, url: str, request_format: str, tokenizer: Path) -> dict[str, Any]:
    """The benchmark's record of one run with synthetic prompts."""
    output = folder / "record.json"
    subprocess.run(
        [TOOL, "run",
         "--backend", f"kind=openai_http,target={url},request_format={request_format}",
         "--profile", f"kind=concurrent,streams={NUM_STREAMS}",
         "--constraint", f"kind=max_requests,count={NUM_REQUESTS}",
         "--tokenizer", f"kind=hf_auto,model={tokenizer}",
         "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},"
                   f"output_tokens={OUTPUT_TOKENS}",
         "--output", f"kind=json,path={output}", "--disable-console"],
        check=True, timeout=300, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    (benchmark,) = json.loads(output.read_text(encoding="utf-8"))["benchmarks"]
    return benchmark["metrics"]


@pytest.mark.parametrize("request_format", ["/v1/completions", "/v1/chat/completions"])
def test_guidellm_measures_the_server(tmp_path: Path, request_format: str) -> None:
    said = subprocess.run([TOOL, "--version"], capture_output=True, text=True, check=True).stdout
    assert VERSION in said
    tiny.write_target(tmp_path / "target", max_position_embeddings=512)
    tiny.write_eagle(tmp_path / "eagle", max_position_embeddings=512)
    path = tiny.write_spec(
        tmp_path / "tiny.toml",
        target={"model": "target"},
        draft={"method": "eagle", "model": "eagle", "num_draft_tokens": 3},
        shape={"max_prompt_tokens": 400, "max_total_tokens": 440, "batch_size": 4},
    )
    spec = load_spec(path)
    artifact = compile_model(spec, prepare(spec, tmp_path / "draft"), tmp_path / "artifact")
    with live(create_app(artifact, session=open_session(artifact))) as server:
        metrics = guidellm(tmp_path, server.url, request_format, tmp_path / "target")
    totals = metrics["request_totals"]
    assert (totals["errored"], totals["incomplete"]) == (0, 0)
    # It stops counting when its last request is sent, so that some may be left out.
    assert totals["successful"] >= NUM_REQUESTS - NUM_STREAMS
    outputs = metrics["output_token_count"]["successful"]
    assert (outputs["min"], outputs["max"]) == (OUTPUT_TOKENS, OUTPUT_TOKENS)
