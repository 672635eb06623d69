"""The connector: an application's consumer of a group that lives in ZooKeeper.

    with create({"zookeeper.connect": "localhost:2181", "group.id": "reports"}) as connector:
        streams = connector.create_message_streams({"clicks": 2})["clicks"]

Each stream is for one thread. Group membership and fetching run in a background thread.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from kdist.classic.connector.feed import Feed
from kdist.classic.connector.rebalancing import ConsumerRebalanceListener, Rebalancer, Tell
from kdist.classic.connector.registry import Registry
from kdist.classic.connector.settings import ConnectorSettings, read_settings
from kdist.classic.connector.stream import Stream, Streams
from kdist.classic.connector.subscription import Filtered, Subscription, TopicFilter, Topics
from kdist.client.background import BackgroundLoop
from kdist.client.cluster import Address
from kdist.client.coding import Coder, Decoder
from kdist.client.consumer import settings as consumer_settings
from kdist.client.consumer.aio import Consumer, call_back
from kdist.client.consumer.arguments import check_listener
from kdist.client.consumer.core import Core
from kdist.client.consumer.settings import checked_decoders
from kdist.client.security import security_of
from kdist.config.addresses import ConnectString
from kdist.errors import UserError
from kdist.network.network import AsyncioNetwork, Network
from kdist.runtime.clock import SystemClock
from kdist.runtime.process import system_rng
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import ConnectionLoss
from kdist.zk.kazoo_client import KazooZooKeeper
from kdist.zk.values import ConsumerRegistration

T = TypeVar("T")

ZOOKEEPER_VARIABLE, GROUP_VARIABLE = "KDIST_ZOOKEEPER", "KDIST_GROUP"
DEFAULT_ZOOKEEPER, DEFAULT_GROUP = "localhost:2181", "kdist"


class ConnectorContext(NamedTuple):
    """The outside world of a connector. `zk` is connected, and `Joined.close` closes it."""

    network: Network
    zk: ZooKeeper
    rng: random.Random
    now_ms: Callable[[], int]
    host: str
    tell: Tell


def make_consumer_id(settings: ConnectorSettings, context: ConnectorContext) -> str:
    """The id of a consumer in its group, as in 0.8: group, host, time, random number."""
    own = settings.consumer_id
    if own is None:
        own = f"{context.host}-{context.now_ms()}-{context.rng.getrandbits(32):08x}"
    return f"{settings.group_id}_{own}"


class Joined:
    """A consumer in its group. Owner: the loop. Call `start` first, and `close` when done."""

    def __init__(
        self,
        context: ConnectorContext,
        settings: ConnectorSettings,
        subscription: Subscription,
        decoders: tuple[Coder | None, Coder | None],
        listener: ConsumerRebalanceListener | None,
    ) -> None:
        self.id = make_consumer_id(settings, context)
        self._zk = context.zk
        loop = asyncio.get_running_loop()
        bootstrap: list[Address] = []  # filled by the feed
        feeding, rng = _feeding(settings), context.rng
        self._consumer = Consumer.over(
            Core(context.network, bootstrap, feeding, rng, decoders, call_back)
        )

        def feed_again(stream: Stream) -> None:
            loop.call_soon_threadsafe(feed.resume, stream)

        self.streams = Streams(self.id, subscription, settings, feed_again)
        is_smallest = settings.reset_to == "earliest"
        feed = Feed(self._consumer, bootstrap, self.streams, reset_to_start=is_smallest)
        registry = Registry(
            context.zk,
            settings.group_id,
            self.id,
            ConsumerRegistration(
                subscription.counts, subscription.pattern, context.now_ms(), goes_by_broker=True
            ),
            lambda: self.rebalancer.look(),
            exclude_internal=settings.exclude_internal_topics,
            protocol=settings.security_protocol,
        )
        self.rebalancer = Rebalancer(
            context.zk, registry, settings, self.streams, feed, context.tell, listener
        )

    async def start(self) -> None:
        """Join the group; returns once the first rebalance has claimed what is free."""
        await self.rebalancer.start()

    async def close(self) -> None:
        self.streams.stop()
        try:
            await self.rebalancer.close()
        finally:
            await self._consumer.close()
            await self._zk.close()


def _feeding(settings: ConnectorSettings) -> consumer_settings.ConsumerSettings:
    """The settings of the consumer that feeds the streams."""
    return consumer_settings.read_settings(
        {
            "client_id": settings.client_id or settings.group_id,
            "auto_offset_reset": settings.reset_to,
            "max_partition_fetch_bytes": settings.fetch_message_max_bytes,
            "fetch_min_bytes": settings.fetch_min_bytes,
            "fetch_max_wait_ms": settings.fetch_wait_max_ms,
            "request_timeout_ms": settings.socket_timeout_ms,
            **security_of(settings),
        }
    )


class ConsumerConnector:
    """One consumer of a group. `config` maps settings, which `ConnectorSettings` lists, to values.

    An unknown or invalid setting, and a ZooKeeper that does not answer, raise `UserError`.

    >>> ConsumerConnector({"zookeeper.connect": "localhost:2181", "grup.id": "reports"})
    Traceback (most recent call last):
    kdist.errors.UserError: a connector has no setting 'grup.id': did you mean group.id?
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._settings = read_settings(config)
        connect = ConnectString.parse(self._settings.zookeeper_connect)
        self._listener: ConsumerRebalanceListener | None = None
        self._joined: Joined | None = None
        self._is_shut = False
        self._background = BackgroundLoop("kdist-connector")
        try:
            self._context = self._background.run(_open(connect, self._settings))
        except BaseException:
            self._background.stop()
            raise
        self._background.warn_if_left(self)

    # Streams

    def create_message_streams(
        self,
        topics: Mapping[str, int],
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
    ) -> dict[str, list[Stream]]:
        """Join the group, and return for each topic as many streams as `topics` says.

        A topic's streams share its partitions that this consumer owns. Decoders turn bytes into any
        object; null stays None. A connector can create its streams only once.
        """
        streams = self._join(Topics(topics), (key_decoder, value_decoder)).streams
        return {topic: streams.by_topic(topic) for topic in topics}

    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        count: int = 1,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
    ) -> list[Stream]:
        """As `create_message_streams`, for all topics that pass the filter, future ones too."""
        exclude = self._settings.exclude_internal_topics
        subscription = Filtered(topic_filter, count, exclude_internal=exclude)
        return self._join(subscription, (key_decoder, value_decoder)).streams.by_topic(None)

    def set_consumer_rebalance_listener(self, listener: ConsumerRebalanceListener) -> None:
        """Set the listener to call on rebalances. Call this before creating streams."""
        if self._joined is not None:
            raise UserError("set the listener before streams are created")
        check_listener(listener, ConsumerRebalanceListener)
        self._listener = listener

    def _join(
        self, subscription: Subscription, decoders: tuple[Decoder | None, Decoder | None]
    ) -> Joined:
        if self._is_shut:
            raise UserError("the connector is shut down")
        if self._joined is not None:
            raise UserError("a connector creates its streams once: use another one for others")
        coders = checked_decoders(*decoders)

        async def join() -> Joined:
            joined = Joined(self._context, self._settings, subscription, coders, self._listener)
            await joined.start()
            return joined

        self._joined = self._background.run(join())
        return self._joined

    # Offsets

    def commit_offsets(self) -> None:
        """Commit this consumer's offsets to ZooKeeper.

        They cover each stream's messages up to, but not including, the last one returned; in
        streams that the calling thread iterates over, including it. `ZooKeeperError` if they cannot
        be committed now.
        """
        if self._joined is None:
            return
        self._joined.streams.settle()
        self._run(self._joined.rebalancer.commit())

    # The end

    def shutdown(self) -> None:
        """End all streams, commit if auto-commit is on, and leave the group.

        Commits as `commit_offsets` does, except that while an exception is being handled, the last
        message returned does not count as processed.
        """
        self._shut(is_done=sys.exception() is None)

    def _shut(self, *, is_done: bool) -> None:
        if self._is_shut or self._background.is_elsewhere:
            return
        self._is_shut = True
        try:
            if self._joined is None:
                self._background.run(self._context.zk.close())
            else:
                if is_done:
                    self._joined.streams.settle()
                self._background.run(self._joined.close())
        finally:
            self._background.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shut(is_done=error is None)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_shut:
            work.close()
            raise UserError("the connector is shut down")
        return self._background.run(work)


