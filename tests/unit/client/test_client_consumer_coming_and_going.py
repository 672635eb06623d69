"""Members join, read in any way and leave cleanly: each record is returned once, in order."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kdist.client.consumer.batch import ConsumedRecord
from kdist.errors import ApiError
from tests.examples import first_of
from tests.simulator.cluster import Cluster
from tests.unit.client.client_group_world import Group, Member

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


class Moody(Member):
    """A member that polls in every way, pauses, commits, and sometimes does nothing."""

    async def _work(self) -> None:
        rng, consumer = self.group.cluster.rng, self.consumer
        while self.is_polling:
            assigned = sorted(consumer.assignment())
            match rng.randrange(6):
                case 0:
                    batches_max = rng.choice([1, 2, 200])
                    for batch in await consumer.poll_batches(rng.uniform(0, 0.5), batches_max):
                        self._note(list(batch))
                case 1:
                    self._note(await consumer.poll(rng.uniform(0, 0.5), rng.choice([1, 500])))
                case 2 if assigned:
                    consumer.pause(rng.choice(assigned))
                case 3 if assigned:
                    consumer.resume(*assigned)
                case 4:
                    with contextlib.suppress(ApiError):  # no commit is accepted during a rebalance
                        await consumer.commit()
                case _:
                    await asyncio.sleep(rng.uniform(0, 2))

    def _note(self, records: list[ConsumedRecord]) -> None:
        for record in records:
            before = self.group.last.get(record.partition, -1)
            assert record.offset == before + 1, f"{self.name} was given {record} behind {before}"
            self.group.last[record.partition] = record.offset
            self.group.found[record.value] += 1


@pytest.mark.parametrize("strategy", first_of(reversed(STRATEGIES), 2))
@pytest.mark.parametrize("seed", first_of([5, 32]))
def test_no_record_is_returned_to_two_members(strategy: str, seed: int) -> None:
    cluster = Cluster(seed)

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 5)
        await group.begin()
        for _ in range(30):
            await group.produce(cluster.rng.randrange(20))
            await asyncio.sleep(cluster.rng.uniform(0, 4))
            members = list(group.members.values())
            if len(members) < 2 or (len(members) < 6 and cluster.rng.random() < 0.5):
                group.join(Moody, partition_assignment_strategy=strategy)
            else:
                await cluster.rng.choice(members).leave()
        await cluster.until(lambda: group.is_all_found)
        for member in list(group.members.values()):
            await member.leave()

    cluster.run(scenario())


def test_a_close_without_time_for_a_rebalance_leaves_at_once() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        group = Group(cluster, 4)
        await group.begin()
        leaving, silent = (group.join(partition_assignment_strategy=STRATEGIES[-1:]) for _ in "12")
        await cluster.until(lambda: group.shares == [2, 2])
        silent.is_polling = False
        await silent.task
        group.join(partition_assignment_strategy=STRATEGIES[-1:])  # silent has all wait
        await cluster.until(lambda: not leaving.consumer._core.is_calm)
        leaving.is_polling = False
        await leaving.task
        assert leaving.consumer.assignment()
        before_s = cluster.loop.time()
        await leaving.consumer.close(timeout_s=0.1)
        assert cluster.loop.time() - before_s < 0.2
        await asyncio.sleep(60)  # what it left undone would be told of

    cluster.run(scenario())
