"""The controller's channels to the brokers: to each one request in flight, retried until answered.

A channel belongs to one registration of the broker and is closed with it. Each connection begins
with full requests; after that only changes are sent. Order within a batch: LeaderAndIsr, so that a
leader knows that it leads before clients are sent to it; UpdateMetadata; StopReplica. Where brokers
may be unknown, an UpdateMetadata with nothing but brokers comes first: a Kafka broker silently does
not follow a leader that it has not heard of. A batch that fails is sent again, with whatever came
since, until the broker is gone from ZooKeeper; so no request overtakes an earlier one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, NamedTuple, Protocol

from kdist.controller import requests
from kdist.controller.context import ControllerContext, LiveBroker, Topic
from kdist.controller.requests import ControllerIdAndEpoch
from kdist.errors import ApiError, Error
from kdist.metrics.controller import ControllerMetrics
from kdist.model import TopicPartition
from kdist.protocol.leader_and_isr import LeaderAndIsrRequest
from kdist.protocol.update_metadata import UpdatedTopic
from kdist.runtime.steps import parted
from kdist.runtime.tasks import raise_bug

logger = logging.getLogger(__name__)

BACKOFF_MS_MIN = 50
BACKOFF_MS_MAX = 5_000
SENT_AT_ONCE = 1_000  # partitions; a request of them is made in 5 ms


class Peer(Protocol):
    """A connection to a broker, as `network.client.Client` is one."""

    @property
    def is_closed(self) -> bool: ...

    async def send(self, request: Any, version: int) -> Any:
        """The response; ApiError (NETWORK_EXCEPTION, REQUEST_TIMED_OUT) if none comes."""
        ...

    def close(self) -> None:
        """Close at once; requests in flight fail with NETWORK_EXCEPTION."""
        ...


Connect = Callable[[str, int], Awaitable[Peer]]
"""Connect to a host and port; ApiError NETWORK_EXCEPTION if nobody answers there."""


class ChannelContext(NamedTuple):
    """What the channels of one term share."""

    cluster: ControllerContext
    controller: ControllerIdAndEpoch
    connect: Connect
    metrics: ControllerMetrics
    on_replicas_deleted: Callable[
        [LiveBroker, Collection[TopicPartition]], None
    ]  # replicas were deleted
    on_newer_controller: Callable[[], None]  # a broker knows a newer controller


@dataclasses.dataclass(slots=True)
class BrokerRequestBatch:
    """What a broker has not been sent yet: partitions, without their states.

    The states are looked up when a request is built: if a partition changes several times, only the
    newest is sent, and two batches merge by union. `is_full`: send full requests, with everything
    the broker must know.
    """

    is_full: bool = False
    # By LeaderAndIsr and UpdateMetadata; in dicts, as sets have no order that a seed repeats.
    leaders: dict[TopicPartition, None] = dataclasses.field(default_factory=dict)
    metadata: dict[TopicPartition, None] = dataclasses.field(default_factory=dict)
    deleted: dict[TopicPartition, uuid.UUID] = dataclasses.field(default_factory=dict)
    deletions: set[TopicPartition] = dataclasses.field(default_factory=set)  # by StopReplica
    removals: set[TopicPartition] = dataclasses.field(default_factory=set)  # moved away; likewise
    stops: set[TopicPartition] = dataclasses.field(default_factory=set)  # likewise, log kept
    has_brokers: bool = False  # the set of live brokers has changed
    has_new_brokers: bool = False  # and has members that this broker may not know
    waiters: list[asyncio.Future[None]] = dataclasses.field(default_factory=list)

    @property
    def has_metadata(self) -> bool:
        """Whether an UpdateMetadata is due."""
        return bool(self.is_full or self.metadata or self.deleted or self.has_brokers)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be sent."""
        stops = self.deletions or self.removals or self.stops
        return not (self.leaders or stops or self.has_metadata)

    def add(self, other: BrokerRequestBatch) -> None:
        """Merge `other` in, with its waiters."""
        self.is_full |= other.is_full
        self.leaders |= other.leaders
        self.metadata |= other.metadata
        self.deleted |= other.deleted
        self.deletions |= other.deletions
        self.removals |= other.removals
        self.stops |= other.stops
        self.has_brokers |= other.has_brokers
        self.has_new_brokers |= other.has_new_brokers
        self.waiters += other.waiters

    def release(self) -> None:
        """Complete the waiters: all of it was sent, or the broker is gone."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class BrokerChannel:
    """Owner: the loop; made and closed by the term."""

    def __init__(self, context: ChannelContext, broker: LiveBroker) -> None:
        self.broker = broker
        self._context = context
        self._peer: Peer | None = None
        self._pending = BrokerRequestBatch(is_full=True)
        self._sending: BrokerRequestBatch | None = None
        self._wake = asyncio.Event()
        self._wake.set()
        self._task = asyncio.create_task(self._run(), name=f"controller to broker {broker.id}")
        self._task.add_done_callback(raise_bug)

    def add(self, batch: BrokerRequestBatch) -> None:
        """Send the changes in the next round."""
        if not batch.is_empty:
            self._pending.add(batch)
            self._wake.set()

    def acknowledged(self) -> asyncio.Future[None]:
        """Done once the broker has acknowledged all that is pending now, or is gone."""
        waiter = asyncio.get_running_loop().create_future()
        if not self._pending.is_empty:
            self._pending.waiters.append(waiter)
        elif self._sending is not None:
            self._sending.waiters.append(waiter)
        else:
            waiter.set_result(None)
        return waiter

    def close(self) -> None:
        """Stop at once, whatever is under way."""
        self._task.cancel()
        self._hang_up()
        if self._sending is not None:
            self._sending.release()
        self._pending.release()

    async def _run(self) -> None:
        backoff_ms = BACKOFF_MS_MIN
        while True:
            await self._wake.wait()
            if await self._try_send():
                backoff_ms = BACKOFF_MS_MIN
            else:
                await asyncio.sleep(backoff_ms / 1000)
                backoff_ms = min(2 * backoff_ms, BACKOFF_MS_MAX)

    async def _try_send(self) -> bool:
        """Send all that is pending; False if some of it has to be sent again."""
        try:
            peer = await self._connected()
            return await self._send_batch(peer)
        except ApiError as error:
            logger.warning("request to broker %d failed, will retry: %s", self.broker.id, error)
            self._context.metrics.failed_requests += 1
            self._hang_up()
            return False

    async def _connected(self) -> Peer:
        if self._peer is None or self._peer.is_closed:
            self._pending.is_full = True
            self._peer = await self._context.connect(
                self.broker.address.host, self.broker.address.port
            )
        return self._peer

    def _hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    async def _send_batch(self, peer: Peer) -> bool:
        batch, self._pending = self._pending, BrokerRequestBatch()
        self._sending = batch
        self._wake.clear()
        try:
            refused = await self._send_leaders(peer, batch)
            await self._send_metadata(peer, batch)
            refused.add(await self._send_stop_replica(peer, batch))
        except ApiError:
            self.add(batch)
            raise
        finally:
            self._sending = None
        if refused.is_empty:
            batch.release()
            return True
        refused.waiters = batch.waiters
        self.add(refused)
        return False

    async def _send_leaders(self, peer: Peer, batch: BrokerRequestBatch) -> BrokerRequestBatch:
        """Send LeaderAndIsr, in parts unless it is full; returns what the broker refused."""
        context, refused = self._context, BrokerRequestBatch()
        are_new = batch.is_full or batch.has_new_brokers
        for some in parted(batch.leaders, SENT_AT_ONCE):
            if not (batch.is_full or some):
                break
            # Built before any wait, in which brokers may come.
            request = requests.leader_and_isr(
                context.cluster, context.controller, self.broker, some, batch.is_full
            )
            if are_new or self._pending.has_new_brokers:
                are_new = False
                await self._send_update_metadata(peer, BrokerRequestBatch(has_brokers=True))
            refused.add(await self._send_leader_and_isr(peer, request))
            if batch.is_full:
                break
        return refused

    async def _send_metadata(self, peer: Peer, batch: BrokerRequestBatch) -> None:
        """Send UpdateMetadata, in parts unless it is full: then it is one, made in slices.

        A state that changes meanwhile is sent again, with the next batch.
        """
        if batch.is_full:
            rows: list[UpdatedTopic] = []
            for some in parted(self._context.cluster.sorted_partitions(), SENT_AT_ONCE):
                requests.add_metadata(self._context.cluster, some, rows)
                await asyncio.sleep(0)
            await self._send_update_metadata(peer, batch, rows)
            return
        first = dataclasses.replace(batch, metadata={})
        for some in parted(batch.metadata, SENT_AT_ONCE):
            await self._send_update_metadata(
                peer, dataclasses.replace(first, metadata=dict.fromkeys(some))
            )
            first = BrokerRequestBatch()

    async def _send_leader_and_isr(
        self, peer: Peer, request: LeaderAndIsrRequest
    ) -> BrokerRequestBatch:
        """Send LeaderAndIsr; returns what the broker refused with a retriable error."""
        answer = await self._request(peer, request, requests.LEADER_AND_ISR_VERSION)
        names = {topic.topic_id: topic.topic_name for topic in request.topic_states}
        results = {
            TopicPartition(names[topic.topic_id], each.partition_index): Error.of(each.error_code)
            for topic in answer.topics
            if topic.topic_id in names
            for each in topic.partition_errors
        }
        return BrokerRequestBatch(leaders=self._refused("LeaderAndIsr", results))

    async def _send_update_metadata(
        self, peer: Peer, batch: BrokerRequestBatch, rows: list[UpdatedTopic] | None = None
    ) -> None:
        if batch.has_metadata:
            context = self._context
            request = requests.update_metadata(
                context.cluster,
                context.controller,
                self.broker,
                batch.metadata,
                batch.deleted,
                batch.is_full,
                rows,
            )
            await self._request(peer, request, requests.UPDATE_METADATA_VERSION)

    async def _send_stop_replica(self, peer: Peer, batch: BrokerRequestBatch) -> BrokerRequestBatch:
        """Send StopReplica, and report what was deleted; returns as `_send_leader_and_isr`."""
        # Checked only now, when it is sent: the topic may have been re-created since, or the
        # partition moved back.
        context = self._context
        queued = context.cluster.queued_for_deletion
        deletions = {each for each in batch.deletions if each.topic in queued}
        removals = batch.removals
        if removals:
            removals = removals & {*context.cluster.removed_from(self.broker.id)}
        request = requests.stop_replica(
            context.cluster, context.controller, self.broker, deletions, removals, batch.stops
        )
        if not request.topic_states:
            return BrokerRequestBatch()
        answer = await self._request(peer, request, requests.STOP_REPLICA_VERSION)
        results = {
            TopicPartition(each.topic_name, each.partition_index): Error.of(each.error_code)
            for each in answer.partition_errors
        }
        refused = self._refused("StopReplica", results)
        done = {each for each in deletions | removals if each not in results or not results[each]}
        if done:
            context.on_replicas_deleted(self.broker, done)
        return BrokerRequestBatch(
            deletions=refused.keys() & deletions,
            removals=refused.keys() & removals,
            stops=refused.keys() & batch.stops - deletions - removals,
        )

    async def _request(self, peer: Peer, request: Any, version: int) -> Any:
        answer = await peer.send(request, version)
        error = Error.of(answer.error_code)
        if error is Error.STALE_CONTROLLER_EPOCH:
            self._context.on_newer_controller()
        if error is not Error.NONE:
            raise ApiError(error)
        self._context.metrics.requests += 1
        return answer

    def _refused(
        self, api: str, results: dict[TopicPartition, Error]
    ) -> dict[TopicPartition, None]:
        """Log every refusal, as nothing else reports it; returns those with a retriable error.

        A broker of Apache Kafka refuses a leader epoch that it has already, as it refuses an older
        one, with STALE_CONTROLLER_EPOCH. So it does for nearly all of a full request.
        """
        is_kafkas = not self.broker.registration.is_kdists
        known = Error.STALE_CONTROLLER_EPOCH if is_kafkas else Error.NONE
        refused = {
            each: error for each, error in results.items() if error not in (Error.NONE, known)
        }
        self._context.metrics.refused_partitions += len(refused)
        for partition, error in refused.items():
            logger.warning(
                "broker %d refused %s for %s: %s", self.broker.id, api, partition, error.name
            )
        return dict.fromkeys(each for each, error in refused.items() if error.retriable)


class ControllerChannelManager:
    """Owned by the term. A broker without a channel is sent everything when it gets one."""

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._channels: dict[int, BrokerChannel] = {}

    def add_broker(self, broker: LiveBroker) -> None:
        """A broker registered: send it everything."""
        self._channels[broker.id] = BrokerChannel(self._context, broker)

    def remove_broker(self, broker_id: int) -> None:
        """A broker's registration is gone: send it nothing more."""
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.close()

    def update_all(self) -> None:
        """Send full requests to all, which replace what they were sent before."""
        self._add_to_all(BrokerRequestBatch(is_full=True))

    def update_brokers(self, has_new: bool) -> None:
        """The set of live brokers has changed; `has_new`: some have registered."""
        self._add_to_all(BrokerRequestBatch(has_brokers=True, has_new_brokers=has_new))

    def update_states(self, partitions: Collection[TopicPartition]) -> None:
        """Leaders and ISRs have changed: LeaderAndIsr to the replicas, UpdateMetadata to all."""
        replicas: dict[int, dict[TopicPartition, None]] = {}
        for partition in partitions:
            for replica in self._context.cluster.replicas(partition):
                replicas.setdefault(replica, {})[partition] = None
        for broker_id, channel in self._channels.items():
            led = replicas.get(broker_id, {})
            channel.add(BrokerRequestBatch(leaders=led, metadata=dict.fromkeys(partitions)))

    def update_metadata(self, partitions: Iterable[TopicPartition]) -> None:
        """What clients see of the partitions has changed."""
        self._add_to_all(BrokerRequestBatch(metadata=dict.fromkeys(partitions)))

    def update_deleted_topic(self, topic: Topic) -> None:
        """The topic is being deleted: clients no longer see it."""
        self._add_to_all(BrokerRequestBatch(deleted=dict.fromkeys(topic.partitions, topic.id)))

    def delete(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """Have the broker delete its replicas, if it is alive."""
        if broker_id in self._channels:
            self._channels[broker_id].add(BrokerRequestBatch(deletions=set(partitions)))

    def remove(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """Have the broker delete replicas that were moved away from it, if it is alive."""
        if broker_id in self._channels:
            self._channels[broker_id].add(BrokerRequestBatch(removals=set(partitions)))

    def stop(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """Have the broker fetch no more for its replicas, if it is alive; it keeps their logs."""
        if broker_id in self._channels:
            self._channels[broker_id].add(BrokerRequestBatch(stops=set(partitions)))

    def acknowledged(self) -> list[asyncio.Future[None]]:
        """For each broker a future, done once it has acknowledged all that is pending now."""
        return [channel.acknowledged() for channel in self._channels.values()]

    def close(self) -> None:
        """Send nothing more to anyone."""
        for broker_id in list(self._channels):
            self.remove_broker(broker_id)

    def _add_to_all(self, batch: BrokerRequestBatch) -> None:
        for channel in self._channels.values():
            channel.add(batch)
