"""From whom a broker fetches each partition, when leaders and epochs change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from replication_world import BROKER, CLICKS, VIEWS, World

from kdist.config.replication import ReplicationSettings
from kdist.model import TopicPartition
from kdist.replication.partition import Partition
from kdist.replication.peers import ALONE, FetcherContext
from kdist.replication.replicas import Fetchers
from kdist.replication.throttles import ReplicationThrottle


class Stage:
    """A broker whose leaders cannot be found: it is only looked at who is to be asked."""

    def __init__(self) -> None:
        self.world = World()
        peers = ALONE._replace(settings=ReplicationSettings(), find=lambda _: None)
        world = self.world
        throttle = ReplicationThrottle(world.clock)
        context = FetcherContext(BROKER, peers, world.directory, world.metrics, throttle)
        self.fetchers = Fetchers(context)

    def tell(self, leader: int, epoch: int, key: TopicPartition = CLICKS) -> Partition:
        """Have the controller tell who leads, and see to it."""
        replicas = sorted({0, 2, 3, BROKER, leader} - {-1})
        self.world.tell(
            key, leader=leader, leader_epoch=epoch, isr=replicas, replicas=replicas,
            partition_epoch=epoch,
        )  # fmt: skip
        partition = self.world.replicas.partitions[key]
        self.update(partition)
        return partition

    def update(self, partition: Partition) -> None:
        self._in_loop(lambda: self.fetchers.update(partition))

    def _in_loop(self, call: Callable[[], None]) -> None:
        async def called() -> None:
            call()

        self.world.tasks.loop.run_until_complete(called())

    @property
    def asked(self) -> dict[int, list[tuple[str, int]]]:
        """For each leader the topics that it is asked for, with their epochs."""
        return {
            leader: [(key.topic, each.role.epoch) for key, each in fetcher.followed.items()]
            for leader, fetcher in self.fetchers._fetchers.items()
        }

    def fetching(self) -> set[str]:
        """The names of the tasks that keep a connection."""
        tasks = asyncio.all_tasks(self.world.tasks.loop)
        return {name for task in tasks if (name := task.get_name()).startswith("fetcher")}


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.fetchers.close()
    made.world.settle()


@pytest.mark.parametrize("leader", [0, 2])
def test_a_partition_is_fetched_from_its_leader_anew_in_each_epoch(
    stage: Stage, leader: int
) -> None:
    stage.tell(leader, 4)
    assert stage.asked == {leader: [("clicks", 4)]}
    stage.tell(leader, 5)
    assert stage.asked == {leader: [("clicks", 5)]}


def test_what_is_fetched_already_is_not_begun_again(stage: Stage) -> None:
    partition = stage.tell(2, 4)
    before = stage.fetchers._fetchers[2].followed[CLICKS]
    stage.update(partition)
    assert stage.fetchers._fetchers[2].followed[CLICKS] is before


def test_a_partition_is_fetched_from_one_leader_alone(stage: Stage) -> None:
    stage.tell(2, 4)
    stage.tell(2, 4, VIEWS)
    stage.tell(3, 5)
    assert stage.asked == {2: [("views", 4)], 3: [("clicks", 5)]}


@pytest.mark.parametrize("leader", [-1, BROKER])
def test_who_leads_or_knows_no_leader_fetches_from_nobody(stage: Stage, leader: int) -> None:
    stage.tell(2, 4)
    stage.tell(leader, 5)
    assert stage.asked == {}


def test_a_leader_of_nothing_that_is_followed_is_not_connected_to(stage: Stage) -> None:
    stage.tell(2, 4)
    stage.tell(3, 4, VIEWS)
    stage.world.settle()
    assert stage.fetching() == {"fetcher of 2", "fetcher of 3"}
    stage.fetchers.leave(CLICKS)
    stage.world.settle()
    assert (stage.asked, stage.fetching()) == ({3: [("views", 4)]}, {"fetcher of 3"})
    stage.fetchers.leave(CLICKS)  # again
    stage.fetchers.close()
    stage.world.settle()
    assert (stage.asked, stage.fetching()) == ({}, set())
