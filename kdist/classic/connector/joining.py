"""A connector's core: assembles its parts on one event loop, in a given world."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from kdist.classic.connector.feed import Feed
from kdist.classic.connector.rebalancing import ConsumerRebalanceListener, Rebalancer, Tell
from kdist.classic.connector.registry import Registry
from kdist.classic.connector.settings import ConnectorSettings
from kdist.classic.connector.stream import Stream
from kdist.classic.connector.streams import Streams
from kdist.classic.connector.subscription import Subscription
from kdist.client.cluster import Address
from kdist.client.coding import Coder
from kdist.client.consumer import settings as consumer_settings
from kdist.client.consumer.aio import Consumer, call_back
from kdist.client.consumer.core import Core
from kdist.client.security import security_of
from kdist.network.network import Network
from kdist.zk.client import ZooKeeper
from kdist.zk.values import ConsumerRegistration


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
