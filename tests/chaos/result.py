"""What a run is to do, and what it found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.availability import Occurrence, Outage
from tests.chaos.checker import Anomaly
from tests.chaos.pace import Paces


@dataclass(frozen=True)
class Plan:
    """What a run does; `seconds` is for how long faults begin.

    `is_flushed`: brokers tell of records once they are on disk (kdist's `log.flush.before.expose`).
    `grows`: two more brokers join and leave, and partitions move, all the while.
    """

    seed: int
    seconds: float
    directory: Path
    kind: str
    only: list[str] | None = None
    is_short: bool = False
    is_flushed: bool = False
    grows: bool = False


@dataclass
class Result:
    """What a run found."""

    plan: Plan
    faults: list[Occurrence] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    anomalies: list[Anomaly] = field(default_factory=list)
    renumbered: int = 0
    paces: Paces | None = None
    moved: Counter[str] = field(default_factory=Counter)
    """How plans of moves were carried out, and how often the cluster grew and shrank."""
