"""What the controller is asked about moves of partitions: to begin, cancel and list them.

A client asks by AlterPartitionReassignments (KIP-455), an old tool by writing
`/admin/reassign_partitions`, whose entries are removed as they are done with, and the znode with
the last. Whoever asked last about a partition is obeyed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kdist.controller.commands import CommandContext
from kdist.controller.context import Assigned
from kdist.controller.reassignments import Step, Steps, Target, plan_begin, plan_cancel
from kdist.errors import ApiError
from kdist.model import TopicPartition

logger = logging.getLogger(__name__)

Moved = dict[TopicPartition, ApiError | None]
"""Each partition's error; None if it is moved, or no longer."""


class AlterReassignments(NamedTuple):
    """Begin to move these partitions, or cancel their moves: None for a target.

    If a term ends before it answers, the next one carries the command out again. `cancelled` are
    those whose moves the first try may have cancelled.
    """

    targets: Mapping[TopicPartition, Target | None]
    cancelled: set[TopicPartition]

    async def carry_out(self, context: CommandContext) -> Moved:
        """Written once this returns; the moves themselves take as long as they take."""
        executor = context.executor
        steps: Steps = {}
        outcomes: Moved = {}
        for partition, target in self.targets.items():
            try:
                step = self._plan(partition, target, context)
            except ApiError as error:
                outcomes[partition] = error
                continue
            outcomes[partition] = None
            if step is not None:
                steps[partition] = step
        await executor.move(steps)
        await executor.complete_moves(steps)
        await executor.settle_reassignment()
        return outcomes

    def _plan(
        self, partition: TopicPartition, target: Target | None, context: CommandContext
    ) -> Step | None:
        cluster, epoch = context.executor.cluster, context.executor.controller_epoch
        if target is not None:
            return plan_begin(cluster, partition, target, epoch)
        if partition in self.cancelled and not cluster.is_moving(partition):
            return None
        step = plan_cancel(cluster, partition, epoch)
        self.cancelled.add(partition)
        return step


class ListReassignments(NamedTuple):
    """The moves under way, of these partitions or of all."""

    partitions: Sequence[TopicPartition] | None

    async def carry_out(self, context: CommandContext) -> dict[TopicPartition, Assigned]:
        cluster = context.executor.cluster
        asked = None if self.partitions is None else {*self.partitions}
        return {
            each: cluster.topics[each.topic].assigned(each.partition)
            for each in cluster.moving()
            if asked is None or each in asked
        }
