"""Brokers' requests to the controller: ControlledShutdown and AlterPartition."""

from __future__ import annotations

import logging
from typing import NamedTuple

from kdist.controller.commands import CommandContext
from kdist.controller.isr_proposals import names_in, proposals_in, response_to, sender_error
from kdist.errors import Error
from kdist.protocol.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kdist.protocol.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)

logger = logging.getLogger(__name__)


class ShutDownBroker(NamedTuple):
    """Move the leaders of a broker that is about to stop. It may not lead or join an ISR again."""

    request: ControlledShutdownRequest

    async def carry_out(self, context: CommandContext) -> ControlledShutdownResponse:
        """STALE_BROKER_EPOCH for the request of an earlier registration, or without an epoch."""
        request, cluster = self.request, context.executor.cluster
        live = cluster.brokers.get(request.broker_id)
        if live is None or request.broker_epoch < live.epoch:
            error = Error.BROKER_NOT_AVAILABLE if live is None else Error.STALE_BROKER_EPOCH
            return ControlledShutdownResponse(error_code=error, remaining_partitions=[])
        cluster.shutting_down[live.id] = live.epoch
        remaining = await context.executor.move_leaders(live.id)
        logger.info("broker %d wants to stop, and still leads %d", live.id, len(remaining))
        return ControlledShutdownResponse(
            error_code=Error.NONE,
            remaining_partitions=[
                RemainingPartition(topic_name=each.topic, partition_index=each.partition)
                for each in remaining
            ],
        )


class AlterPartition(NamedTuple):
    """Write the ISRs that a leader proposes, as far as `isr_proposals.judge` accepts them."""

    request: AlterPartitionRequest

    async def carry_out(self, context: CommandContext) -> AlterPartitionResponse:
        """See `Command`."""
        request, executor = self.request, context.executor
        error = sender_error(request.broker_id, request.broker_epoch, executor.cluster)
        if error is not Error.NONE:
            return AlterPartitionResponse(error_code=error)
        names = names_in(request, executor.cluster)
        await executor.alter_isrs(proposals_in(request, names))
        return response_to(request, names, executor.cluster)
