"""A replica's application and its health, without Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import fleet
import pytest
from served import COMPLETIONS, MODEL, TestClient, any_app, wait_until

from neuron_spec.errors import BackendError, UserError
from neuron_spec.scaling.replica import Replica, ReplicaApp, server_settings
from neuron_spec.scaling.settings import ScaleOut

COMPLETION = {"model": MODEL, "prompt": "5 6", "max_tokens": 7}


def replica_of(told: list[dict[str, Any]] | None = None) -> Replica:
    async def gather() -> list[dict[str, Any]]:
        return told or []

    replica = Replica()
    replica.app = ReplicaApp(any_app(), gather)
    return replica


def told_by(name: str, *, ready: bool) -> dict[str, Any]:
    metrics = "# HELP up Up.\n# TYPE up gauge\nup 1.0\n"
    return {"replica": name, "state": {"ready": ready, "num_running": 1}, "metrics": metrics}


def test_requests_pass_and_the_request_id_is_left_to_the_proxy() -> None:
    plain = any_app()
    with TestClient(plain) as client:
        expected = client.post(COMPLETIONS, json=COMPLETION)
    assert "x-request-id" in expected.headers
    with TestClient(replica_of().app) as client:
        response = client.post(COMPLETIONS, json=COMPLETION)
        assert client.get("/health/ready").json()["status"] == "ok"
    assert response.json()["choices"] == expected.json()["choices"]
    assert "x-request-id" not in response.headers


def test_health_and_metrics_are_those_of_all() -> None:
    told = [told_by("a", ready=False), told_by("b", ready=True)]
    with TestClient(replica_of(told).app) as client:
        health, metrics = client.get("/health"), client.get("/metrics")
    assert health.status_code == 200
    assert health.json() == {
        "status": "ok",
        "replicas": [
            {"replica": "a", "ready": False, "num_running": 1},
            {"replica": "b", "ready": True, "num_running": 1},
        ],
    }
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'up{replica="a"} 1.0\nup{replica="b"} 1.0' in metrics.text


@pytest.mark.parametrize("told", [[], [told_by("a", ready=False)]])
def test_where_no_replica_is_ready_health_says_so(told: list[dict[str, Any]]) -> None:
    with TestClient(replica_of(told).app) as client:
        response = client.get("/health")
    assert response.status_code == 503
    assert response.json()["status"] == "no replica is ready"


def test_a_replica_whose_engine_stopped_fails_its_health_check() -> None:
    replica = replica_of()
    with TestClient(replica.app):
        replica.check_health()
        replica.app.inner.state.model.worker.stop()
        with pytest.raises(BackendError, match="engine stopped"):
            replica.check_health()


def test_a_closed_replica_refuses_and_tells_how_long_none_was_open() -> None:
    replica = replica_of()
    with TestClient(replica.app) as client:
        assert client.post(COMPLETIONS, json=COMPLETION).status_code == 200
        replica.close()
        response = client.post(COMPLETIONS, json=COMPLETION)
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        replica.check_health()  # to drain is not to be broken
        wait_until(lambda: 0 < replica.close() < 60)


# Keys


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEURON_SPEC_API_KEYS", raising=False)


def test_a_replica_without_the_key_that_is_required_does_not_start() -> None:
    with pytest.raises(UserError, match="an API key is required") as caught:
        server_settings(ScaleOut(artifact="/a", requires_api_key=True))
    assert "NEURON_SPEC_API_KEYS" in str(caught.value)
    assert server_settings(ScaleOut(artifact="/a")).api_keys == ()


def test_keys_come_from_the_replicas_own_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NEURON_SPEC_API_KEYS", "one,two")
    assert server_settings(ScaleOut(artifact="/a", requires_api_key=True)).api_keys == (
        "one",
        "two",
    )
    (tmp_path / "keys").write_text("three\n")
    settings = ScaleOut(artifact="/a", requires_api_key=True, api_key_file=str(tmp_path / "keys"))
    assert server_settings(settings).api_keys == ("three",)


def test_limits_reach_the_server() -> None:
    settings = ScaleOut(artifact="/a", max_body_mb=0.5, max_waiting=3, request_timeout_s=9)
    server = server_settings(settings)
    limits = (server.max_body_bytes, server.max_waiting, server.request_timeout_s)
    assert limits == (1 << 19, 3, 9)


def test_a_replica_keeps_pauses_short_as_the_server_does(tmp_path: Path) -> None:
    artifact = fleet.build(tmp_path)
    code = (
        "import gc, sys\n"
        "from neuron_spec.scaling.replica import load_app\n"
        "from neuron_spec.scaling.settings import ScaleOut\n"
        "load_app(ScaleOut(artifact=sys.argv[1], warm_up=False))\n"
        "print(sys.getswitchinterval(), gc.get_freeze_count() > 10_000)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(artifact.directory)],
        check=True, capture_output=True, text=True, timeout=100,
    ).stdout  # fmt: skip
    assert told.split() == ["0.001", "True"]
