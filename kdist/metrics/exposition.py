"""Groups of metrics in Prometheus's text format, rendered at each scrape.

A broker's `/metrics` is served by an `Exposition`. It runs on the thread that owns the groups, so
that it sees a consistent state; counting needs no copies or locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Shown
from prometheus_client.registry import Collector, CollectorRegistry

from kdist.metrics.declare import Family, M, Metric, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition(Collector):
    """The groups of one process, and their text.

    Owner: the broker, which adds every package's group as it starts.
    """

    def __init__(self) -> None:
        self._families: list[Family[Any]] = []
        self._others: list[Collector] = []

    def add(self, group: Metrics) -> None:
        """Expose a group that has no labels."""
        alone: Family[Metrics] = Family(type(group))
        alone[()] = group
        self._families.append(alone)

    def add_family(self, family: Family[M]) -> None:
        """Expose all groups that the family has at the time of a scrape."""
        self._families.append(family)

    def add_collector(self, collector: Collector) -> None:
        """Expose another collector's metrics, such as the library's `ProcessCollector`."""
        self._others.append(collector)

    def collect(self) -> Iterator[Shown]:
        """Every metric with its samples, for `prometheus_client`."""
        for family in self._families:
            for row in family.group.TABLE:
                yield _shown(row, family)
        for other in self._others:
            yield from other.collect()

    def render(self) -> bytes:
        """The text that a scrape gets, of type `CONTENT_TYPE`."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)


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
