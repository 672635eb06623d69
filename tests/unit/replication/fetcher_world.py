"""A fetcher of one partition, and a leader that answers when a test says so."""

from __future__ import annotations

from typing import Any, cast

from replication_world import BROKER, CLICKS, TOPIC_ID, VIEWS, World

from kdist.config.replication import ReplicationSettings
from kdist.config.topic import TopicSettings
from kdist.errors import Error
from kdist.model import Broker
from kdist.network.client import Client
from kdist.protocol import fetch
from kdist.protocol.api import Api
from kdist.protocol.fetch import (
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
)
from kdist.replication.fetcher import ReplicaFetcher
from kdist.replication.leadership import Following
from kdist.replication.partition import Partition
from kdist.replication.peers import ALONE, FetcherContext
from kdist.replication.replicas import Fetchers
from kdist.replication.throttles import ReplicationThrottle

LEADER, SESSION, NEWEST = 2, 9, 17


class Leader:
    """A connection to a leader that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, FetchRequest]] = []
        self.is_closed = False

    async def negotiate(self) -> None:
        pass

    def version_of(self, _api: Api) -> int:
        return NEWEST

    def ask_for(self, slot: Any, request: FetchRequest, version: int, _timeout_ms: float) -> None:
        assert version == self.version_of(fetch.API)
        self.asked.append((slot, request))

    def close(self) -> None:
        self.is_closed = True

    def answer(self, **result: Any) -> None:
        """Answer the oldest fetch with a result for the one partition, or with none."""
        slot, _ = self.asked.pop(0)
        told = {"high_watermark": 0, "log_start_offset": 0, "error_code": Error.NONE, **result}
        partition = FetchPartitionResult(
            partition_index=CLICKS.partition, last_stable_offset=-1, **told
        )
        topic = FetchTopicResult(topic_id=TOPIC_ID, partitions=[partition])
        slot.set_result(
            FetchResponse(
                error_code=Error.NONE, session_id=SESSION, responses=[topic] if result else []
            )
        )

    def refuse(self, error: Error) -> None:
        """Answer the newest fetch with this for the partition, and one before it with nothing."""
        for _ in self.asked[1:]:
            self.answer()
        self.answer(error_code=error)


class Stage:
    """A fetcher with one partition, followed in epoch 4, whose session is open."""

    def __init__(self, **topic: Any) -> None:
        self.world = World(topic=TopicSettings(**topic))
        self.leader: Any = Leader()
        self.connected: list[tuple[str, int]] = []
        self.fetcher = self.world.tasks.loop.run_until_complete(self._make())
        self.follow(4)
        self.leader.answer(high_watermark=0)

    async def _make(self) -> ReplicaFetcher:
        peers = ALONE._replace(
            settings=ReplicationSettings(),
            find=lambda broker_id: Broker(broker_id, "m2", 9092),
            connect=self._connect,
        )
        world = self.world
        throttle = ReplicationThrottle(world.clock)
        context = FetcherContext(BROKER, peers, world.directory, world.metrics, throttle)
        self.fetchers = Fetchers(context)
        fetcher = self.fetchers._fetchers[LEADER] = ReplicaFetcher(context, LEADER)
        return fetcher

    async def _connect(self, host: str, port: int) -> Client:
        self.connected.append((host, port))
        return cast(Client, self.leader)

    def follow(self, epoch: int) -> None:
        """Have the controller tell of an epoch of the leader's."""
        replicas = [LEADER, BROKER]
        self.world.tell(
            leader=LEADER,
            leader_epoch=epoch,
            isr=replicas,
            replicas=replicas,
            partition_epoch=epoch,
        )
        partition = self.world.replicas.partitions[CLICKS]
        assert isinstance(partition.role, Following)
        self.partition = partition
        self.fetchers._leaders[CLICKS] = LEADER
        self.fetcher.leave(CLICKS)
        self.fetcher.follow(partition, partition.role)
        self.world.settle()

    def follow_another(self) -> Partition:
        """Have the controller tell of another partition of the leader's."""
        replicas = [LEADER, BROKER]
        self.world.tell(VIEWS, leader=LEADER, leader_epoch=4, isr=replicas, replicas=replicas)
        partition = self.world.replicas.partitions[VIEWS]
        assert isinstance(partition.role, Following)
        self.fetcher.follow(partition, partition.role)
        self.world.settle()
        return partition

    @property
    def end(self) -> int:
        return self.partition.log.end_offset

    def asks(self) -> list[tuple[int, int]]:
        """The epoch and offset of each fetch that is not answered; nothing if it names nothing."""
        named = [each for _, request in self.leader.asked for each in request.topics]
        return [
            (each.current_leader_epoch, each.fetch_offset)
            for topic in named
            for each in topic.partitions
        ]
