"""Prometheus's text format, by its own library: imported at the first scrape, as that takes 50 ms.

That is a sixth of what a broker's imports take in all, and a start waits for those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Shown
from prometheus_client.registry import Collector, CollectorRegistry

from kdist.metrics.declare import Family, Metric


def render(families: Sequence[Family[Any]], *, has_process: bool) -> bytes:
    """All groups of these families, and if wanted what the library tells of the process."""
    registry = CollectorRegistry()
    registry.register(_Shown(families))
    if has_process:
        ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Shown(Collector):
    def __init__(self, families: Sequence[Family[Any]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Shown]:
        """Every metric with its samples."""
        for family in self._families:
            for row in family.group.TABLE:
                yield _shown(row, family)


def _shown(row: Metric, family: Family[Any]) -> Shown:
    if row.type == "histogram":
        return _shown_histogram(row, family)
    made = CounterMetricFamily if row.type == "counter" else GaugeMetricFamily
    shown = made(row.name, row.doc, labels=family.labels)
    for key, group in family.items():
        value = getattr(group, row.attribute)
        shown.add_metric(key, value() if callable(value) else value)
    return shown


def _shown_histogram(row: Metric, family: Family[Any]) -> Shown:
    shown = HistogramMetricFamily(row.name, row.doc, labels=family.labels)
    for key, group in family.items():
        observed = getattr(group, row.attribute)
        buckets = [
            ("+Inf" if bound == inf else str(bound), count) for bound, count in observed.buckets()
        ]
        shown.add_metric(key, buckets, observed.sum)
    return shown