async def _open(connect: ConnectString, settings: ConnectorSettings) -> ConnectorContext:
    """A `ConnectorContext` with an open ZooKeeper session; `UserError` if no server answers."""
    timeout_ms = settings.connection_timeout_ms
    zk = KazooZooKeeper(connect, settings.session_timeout_ms, timeout_ms)
    try:
        await zk.connect()
    except ConnectionLoss:
        raise UserError(f"no ZooKeeper answers at {connect} within {timeout_ms} ms") from None
    return ConnectorContext(
        network=AsyncioNetwork(asyncio.get_running_loop()),
        zk=zk,
        rng=system_rng(),
        now_ms=SystemClock().now_ms,
        host=socket.gethostname(),
        tell=asyncio.to_thread,
    )


def create(config: Mapping[str, Any]) -> ConsumerConnector:
    """Create a connector: `Consumer.create` in the papers."""
    return ConsumerConnector(config)


def create_message_streams(
    topic: str, count: int, config: Mapping[str, Any] | None = None
) -> list[Stream]:
    """Streams of one topic, from a new connector that is shut down when the program exits.

    Without `config`, it uses the ZooKeeper at $KDIST_ZOOKEEPER (default localhost:2181) and the
    group $KDIST_GROUP (default `kdist`), and a new group starts at the oldest messages.
    """
    connector = create(default_config() if config is None else config)
    # The last message may be unprocessed: the program may be exiting because it failed.
    atexit.register(connector._shut, is_done=False)
    return connector.create_message_streams({topic: count})[topic]


def default_config() -> dict[str, Any]:
    """The default configuration of `create_message_streams`."""
    return {
        "zookeeper.connect": os.environ.get(ZOOKEEPER_VARIABLE) or DEFAULT_ZOOKEEPER,
        "group.id": os.environ.get(GROUP_VARIABLE) or DEFAULT_GROUP,
        "auto.offset.reset": "smallest",
    }
