"""Groups of metrics in Prometheus's text format, rendered at each scrape.

A broker's `/metrics` is served by an `Exposition`. It runs on the thread that owns the groups, so
that it sees a consistent state; counting needs no copies or locks.
"""

from __future__ import annotations

from typing import Any

from kdist.metrics.declare import Family, M, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """The groups of one process, and their text.

    Owner: the broker, which adds every package's group as it starts.
    """

    def __init__(self) -> None:
        self._families: list[Family[Any]] = []
        self._has_process = False

    def add(self, group: Metrics) -> None:
        """Expose a group that has no labels."""
        alone: Family[Metrics] = Family(type(group))
        alone[()] = group
        self._families.append(alone)

    def add_family(self, family: Family[M]) -> None:
        """Expose all groups that the family has at the time of a scrape."""
        self._families.append(family)

    def add_process(self) -> None:
        """Expose the process's memory, CPU time and descriptors too, under the usual names."""
        self._has_process = True

    def render(self) -> bytes:
        """The text that a scrape gets, of type `CONTENT_TYPE`."""
        from kdist.metrics.text import render  # takes 50 ms

        return render(self._families, has_process=self._has_process)
