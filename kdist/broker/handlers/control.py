"""Requests between brokers: from the controller (keys 4 to 6: LeaderAndIsr and the like) and to it.

With ACLs, their sender needs ClusterAction on the cluster. Whether or not there are ACLs they are
taken only where `Admission` says. Without ACLs, anybody who reaches the brokers' listener and knows
the epochs can send them.

Requests from a controller are refused if it was replaced, or they are meant for an earlier
registration of this broker, or come on a connection that the controller has replaced by a newer
one: a request stuck there when the network failed may arrive much later, and would re-create a
topic that was deleted meanwhile. Before this broker has registered they wait: until then nobody can
tell which life of it they are meant for, and on a new disk it would lead what the earlier one led,
and have all followers truncate. LeaderAndIsr first reads the settings of topics new to this broker
(unless this broker's controller wrote them); requests keep their order meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple, TypeVar

from kdist.broker.handlers import Call
from kdist.broker.handlers.init_producer_id import ProducerIds
from kdist.broker.metadata_cache import MetadataCache
from kdist.broker.settings.dynamic import TopicOverrides
from kdist.config.broker_config import BrokerConfig
from kdist.controller.controller import Controller
from kdist.errors import Error
from kdist.model import ANONYMOUS, TopicPartition, topic_name_fault
from kdist.protocol.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from kdist.protocol.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kdist.protocol.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from kdist.protocol.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from kdist.protocol.stop_replica import StopReplicaRequest, StopReplicaResponse
from kdist.protocol.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from kdist.replication.leadership import fence, updates_in
from kdist.replication.replicas import Replicas
from kdist.security.acls import CLUSTER_NAME, Operation, ResourceType
from kdist.zk.errors import ZooKeeperError

logger = logging.getLogger(__name__)

Response = TypeVar("Response")


class Admission(NamedTuple):
    """From when on, and where, brokers' requests are taken: a second door behind their rights.

    On `own` listeners from everybody; with ACLs, on `others`, where peers authenticate, from
    who has ClusterAction. So brokers can move from one listener to another, one after the other.
    """

    registered: asyncio.Event
    own: frozenset[str]
    others: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: BrokerConfig, registered: asyncio.Event) -> Admission:
        former = config.broker.inter_broker_listener_former
        own = {config.inter_broker_listener, *([former.upper()] if former else ())}
        has_acls = config.authorization.authorizer_class_name is not None
        others = {each.name for each in config.listeners.values() if each.authenticates}
        return cls(registered, frozenset(own), frozenset(others - own if has_acls else ()))

    def lists(self, listener: str) -> bool:
        """Whether a broker that connects there is told of these APIs."""
        return listener in self.own or listener in self.others

    def takes(self, call: Call) -> bool:
        subject = call.connection.subject
        return call.listener in self.own or (
            call.listener in self.others
            and subject.principal != ANONYMOUS
            and subject.is_granted(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        )


class ControlHandler:
    """Owner: the broker. `updated` is called after each UpdateMetadata, with deleted partitions."""

    def __init__(
        self,
        replicas: Replicas,
        cache: MetadataCache,
        overrides: TopicOverrides,
        controller: Controller,
        producer_ids: ProducerIds,
        admission: Admission,
        updated: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        self._replicas = replicas
        self._cache = cache
        self._overrides = overrides
        self._controller = controller
        self._producer_ids = producer_ids
        self.admission = admission
        self._updated = updated
        self._in_order = asyncio.Lock()
        self._line = (0, 0)  # controller epoch and connection number of the newest request

    async def leader_and_isr(
        self, request: LeaderAndIsrRequest, call: Call
    ) -> LeaderAndIsrResponse:
        """LeaderAndIsr. NETWORK_EXCEPTION if topics' settings cannot be read from ZooKeeper."""
        if error := await self._fence(request, call):
            return LeaderAndIsrResponse(error_code=error)
        async with self._in_order:
            try:
                # An invalid topic name has no settings; `apply_leader_and_isr` refuses it.
                topic_ids = {
                    each.key.topic: each.topic_id
                    for each in updates_in(request)
                    if topic_name_fault(each.key.topic) is None
                }
                await self._overrides.load_new(topic_ids)
            except ZooKeeperError as error:
                logger.warning("LeaderAndIsr is refused, settings cannot be read: %s", error)
                return LeaderAndIsrResponse(error_code=Error.NETWORK_EXCEPTION)
            apply = self._replicas.apply_leader_and_isr
            return await _carried_out(partial(apply, request, call.version))

    async def stop_replica(self, request: StopReplicaRequest, call: Call) -> StopReplicaResponse:
        """StopReplica: stop hosting partitions."""
        if error := await self._fence(request, call):
            return StopReplicaResponse(error_code=error, partition_errors=[])
        async with self._in_order:
            return await _carried_out(partial(self._replicas.apply_stop_replica, request))

    async def update_metadata(
        self, request: UpdateMetadataRequest, call: Call
    ) -> UpdateMetadataResponse:
        """UpdateMetadata: update the metadata cache."""
        if error := await self._fence(request, call):
            return UpdateMetadataResponse(error_code=error)
        self._replicas.controller_epoch = request.controller_epoch
        gone = self._cache.update(request)
        self._updated(gone)
        if gone:
            self._overrides.forget({each.topic for each in gone} - self._cache.topics.keys())
        return UpdateMetadataResponse(error_code=Error.NONE)

    async def controlled_shutdown(
        self, request: ControlledShutdownRequest, call: Call
    ) -> ControlledShutdownResponse:
        """ControlledShutdown: a broker is about to stop; the controller moves its leaders."""
        if error := self._refuse_listener(call):
            return ControlledShutdownResponse(error_code=error, remaining_partitions=[])
        return await self._controller.controlled_shutdown(request)

    async def alter_partition(
        self, request: AlterPartitionRequest, call: Call
    ) -> AlterPartitionResponse:
        """AlterPartition: a leader proposes ISRs to the controller."""
        if error := self._refuse_listener(call):
            return AlterPartitionResponse(error_code=error)
        return await self._controller.alter_partition(request)

    async def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest, call: Call
    ) -> AllocateProducerIdsResponse:
        """AllocateProducerIds: a broker wants a block of producer ids from the controller."""
        error = self._refuse_listener(call) or self._controller.check_registration(
            request.broker_id, request.broker_epoch
        )
        if error:
            return AllocateProducerIdsResponse(error_code=error)
        return await self._producer_ids.allocate(request.broker_id)

    async def _fence(
        self, request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest, call: Call
    ) -> Error:
        """Why a request is refused. NETWORK_EXCEPTION: the controller has a newer connection."""
        replicas = self._replicas
        if error := self._refuse_listener(call):
            return error
        await self.admission.registered.wait()
        if error := fence(request, replicas.controller_epoch, replicas.broker_epoch):
            return error
        line = (request.controller_epoch, call.connection.number)
        if line < self._line:
            logger.warning("a late request of the controller is refused: %s", call.connection.peer)
            return Error.NETWORK_EXCEPTION
        self._line = line
        return Error.NONE

    def _refuse_listener(self, call: Call) -> Error:
        return Error.NONE if self.admission.takes(call) else Error.CLUSTER_AUTHORIZATION_FAILED


async def _carried_out(order: Callable[[Callable[[Response], None]], None]) -> Response:
    """Carry out `order` and return its response."""
    answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def reply(response: Response) -> None:
        if not answer.done():  # cancelled if the broker is stopping
            answer.set_result(response)

    order(reply)
    return await answer
