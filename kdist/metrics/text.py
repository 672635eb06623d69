"""Prometheus's text format, by its own library: imported at the first scrape, as that takes 50 ms.

That is a sixth of what a broker's imports take in all, and a start waits for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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

Labels = Sequence[tuple[str, str]]
Labelled = tuple[Labels, Family[Any]]  # the labels of all that is in the family, and the family


def render(families: Sequence[Labelled], *, has_process: bool) -> bytes:
    """All groups of these families, and if wanted what the library tells of the process."""
    registry = CollectorRegistry()
    registry.register(_Shown(families))
    if has_process:
        ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Shown(Collector):
    def __init__(self, families: Sequence[Labelled]) -> None:
        self._families = families

    def collect(self) -> Iterator[Shown]:
        """Every metric once, with the samples of all families that have it."""
        alike: dict[type[Any], list[Labelled]] = {}
        for each in self._families:
            alike.setdefault(each[1].group, []).append(each)
        for group, families in alike.items():
            for row in group.TABLE:
                yield _shown(row, families)


def _shown(row: Metric, families: Sequence[Labelled]) -> Shown:
    shared, first = families[0]
    names = [*(name for name, _ in shared), *first.labels]
    if row.type == "histogram":
        shown = HistogramMetricFamily(row.name, row.doc, labels=names)
        for key, observed in _values(row, families):
            buckets = [
                ("+Inf" if bound == inf else str(bound), count)
                for bound, count in observed.buckets()
            ]
            shown.add_metric(key, buckets, observed.sum)
        return shown
    made = CounterMetricFamily if row.type == "counter" else GaugeMetricFamily
    numbers = made(row.name, row.doc, labels=names)
    for key, value in _values(row, families):
        numbers.add_metric(key, value() if callable(value) else value)
    return numbers


def _values(row: Metric, families: Iterable[Labelled]) -> Iterator[tuple[list[str], Any]]:
    for shared, family in families:
        for key, group in list(family.items()):
            yield [*(value for _, value in shared), *key], getattr(group, row.attribute)
