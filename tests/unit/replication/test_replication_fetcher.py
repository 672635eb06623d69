"""What a follower does with the answers of a leader that answers one fetch after the other.

Apache Kafka does: the fetch that overtakes another is read when that one has been answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from replication_world import BROKER, CLICKS, TOPIC_ID, VIEWS, World, batch

from kdist.config.replication import ReplicationSettings
from kdist.errors import ApiError, Error
from kdist.model import Broker
from kdist.network.client import Client
from kdist.protocol.api import Api
from kdist.protocol.fetch import (
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
)
from kdist.protocol.offset_for_leader_epoch import EpochEnd as PartitionEnd
from kdist.protocol.offset_for_leader_epoch import (
    EpochEndTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kdist.replication.fetching.fetcher import FetchContext, ReplicaFetcher
from kdist.replication.fetching.followed import READY
from kdist.replication.partition import Partition
from kdist.replication.peers import ALONE
from kdist.replication.roles import Following
from kdist.storage.epochs import EpochEnd

LEADER, SESSION, NEWEST = 2, 9, 17


class Leader:
    """A connection to a leader that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, FetchRequest]] = []

    async def negotiate(self) -> None:
        pass

    def version_of(self, _api: Api) -> int:
        return NEWEST

    def ask_for(self, slot: Any, request: FetchRequest, _version: int, _timeout_ms: float) -> None:
        self.asked.append((slot, request))

    def close(self) -> None:
        pass

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


class Stage:
    """A fetcher with one partition, followed in epoch 4, whose session is open."""

    def __init__(self) -> None:
        self.world = World()
        self.leader: Any = Leader()
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
        context = FetchContext(BROKER, peers, world.directory, world.metrics)
        return ReplicaFetcher(context, LEADER)

    async def _connect(self, _host: str, _port: int) -> Client:
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


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.fetcher.close()
    made.world.settle()


def test_a_refusal_of_the_last_epoch_does_not_stop_what_is_followed_in_the_next(
    stage: Stage,
) -> None:
    stage.follow(5)  # the leader has heard of it, too, and now answers the fetch that waited
    assert len(stage.leader.asked) == 2
    stage.leader.answer(error_code=Error.FENCED_LEADER_EPOCH)
    assert stage.asks() == [(5, 0)]
    stage.leader.answer(records=bytes(batch([b"a", b"b"], leader_epoch=5)))
    assert stage.end == 2
    assert stage.asks() == [(5, 2)]


def test_records_that_were_asked_for_in_the_last_epoch_are_asked_for_again(stage: Stage) -> None:
    """The leader may have cut them off since, if another led in between."""
    stage.follow(6)
    stage.leader.answer(records=bytes(batch([b"lost"], leader_epoch=4)))
    assert stage.end == 0
    assert stage.asks() == [(6, 0)]


def test_records_that_come_twice_are_dropped_and_their_offsets_taken(stage: Stage) -> None:
    other = stage.follow_another()  # so a second fetch overtakes the first, with nothing of this
    assert [len(request.topics) for _, request in stage.leader.asked] == [0, 1]
    records = bytes(batch([b"a", b"b"], leader_epoch=4))
    stage.leader.answer(records=records)
    assert stage.asks() == [(4, 0), (4, 2)]  # of the other one, and of this
    stage.leader.answer(records=records, high_watermark=1)
    assert (stage.end, stage.partition.high_watermark) == (2, 1)
    assert stage.world.metrics.failed_replications == 0
    assert stage.fetcher.followed[CLICKS].state is READY
    assert other.log.end_offset == 0


class OldLeader(Leader):
    """One of before Fetch 12: it does not look where logs diverge, but answers if asked for it."""

    def __init__(self, *ends: EpochEnd | Error) -> None:
        super().__init__()
        self.ends = list(ends)
        self.epochs: list[int] = []  # that it was asked for

    def version_of(self, _api: Api) -> int:
        return 11

    async def send(self, request: OffsetForLeaderEpochRequest, _version: int) -> Any:
        self.epochs.append(request.topics[0].partitions[0].leader_epoch)
        end = self.ends.pop(0)
        if isinstance(end, Error):
            raise ApiError(end)
        found = PartitionEnd(
            error_code=0, partition=0, leader_epoch=end.epoch, end_offset=end.end_offset
        )
        return OffsetForLeaderEpochResponse(topics=[EpochEndTopic(topic="", partitions=[found])])


def test_an_old_leader_is_asked_until_the_logs_do_not_diverge() -> None:
    stage = Stage()
    for epoch in (1, 3, 4):
        stage.leader.answer(records=bytes(batch([b"a"], base_offset=stage.end, leader_epoch=epoch)))
    assert (stage.end, stage.partition.log.epochs.latest) == (3, 4)
    stage.fetcher.failed(ApiError(Error.NETWORK_EXCEPTION))
    stage.leader = old = OldLeader(Error.NOT_LEADER_OR_FOLLOWER, EpochEnd(2, 2), EpochEnd(1, 1))
    stage.follow(5)
    stage.world.settle(2_000)
    assert old.epochs == [4, 4, 1]
    assert stage.end == 1
    assert stage.fetcher.followed[CLICKS].state is READY
    assert [part.fetch_offset for part in old.asked[-1][1].topics[0].partitions] == [1]
