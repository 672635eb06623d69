"""LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown (keys 4 to 7): the controller's.

Brokers speak on the inter-broker listener, so these are refused on any other: with a listener of
their own behind a firewall, clients cannot give orders. With one for all, until there are ACLs,
whoever reaches the port and knows the epochs can.

Requests of a controller that was replaced, or that mean an earlier registration of this broker, are
refused. So are those on a connection that the controller has left for another: what was under way
on it when the network failed may come much later, and would make a topic that is deleted by now.
LeaderAndIsr first reads the settings of topics that are new here, unless this broker wrote them, so
that their logs begin with them; requests keep their order meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from kdist.broker.dispatch import Call
from kdist.broker.metadata_cache import MetadataCache
from kdist.broker.topic_settings import TopicOverrides
from kdist.controller.controller import Controller
from kdist.errors import Error
from kdist.model import TopicPartition, topic_name_fault
from kdist.protocol.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from kdist.protocol.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from kdist.protocol.stop_replica import StopReplicaRequest, StopReplicaResponse
from kdist.protocol.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from kdist.replication.leadership import fence, told_in
from kdist.replication.replicas import Replicas
from kdist.zk.errors import ZooKeeperError

logger = logging.getLogger(__name__)

Response = TypeVar("Response")


class ControlHandler:
    """Owner: the broker. `updated` hears of each update, with the partitions that are gone."""

    def __init__(
        self,
        replicas: Replicas,
        cache: MetadataCache,
        overrides: TopicOverrides,
        controller: Controller,
        updated: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        self._replicas = replicas
        self._cache = cache
        self._overrides = overrides
        self._controller = controller
        self._updated = updated
        self._in_order = asyncio.Lock()
        self._line = (0, 0)  # controller epoch, number of the connection that orders come by

    async def lead(self, request: LeaderAndIsrRequest, call: Call) -> LeaderAndIsrResponse:
        """Lead or follow partitions. NETWORK_EXCEPTION: ZooKeeper did not say their settings."""
        if error := self._fence(request, call):
            return LeaderAndIsrResponse(error_code=error)
        async with self._in_order:
            try:
                # A name that is no topic's has no settings; it is refused for itself below.
                told = {
                    each.key.topic: each.topic_id
                    for each in told_in(request)
                    if topic_name_fault(each.key.topic) is None
                }
                await self._overrides.load_new(told)
            except ZooKeeperError as error:
                logger.warning("an order of the controller has to wait: %s", error)
                return LeaderAndIsrResponse(error_code=Error.NETWORK_EXCEPTION)
            apply = self._replicas.apply_leader_and_isr
            return await _carried_out(partial(apply, request, call.version))

    async def stop(self, request: StopReplicaRequest, call: Call) -> StopReplicaResponse:
        """Host partitions no more."""
        if error := self._fence(request, call):
            return StopReplicaResponse(error_code=error, partition_errors=[])
        async with self._in_order:
            return await _carried_out(partial(self._replicas.apply_stop_replica, request))

    async def learn(self, request: UpdateMetadataRequest, call: Call) -> UpdateMetadataResponse:
        """Take the state of the cluster in."""
        if error := self._fence(request, call):
            return UpdateMetadataResponse(error_code=error)
        self._replicas.controller_epoch = request.controller_epoch
        gone = self._cache.update(request)
        self._updated(gone)
        self._overrides.forget({each.topic for each in gone} - self._cache.topics.keys())
        return UpdateMetadataResponse(error_code=Error.NONE)

    async def let_go(
        self, request: ControlledShutdownRequest, listener: str
    ) -> ControlledShutdownResponse:
        """A broker is about to stop: it may, as no other has the partitions that it leads.

        STALE_BROKER_EPOCH for an earlier registration's request, and for one without an epoch, as
        `fence` has it.
        """
        error = self._bar(listener) or self._shutdown_fault(request)
        return ControlledShutdownResponse(error_code=error, remaining_partitions=[])

    def _shutdown_fault(self, request: ControlledShutdownRequest) -> Error:
        if not self._controller.is_active:
            return Error.NOT_CONTROLLER
        epoch = self._controller.broker_epoch(request.broker_id)
        if epoch is None:
            return Error.BROKER_NOT_AVAILABLE
        return Error.STALE_BROKER_EPOCH if request.broker_epoch < epoch else Error.NONE

    def _fence(
        self, request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest, call: Call
    ) -> Error:
        """Why an order is not taken. NETWORK_EXCEPTION: its connection was left for another."""
        replicas = self._replicas
        error = self._bar(call.listener) or fence(
            request, replicas.controller_epoch, replicas.broker_epoch
        )
        if error:
            return error
        line = (request.controller_epoch, call.connection.number)
        if line < self._line:
            logger.warning("an order that comes late, by %s, is refused", call.connection.peer)
            return Error.NETWORK_EXCEPTION
        self._line = line
        return Error.NONE

    def _bar(self, listener: str) -> Error:
        is_brokers = listener == self._controller.listener
        return Error.NONE if is_brokers else Error.CLUSTER_AUTHORIZATION_FAILED


async def _carried_out(order: Callable[[Callable[[Response], None]], None]) -> Response:
    """What the order is answered with, once it is carried out."""
    answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def reply(response: Response) -> None:
        if not answer.done():  # else the broker stops
            answer.set_result(response)

    order(reply)
    return await answer
