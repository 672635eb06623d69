"""The result of a verification: findings with a severity, and how much was read (pure)."""

from __future__ import annotations

import dataclasses
import enum
from functools import partialmethod
from typing import NamedTuple


class Severity(enum.StrEnum):
    """How bad a finding is."""

    DAMAGE = "damage"
    """Bytes that are missing or not what was written: `verify` exits with 1."""
    STALE = "stale"
    """Corrected by a broker's next start or next write."""
    NOTE = "note"
    """For information; nothing is wrong."""


class Finding(NamedTuple):
    """One finding. `position` is in bytes, None for a file as a whole."""

    severity: Severity
    path: str
    position: int | None
    reason: str


@dataclasses.dataclass(slots=True)
class Report:
    """Owner: the verification that fills it."""

    path: str
    kind: str
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    """As counted by the batches' headers."""
    bytes: int = 0
    findings: list[Finding] = dataclasses.field(default_factory=list)

    @property
    def is_damaged(self) -> bool:
        return any(finding.severity is Severity.DAMAGE for finding in self.findings)

    def add(self, severity: Severity, path: str, reason: str, position: int | None = None) -> None:
        self.findings.append(Finding(severity, path, position, reason))

    damage = partialmethod(add, Severity.DAMAGE)
    stale = partialmethod(add, Severity.STALE)
    note = partialmethod(add, Severity.NOTE)
