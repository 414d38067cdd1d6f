"""Metrics in Prometheus' form, under vLLM's names where vLLM has one.

Names and buckets are those of vllm-project/vllm `vllm/v1/metrics/loggers.py` and
`vllm/v1/spec_decode/metrics.py`, with its labels `model_name` and `engine`. Where we differ:

    vllm:time_per_output_token_seconds  once a request, the mean over its tokens after the first;
        vLLM observes every interval, and tells the mean as request_time_per_output_token_seconds.
    vllm:request_success_total          `finished_reason` is stop, length or abort.

What vLLM has no name for begins with `neuron_spec:`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from neuron_spec.metrics.totals import EngineTotals

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_LABELS = ("model_name", "engine")
_ENGINE = "0"  # vLLM numbers its engines; here is one
_TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TPOT_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_LATENCY_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort"}


class ServerMetrics:
    """The metrics of one served model, in a registry of their own."""

    def __init__(
        self, model_name: str, totals: EngineTotals, load: Callable[[], tuple[int, int]]
    ) -> None:
        """`load` tells how many requests run and how many wait."""
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector((model_name, _ENGINE), totals, load))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(name, text, _LABELS, registry=self._registry, buckets=buckets)
            labelled: Histogram = family.labels(model_name, _ENGINE)
            return labelled

        self._ttft = histogram(
            "vllm:time_to_first_token_seconds", "Time to first token.", _TTFT_BUCKETS_S
        )
        text = "Mean time per output token after the first, of a request."
        self._tpots = [
            histogram(f"vllm:{name}", text, _TPOT_BUCKETS_S)
            for name in (
                "time_per_output_token_seconds",
                "request_time_per_output_token_seconds",
            )
        ]
        self._total = histogram(
            "vllm:e2e_request_latency_seconds", "Time from arrival to end.", _LATENCY_BUCKETS_S
        )
        self._queued = histogram(
            "vllm:request_queue_time_seconds", "Time without a slot.", _LATENCY_BUCKETS_S
        )

    def observe(
        self, *, queued_s: float, ttft_s: float | None, tpot_s: float | None, total_s: float
    ) -> None:
        """Take in the times of a request that has ended."""
        self._queued.observe(queued_s)
        self._total.observe(total_s)
        if ttft_s is not None:
            self._ttft.observe(ttft_s)
        if tpot_s is not None:
            for histogram in self._tpots:
                histogram.observe(tpot_s)

    def render(self) -> bytes:
        """What `/metrics` answers, of type `CONTENT_TYPE`."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Reads the engine's own counts when somebody asks, so that counting costs the engine nothing
    more."""

    def __init__(
        self,
        labels: tuple[str, str],
        totals: EngineTotals,
        load: Callable[[], tuple[int, int]],
    ) -> None:
        self._labels, self._totals, self._load = labels, totals, load

    def collect(self) -> Iterator[Metric]:
        """All families that are counted elsewhere."""
        yield from self._load_families()
        totals, counts = self._totals, self._totals.acceptance
        drafted_steps = counts.drafted_by_position[0] if counts.drafted_by_position else 0
        for name, text, value in (
            ("vllm:prompt_tokens", "Prompt tokens processed.", totals.num_prompt_tokens),
            ("vllm:prefix_cache_queries", "Tokens of prompts looked up.", totals.num_prompt_tokens),
            ("vllm:prefix_cache_hits", "Tokens found there.", totals.num_cached_tokens),
            ("vllm:generation_tokens", "Output tokens.", totals.num_output_tokens),
            ("vllm:spec_decode_num_drafts", "Steps that verified a draft.", drafted_steps),
            ("vllm:spec_decode_num_draft_tokens", "Drafted tokens.", counts.num_drafted),
            ("vllm:spec_decode_num_accepted_tokens", "Accepted tokens.", counts.num_accepted),
            ("neuron_spec:steps", "Decoding steps, one for each running row.", counts.num_steps),
            ("neuron_spec:request_failures", "Failed requests.", totals.finished["failed"]),
        ):
            family = CounterMetricFamily(name, text, labels=_LABELS)
            family.add_metric(self._labels, value)
            yield family
        finished = {label: totals.finished[reason] for reason, label in _REASONS.items()}
        yield self._by("vllm:request_success", "Ended requests.", "finished_reason", finished)
        yield self._by(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by place in the draft, 0 first.",
            "position",
            dict(enumerate(counts.accepted_by_position)),
        )
        yield self._by(
            "neuron_spec:steps_by_accepted_tokens",
            "Decoding steps by how many drafted tokens they accepted.",
            "accepted",
            dict(enumerate(counts.steps_by_accepted)),
        )

    def _load_families(self) -> Iterator[Metric]:
        for state, number in zip(("running", "waiting"), self._load(), strict=True):
            name = f"vllm:num_requests_{state}"
            family = GaugeMetricFamily(name, f"Requests {state}.", labels=_LABELS)
            family.add_metric(self._labels, number)
            yield family

    def _by(self, name: str, text: str, label: str, values: Mapping[Any, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=(*_LABELS, label))
        for key, value in values.items():
            family.add_metric((*self._labels, str(key)), value)
        return family
