"""The server against its own OpenAPI document, by schemathesis: 1,000 bodies, right and wrong ones,
none of which it may fail on or answer otherwise than the document says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from served import CHAT, COMPLETIONS, AnySpeculator, any_app, live, wait_until

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
BODIES = 250  # of each kind for each endpoint
STATES = ["/v1/models", "/v1/models/{name}", "/health", "/health/live", "/health/ready", "/metrics"]


@pytest.fixture(scope="module")
def document() -> Iterator[Any]:
    speculator = AnySpeculator()
    with live(any_app(speculator)) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        wait_until(lambda: not speculator.rows)  # no slot was lost


def probe(document: Any, path: str, method: str, mode: GenerationMode, count: int) -> Counter[int]:
    """How often each status came back."""
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(document[path][method].as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        response = case.call()
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    run()
    return statuses


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_answers_are_as_the_document_says(document: Any, path: str, mode: GenerationMode) -> None:
    statuses = probe(document, path, "POST", mode, BODIES)
    assert sum(statuses.values()) >= BODIES
    if mode is GenerationMode.NEGATIVE:
        assert statuses[400] > BODIES / 2


@pytest.mark.parametrize("path", STATES)
def test_state_is_as_the_document_says(document: Any, path: str) -> None:
    assert probe(document, path, "GET", GenerationMode.POSITIVE, 10)


def test_the_document_names_every_route(document: Any) -> None:
    assert set(document.raw_schema["paths"]) == {COMPLETIONS, CHAT, *STATES}
