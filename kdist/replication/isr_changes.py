"""Says which ISRs have changed: each in a line, or all of one tick in one line when they are many.

A broker that comes back joins the ISRs of thousands of partitions, within a few answers.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from kdist.metrics.replication import ReplicationMetrics
from kdist.model import TopicPartition
from kdist.runtime.tasks import Tasks
from kdist.storage.names import some_of

logger = logging.getLogger(__name__)

TOLD_EACH_MAX = 3  # as many changes in one tick are told one by one


class IsrChange(NamedTuple):
    """A partition's ISR as it is, and as it was."""

    key: TopicPartition
    isr: tuple[int, ...]
    before: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.key} {list(self.isr)}"


class IsrChanges:
    """Owner: `Replicas`. Counts the changes, too."""

    def __init__(self, tasks: Tasks, metrics: ReplicationMetrics) -> None:
        self._tasks = tasks
        self._metrics = metrics
        self._noted: list[IsrChange] = []

    def note(self, change: IsrChange) -> None:
        """Have it told when this tick ends, unless the ISR has as many members as before."""
        added = len(change.isr) - len(change.before)
        self._metrics.isr_shrinks += added < 0
        self._metrics.isr_expands += added > 0
        if added:
            if not self._noted:
                self._tasks.call_soon(self._tell)
            self._noted.append(change)

    def _tell(self) -> None:
        noted, self._noted = self._noted, []
        shrunk = [each for each in noted if len(each.isr) < len(each.before)]
        grown = [each for each in noted if len(each.isr) > len(each.before)]
        for level, what, changes in (
            (logging.WARNING, "smaller", shrunk),
            (logging.INFO, "larger", grown),
        ):
            if len(changes) > TOLD_EACH_MAX:
                logger.log(level, "%d ISRs are %s now: %s", len(changes), what, some_of(changes))
                continue
            for key, isr, before in changes:
                logger.log(level, "%s: the ISR is %s, was %s", key, list(isr), list(before))
