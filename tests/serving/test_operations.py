"""Keys, sizes, queues, times, request ids and logs."""

from __future__ import annotations

import errno
import io
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from served import (
    CHAT,
    COMPLETIONS,
    MODEL,
    AnySpeculator,
    TestClient,
    any_app,
    error_of,
    wait_until,
)

from neuron_spec.errors import UserError
from neuron_spec.serving.choices import requests_of
from neuron_spec.serving.logs import JsonFormatter, TextFormatter, log_config
from neuron_spec.serving.settings import ServerSettings, read_api_keys

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "5 6", "max_tokens": 7}
LONG: dict[str, Any] = {**COMPLETION, "ignore_eos": True, "max_tokens": 60}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# Keys


@pytest.mark.parametrize("key", ["first", "ключ"])
def test_any_of_the_keys_opens(key: str) -> None:
    headers = {b"Authorization": f"Bearer {key}".encode()}
    with TestClient(any_app(api_keys=("first", "ключ"))) as client:
        assert client.post(COMPLETIONS, json=COMPLETION, headers=headers).status_code == 200
        assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {}, bearer(""), bearer("firs"), bearer("first2"), bearer("first second"),
        {"Authorization": "first"}, {"Authorization": "Basic first"}, {"X-API-Key": "first"},
    ],
)  # fmt: skip
def test_without_a_key_nothing_of_v1_is_told(headers: dict[str, str]) -> None:
    with TestClient(any_app(api_keys=("first", "second"))) as client:
        for method, path in (("POST", COMPLETIONS), ("GET", "/v1/models"), ("GET", "/v1/nothing")):
            error = error_of(client.request(method, path, headers=headers), 401)
            assert error["code"] == "invalid_api_key"
        assert client.get("/health", headers=headers).status_code == 200
        assert client.get("/metrics", headers=headers).status_code == 200


def test_keys_are_asked_for_below_a_prefix_too() -> None:
    with TestClient(any_app(api_keys=("first",)), root_path="/models/a") as client:
        for path in ("/models/a/v1/models", "/v1/models"):
            error_of(client.get(path), 401)
            assert client.get(path, headers=bearer("first")).status_code == 200
        assert client.get("/models/a/health").status_code == 200


def test_keys_of_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    path.write_text("# of the team\n one \n\ntwo\n")
    monkeypatch.setenv("NEURON_SPEC_API_KEYS", "three, four,")
    assert read_api_keys(path) == ("one", "two")
    assert read_api_keys(None) == ("three", "four")
    monkeypatch.delenv("NEURON_SPEC_API_KEYS")
    assert read_api_keys(None) == ()


