"""Many processes' metrics as one text, each sample labelled with its process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

LABEL = "replica"


def merged(texts: Mapping[str, str]) -> bytes:
    """Prometheus texts by replica as one: a family stands once, with everybody's samples."""
    registry = CollectorRegistry()
    registry.register(_Merged(texts))
    return generate_latest(registry)


class _Merged(Collector):
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        """The families in the order of their first appearance."""
        families: dict[str, Metric] = {}
        for replica, text in self._texts.items():
            for found in text_string_to_metric_families(text):
                family = families.setdefault(
                    found.name, Metric(found.name, found.documentation, found.type)
                )
                for sample in found.samples:
                    labels = {**sample.labels, LABEL: replica}
                    family.samples.append(sample._replace(labels=labels))
        yield from families.values()
