"""Groups of metrics in Prometheus's text format, rendered at each scrape.

A broker's `/metrics` is served by an `Exposition`. It runs on the thread that owns the groups, so
that it sees a consistent state; counting needs no copies or locks. A client's is read on any
thread: each number is true, but two may be a moment apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kdist.metrics.declare import Family, M, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """The groups of one process, and their text.

    Owner: the broker, which adds every package's group as it starts.
    """

    def __init__(self, **labels: str) -> None:
        self._labels = labels  # of every metric, in the text
        self._families: list[Callable[[], Family[Any]]] = []
        self._has_process = False

    def add(self, group: Metrics) -> None:
        """Expose a group that has no labels."""
        alone: Family[Metrics] = Family(type(group))
        alone[()] = group
        self.add_family(alone)

    def add_family(self, family: Family[M]) -> None:
        """Expose all groups that the family has at the time of a scrape."""
        self.add_made(lambda: family)

    def add_made(self, make: Callable[[], Family[Any]]) -> None:
        """Expose a family that is made at each scrape."""
        self._families.append(make)

    def add_process(self) -> None:
        """Expose the process's memory, CPU time and descriptors too, under the usual names."""
        self._has_process = True

    def render(self, *others: Exposition) -> bytes:
        """The text that a scrape gets, of type `CONTENT_TYPE`; that of others in one with it."""
        from kdist.metrics.text import render  # takes 50 ms

        families = [
            (tuple(each._labels.items()), make())
            for each in (self, *others)
            for make in each._families
        ]
        return render(families, has_process=self._has_process)

    def values(self) -> dict[str, float]:
        """Each value under its name in the text, without the labels that all have.

        Of a histogram, the count and the sum.
        """
        return {name: value for make in self._families for name, value in _values(make())}


def _values(family: Family[Any]) -> Iterator[tuple[str, float]]:
    for key, group in list(family.items()):
        pairs = zip(family.labels, key, strict=True)
        shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs)
        labels = f"{{{shown}}}" if shown else ""
        for row in family.group.TABLE:
            value = getattr(group, row.attribute)
            if row.type == "histogram":
                yield f"{row.name}_count{labels}", value.count
                yield f"{row.name}_sum{labels}", value.sum
            else:
                yield f"{row.name}{labels}", value() if callable(value) else value


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
