"""How a metric is declared: a row in a class body, counted as a plain attribute.

    @metrics
    class StorageMetrics(Metrics):
        PREFIX = "kdist_log_"

        appended_bytes: int = counter("One sentence.")  # kdist_log_appended_bytes_total

    storage.appended_bytes += n     # all that the hot path does

An instance is an object with slots and belongs to one package of one broker; there is no global
registry. `StorageMetrics.TABLE` holds the rows for `exposition.py` and the reference page.
Names are `kdist_<noun>_<state>[_<unit>][_total]`, in Prometheus's base units: the prefix and the
attribute, unless the row has another name.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from kdist.metrics.histogram import SECONDS, Histogram

Type = Literal["counter", "gauge", "histogram"]
Reading = Callable[[], float]


class Metric(NamedTuple):
    """One row: a metric as declared."""

    attribute: str
    name: str
    type: Type
    doc: str


# `init` says to type checkers, and to dataclasses, that a group is made without arguments.
def counter(doc: str, *, name: str = "", init: Literal[False] = False) -> Any:
    """A number that only grows while the broker runs; its name ends in `_total`."""
    return dataclasses.field(default=0, init=init, metadata={"row": (name, "counter", doc)})


def gauge(doc: str, *, name: str = "", init: Literal[False] = False) -> Any:
    """A number that its owner sets."""
    return dataclasses.field(default=0, init=init, metadata={"row": (name, "gauge", doc)})


def reading(doc: str, *, name: str = "", init: Literal[False] = False) -> Any:
    """A gauge that is computed when it is scraped: its owner assigns a `Reading` once.

    Until then it is NaN.
    """
    row = (name, "gauge", doc)
    return dataclasses.field(default=_nothing_yet, init=init, metadata={"row": row})


def histogram(
    doc: str, *, name: str = "", bounds: Sequence[float] = SECONDS, init: Literal[False] = False
) -> Any:
    """A `Histogram` over `bounds`."""
    row = (name, "histogram", doc)
    return dataclasses.field(
        default_factory=lambda: Histogram(bounds), init=init, metadata={"row": row}
    )


class Metrics:
    """The base of every group of metrics."""

    __slots__ = ()
    PREFIX: ClassVar[str] = "kdist_"
    TABLE: ClassVar[tuple[Metric, ...]] = ()


M = TypeVar("M", bound=Metrics)


@typing.dataclass_transform(eq_default=False, field_specifiers=(counter, gauge, reading, histogram))
def metrics(cls: type[M]) -> type[M]:
    """Make the class a group with slots, and its declarations its `TABLE`."""
    made = dataclasses.dataclass(slots=True, eq=False)(cls)
    fields = dataclasses.fields(typing.cast(Any, made))
    rows = []
    for each in fields:
        name, kind, doc = each.metadata["row"]
        derived = f"{cls.PREFIX}{each.name}{'_total' if kind == 'counter' else ''}"
        rows.append(Metric(each.name, name or derived, kind, doc))
    made.TABLE = tuple(rows)
    return made


class Family(dict[tuple[str, ...], M], Generic[M]):
    """A group per combination of labels, created when it is first used.

    `requests = Family(RequestMetrics, "api")`, then `requests["Produce",].handled += 1`. Labels
    come from the protocol or from topics that exist, never from what a peer makes up, so that a
    family stays small.
    """

    def __init__(self, group: type[M], *labels: str) -> None:
        super().__init__()
        self.group = group
        self.labels = labels

    def __missing__(self, key: tuple[str, ...]) -> M:
        assert len(key) == len(self.labels), f"{key} has not the labels {self.labels}"
        made = self[key] = self.group()
        return made


def _nothing_yet() -> float:
    return math.nan