def test_keys_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a wrong path would open the server to everybody."""
    path = tmp_path / "keys"
    with pytest.raises(UserError, match="cannot be read"):
        read_api_keys(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read"):
        read_api_keys(path)
    path.write_text("# nothing\n\n")
    with pytest.raises(UserError, match="no API key"):
        read_api_keys(path)
    monkeypatch.setenv("NEURON_SPEC_API_KEYS", " ")
    with pytest.raises(UserError, match="no API key"):
        read_api_keys(None)


def test_keys_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    settings = ServerSettings(api_keys=("s3cret",))
    assert "s3cret" not in repr(settings)
    caplog.set_level(logging.DEBUG)
    with TestClient(any_app(api_keys=("s3cret",))) as client:
        for key in ("s3cret", "wr0ng"):
            client.post(COMPLETIONS, json=COMPLETION, headers=bearer(key))
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    assert "s3cret" not in caplog.text + repr(fields)
    assert "wr0ng" not in repr(fields)


# Sizes, queues, times


def test_a_body_that_is_too_large() -> None:
    with TestClient(any_app(max_body_bytes=1000)) as client:
        assert client.post(COMPLETIONS, json=COMPLETION).status_code == 200
        body = json.dumps({**COMPLETION, "user": "x" * 1000}).encode()
        assert "1000 bytes" in error_of(client.post(COMPLETIONS, content=body), 413)["message"]

        def pieces() -> Any:  # no length is announced
            for start in range(0, len(body), 100):
                yield body[start : start + 100]

        headers = {"content-type": "application/json"}
        response = client.post(COMPLETIONS, content=pieces(), headers=headers)
        assert "1000 bytes" in error_of(response, 413)["message"]
        assert client.post(COMPLETIONS, json=COMPLETION).status_code == 200


def test_who_finds_the_queue_full_is_told_when_to_come_again() -> None:
    speculator = AnySpeculator()
    speculator.go.clear()
    app = any_app(speculator, max_waiting=3)
    with TestClient(app) as client, ThreadPoolExecutor(12) as threads:
        worker = app.state.model.worker
        callers = [threads.submit(client.post, COMPLETIONS, json=LONG) for _ in range(12)]
        wait_until(lambda: sum(caller.done() for caller in callers) == 5)
        assert worker.num_open == 7  # four slots and three that wait
        assert worker.num_running + worker.num_waiting == 7
        messages = [{"role": "user", "content": "5"}]
        response = client.post(CHAT, json={"model": MODEL, "messages": messages})
        error_of(response, 429)
        assert 1 <= int(response.headers["retry-after"]) <= 60
        speculator.go.set()
        responses = [caller.result() for caller in callers]
        wait_until(lambda: worker.num_open == 0)
    statuses = sorted(response.status_code for response in responses)
    assert statuses == [200] * 7 + [429] * 5
    assert all("retry-after" in r.headers for r in responses if r.status_code == 429)


def test_more_than_fits_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuron_spec.serving.model.requests_of", lambda *_: pytest.fail("worked"))
    with TestClient(any_app(max_waiting=3)) as client:
        error = error_of(client.post(COMPLETIONS, json={**COMPLETION, "prompt": ["5"] * 99}), 400)
        assert error["param"] == "prompt"
        error = error_of(client.post(COMPLETIONS, json={**COMPLETION, "n": 99}), 400)
        assert error["param"] == "n"


def test_more_choices_than_can_ever_wait_are_refused_by_name() -> None:
    with TestClient(any_app(max_waiting=3)) as client:
        assert client.post(COMPLETIONS, json={**COMPLETION, "n": 7}).status_code == 200
        assert error_of(client.post(COMPLETIONS, json={**COMPLETION, "n": 8}), 400)["param"] == "n"
        request = {**COMPLETION, "prompt": [[5]] * 8}
        assert error_of(client.post(COMPLETIONS, json=request), 400)["param"] == "prompt"


def test_who_waits_for_a_schema_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def held(wire: Any, session: Any) -> Any:
        if wire.response_format is not None:
            assert go.wait(20)
        return requests_of(wire.model_copy(update={"response_format": None}), session)

    monkeypatch.setattr("neuron_spec.serving.model.requests_of", held)
    held_up = {**COMPLETION, "response_format": {"type": "json_object"}}
    with TestClient(any_app()) as client, ThreadPoolExecutor(40) as threads:
        waiting = [threads.submit(client.post, COMPLETIONS, json=held_up) for _ in range(40)]
        for _ in range(8):
            assert client.post(COMPLETIONS, json=COMPLETION).status_code == 200
        assert not any(one.done() for one in waiting)
        go.set()
        assert {one.result().status_code for one in waiting} == {200}


def test_a_body_that_is_wrong_everywhere_is_told_a_little() -> None:
    many = {f"no{number}{'x' * 5000}": 1 for number in range(100)}
    biases = {str(number): "x" for number in range(1000)}
    with TestClient(any_app()) as client:
        for url in (COMPLETIONS, CHAT):
            error = error_of(client.post(url, json={**many, "logit_bias": biases}), 400)
            assert len(error["message"]) < 10_000
            assert "more" in error["message"].split("; ")[-1]
            error = error_of(client.post(url, json={"model": MODEL, **many}), 400)
            assert len(error["message"]) < 10_000


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long(stream: bool) -> None:
    speculator = AnySpeculator()
    speculator.pause_s = 0.05
    with TestClient(any_app(speculator, request_timeout_s=0.2)) as client:
        start = time.monotonic()
        response = client.post(COMPLETIONS, json={**LONG, "stream": stream})
        assert time.monotonic() - start < 2
        if stream:
            last = json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))
            assert "no answer within 0.2 s" in last["error"]["message"]
        else:
            assert "no answer within 0.2 s" in error_of(response, 504)["message"]
        wait_until(lambda: not speculator.rows)


# Ids and logs


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/nothing", "/health"])
def test_a_request_id_comes_back(path: str) -> None:
    with TestClient(any_app(), raise_server_exceptions=False) as client:
        headers = {"x-request-id": "abc-1"}
        response = client.post(path, json=COMPLETION, headers=headers)
        assert response.headers["x-request-id"] == "abc-1"
        made = {client.post(path, json=COMPLETION).headers["x-request-id"] for _ in range(3)}
        assert len(made) == 3
        for bad in ("", "a b", "x" * 129, "ä"):
            headers = {b"x-request-id": bad.encode()}
            got = client.post(path, json=COMPLETION, headers=headers).headers["x-request-id"]
            assert got not in (bad, "abc-1")


def test_an_error_that_nobody_expected_has_an_id_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = any_app()

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("a secret")

    caplog.set_level(logging.INFO, "neuron_spec.access")
    with TestClient(app, raise_server_exceptions=False) as client:
        response = client.get("/broken", headers={"x-request-id": "r1"})
    assert response.headers["x-request-id"] == "r1"
    (record,) = (r for r in caplog.records if r.name == "neuron_spec.access")
    assert (record.fields["status"], record.fields["request_id"]) == (500, "r1")  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", [False, True])
def test_the_log_tells_what_a_request_came_to(
    caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO, "neuron_spec.access")
    request = {**COMPLETION, "prompt": "7 7 7", "n": 2, "stream": stream}
    with TestClient(any_app()) as client:
        text = client.post(COMPLETIONS, json=request, headers={"x-request-id": "r2"}).text
        client.get("/health")
    (record,) = (r for r in caplog.records if r.name == "neuron_spec.access")
    line = json.loads(JsonFormatter().format(record))
    assert (line["request_id"], line["status"], line["path"]) == ("r2", 200, COMPLETIONS)
    assert (line["prompt_tokens"], line["output_tokens"]) == (3, 14)
    assert line["finish_reasons"] == ["length", "length"]
    assert line["drafted_tokens"] >= line["accepted_tokens"] > 0
    assert line["duration_ms"] >= line["ttft_ms"] >= 0
    assert line["response_id"] in text
    assert "7 7 7" not in json.dumps(line)


def test_lines_of_the_log() -> None:
    record = logging.LogRecord("a", logging.WARNING, "", 1, "said %s", ("x",), None)
    record.fields = {"path": "/é\n"}
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert told["time"].endswith("+00:00")
    assert (told["level"], told["message"], told["path"]) == ("warning", "said x", "/é\n")
    assert TextFormatter("%(message)s").format(record) == "said x path=/é\\n"
    for form in ("json", "text"):
        assert log_config(form)["formatters"]


def test_a_log_that_cannot_be_written_disturbs_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class FullDisk(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    logger = logging.getLogger("neuron_spec.access")
    handler = logging.StreamHandler(FullDisk())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with TestClient(any_app()) as client:
            for _ in range(3):
                assert client.post(COMPLETIONS, json=COMPLETION).status_code == 200
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert "No space left" in capsys.readouterr().err
