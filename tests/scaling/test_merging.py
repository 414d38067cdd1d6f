"""Metrics of several replicas as one text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from neuron_spec.metrics.prometheus import ServerMetrics
from neuron_spec.metrics.totals import EngineTotals
from neuron_spec.scaling.merging import merged

Load = tuple[int, int]


def text_of(load: Load, times: list[float]) -> str:
    metrics = ServerMetrics("m", EngineTotals(), lambda: load)
    for time_s in times:
        metrics.observe(queued_s=time_s, ttft_s=time_s, tpot_s=None, total_s=time_s)
    return metrics.render().decode()


def samples_of(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(
        st.text("abc0", min_size=1, max_size=3),
        st.tuples(
            st.tuples(st.integers(0, 9), st.integers(0, 9)),
            st.lists(st.floats(0, 100, allow_nan=False), max_size=4),
        ),
        max_size=4,
    )
)
def test_nothing_is_lost_and_every_sample_says_whose_it_is(
    replicas: dict[str, tuple[Load, list[float]]],
) -> None:
    texts = {name: text_of(load, times) for name, (load, times) in replicas.items()}
    expected = {
        (name, labels | {("replica", replica)}): value
        for replica, text in texts.items()
        for (name, labels), value in samples_of(text).items()
    }
    assert samples_of(merged(texts).decode()) == expected


def test_a_family_stands_once() -> None:
    text = merged({"a": text_of((1, 2), [0.5]), "b": text_of((3, 4), [])}).decode()
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads)) > 10
    samples = samples_of(text)
    running = {dict(labels)["replica"]: value for (name, labels), value in samples.items()
               if name == "vllm:num_requests_running"}  # fmt: skip
    assert running == {"a": pytest.approx(1), "b": pytest.approx(3)}
