"""The controller's channel to one broker: one request in flight, retried until it is answered.

A channel belongs to one registration of the broker and is closed with it. Each connection begins
with full requests; after that only changes are sent. Order within a round: LeaderAndIsr, so that a
leader knows that it leads before clients are sent to it; UpdateMetadata; StopReplica.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple, Protocol

from kdist.controller import requests
from kdist.controller.cluster import Cluster, LiveBroker
from kdist.controller.pending import Pending
from kdist.controller.requests import Author
from kdist.errors import ApiError, Error
from kdist.metrics.controller import ControllerMetrics
from kdist.model import TopicPartition
from kdist.runtime.tasks import raise_bug

logger = logging.getLogger(__name__)

BACKOFF_MS_MIN = 50
BACKOFF_MS_MAX = 5_000


class Peer(Protocol):
    """A connection to a broker, as `network.client.Client` is one."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        ...

    async def send(self, request: Any, version: int) -> Any:
        """The response; ApiError (NETWORK_EXCEPTION, REQUEST_TIMED_OUT) if none comes."""
        ...

    def close(self) -> None:
        """Close at once; requests in flight fail with NETWORK_EXCEPTION."""
        ...


Connect = Callable[[str, int], Awaitable[Peer]]
"""Connect to a host and port; ApiError NETWORK_EXCEPTION if nobody answers there."""


class ChannelContext(NamedTuple):
    """What the channels of one reign share."""

    cluster: Cluster
    author: Author
    connect: Connect
    metrics: ControllerMetrics
    stopped: Callable[[LiveBroker, Collection[TopicPartition]], None]  # replicas were deleted
    deposed: Callable[[], None]  # a broker knows a newer controller


class Channel:
    """Owner: the loop; made and closed by the reign."""

    def __init__(self, context: ChannelContext, broker: LiveBroker) -> None:
        self.broker = broker
        self._context = context
        self._peer: Peer | None = None
        self._pending = Pending(is_full=True)
        self._sending: Pending | None = None
        self._wake = asyncio.Event()
        self._wake.set()
        self._task = asyncio.create_task(self._run(), name=f"controller to broker {broker.id}")
        self._task.add_done_callback(raise_bug)

    def tell(self, news: Pending) -> None:
        """Send the changes in the next round."""
        self._pending.add(news)
        self._wake.set()

    def told(self) -> asyncio.Future[None]:
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
            if await self._try_round():
                backoff_ms = BACKOFF_MS_MIN
            else:
                await asyncio.sleep(backoff_ms / 1000)
                backoff_ms = min(2 * backoff_ms, BACKOFF_MS_MAX)

    async def _try_round(self) -> bool:
        """Send all that is pending; False if some of it has to be sent again."""
        try:
            peer = await self._connected()
            return await self._round(peer)
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

    async def _round(self, peer: Peer) -> bool:
        now, self._pending = self._pending, Pending()
        self._sending = now
        self._wake.clear()
        try:
            again = await self._tell_leaders(peer, now)
            await self._tell_metadata(peer, now)
            again.add(await self._stop_replicas(peer, now))
        except ApiError:
            self.tell(now)
            raise
        finally:
            self._sending = None
        if again.is_empty:
            now.release()
            return True
        again.waiters = now.waiters
        self.tell(again)
        return False

    async def _tell_leaders(self, peer: Peer, now: Pending) -> Pending:
        """Send LeaderAndIsr; returns what the broker refused with a retriable error."""
        if not (now.is_full or now.leaders):
            return Pending()
        context = self._context
        request = requests.leader_and_isr(
            context.cluster, context.author, self.broker, now.leaders, now.is_full
        )
        answer = await self._ask(peer, request, requests.LEADER_AND_ISR_VERSION)
        names = {topic.topic_id: topic.topic_name for topic in request.topic_states}
        results = {
            TopicPartition(names[topic.topic_id], each.partition_index): Error.of(each.error_code)
            for topic in answer.topics
            if topic.topic_id in names
            for each in topic.partition_errors
        }
        return Pending(leaders=self._refused("LeaderAndIsr", results))

    async def _tell_metadata(self, peer: Peer, now: Pending) -> None:
        if now.has_metadata:
            context = self._context
            request = requests.update_metadata(
                context.cluster, context.author, self.broker, now.metadata, now.gone, now.is_full
            )
            await self._ask(peer, request, requests.UPDATE_METADATA_VERSION)

    async def _stop_replicas(self, peer: Peer, now: Pending) -> Pending:
        """Send StopReplica, and tell the reign what was deleted; returns as `_tell_leaders`."""
        # Checked only now, when it is sent: the topic may have been re-created since.
        stops = {each for each in now.stops if each.topic in self._context.cluster.doomed}
        if not stops:
            return Pending()
        request = requests.stop_replica(self._context.author, self.broker, stops)
        answer = await self._ask(peer, request, requests.STOP_REPLICA_VERSION)
        results = {
            TopicPartition(each.topic_name, each.partition_index): Error.of(each.error_code)
            for each in answer.partition_errors
        }
        again = self._refused("StopReplica", results)
        deleted = {each for each in stops if results.get(each, Error.NONE) is Error.NONE}
        self._context.stopped(self.broker, deleted)
        return Pending(stops=again)

    async def _ask(self, peer: Peer, request: Any, version: int) -> Any:
        answer = await peer.send(request, version)
        error = Error.of(answer.error_code)
        if error is Error.STALE_CONTROLLER_EPOCH:
            self._context.deposed()
        if error is not Error.NONE:
            raise ApiError(error)
        self._context.metrics.requests += 1
        return answer

    def _refused(self, api: str, results: dict[TopicPartition, Error]) -> set[TopicPartition]:
        """Log every refusal, as nothing else reports it; returns those with a retriable error."""
        refused = {each: error for each, error in results.items() if error is not Error.NONE}
        self._context.metrics.refused_partitions += len(refused)
        for partition, error in refused.items():
            logger.warning(
                "broker %d refused %s for %s: %s", self.broker.id, api, partition, error.name
            )
        return {each for each, error in refused.items() if error.retriable}
