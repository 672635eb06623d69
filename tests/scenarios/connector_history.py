"""Random histories of a connectors' group: members in ZooKeeper that read from brokers that die.

A seed determines a `ConnectorHistory`. Members join, leave, die, are cut off from ZooKeeper, from
brokers or from both, and lose their sessions; brokers and all ZooKeeper servers stop and come back,
and the topic grows. At every moment no two members return messages of one partition; committed
offsets never go back, nor beyond the messages that were processed. In the end each acknowledged
record was processed, and the group has settled on the assignment of Algorithm 1. It is beside
`tests/simulator` because these groups live in ZooKeeper, and are looked at with each message.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from history_world import Brokers, Sending, check_stored, cut_off, read_all

from kdist.classic.connector.stream import ConsumerTimeout, Message
from kdist.classic.connector.subscription import Filtered, Subscription, Topics, Whitelist
from kdist.model import TopicPartition
from kdist.protocol.create_partitions import CreatePartitionsRequest, GrownTopic
from tests.simulator.cluster import Cluster
from tests.unit.client.connector_world import (
    SESSION_MS,
    TOPIC,
    Connectors,
    Member,
    offset_path,
    owner_path,
)

STEPS = 40
PARTITIONS, PARTITIONS_MAX = 5, 8
MEMBERS_MAX = 6
READ_S_MAX = 90  # for everything to be read and committed, once all faults are over
REST_S = 10.0  # for so long nobody may own anything else then
SESSION_S = SESSION_MS / 1000


class ConnectorHistory:
    """Owner: the loop. With `is_power_lost` brokers lose what was not synced, most of the time."""

    def __init__(self, seed: int, strategy: str = "range", *, is_power_lost: bool) -> None:
        self.cluster = Cluster(seed)
        self.rng = self.cluster.rng
        self._brokers = Brokers(self.cluster, is_power_lost=is_power_lost)
        self._group = ReadersGroup(self.cluster, PARTITIONS)
        self._partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        self._strategy = strategy

    def play(self) -> None:
        """Run the history, then check the outcome."""
        self.cluster.run(self._play())

    async def _play(self) -> None:
        await self._brokers.start()
        await self._group.begin(**self._brokers.topic_settings)
        sending = Sending(self._brokers, self._partitions)
        for step in range(STEPS):
            await asyncio.sleep(self.rng.uniform(0, 3))
            await self._happen(step)
            await self._brokers.bring_back(step)
        await self._brokers.bring_back()
        await self._judge(await sending.end())

    # What happens

    async def _happen(self, step: int) -> None:
        if self.rng.random() < 0.6:
            await self._happen_to(self.rng.choice([*self._group.members.values(), None]))
            return
        match self.rng.randrange(5):
            case 0 if self._brokers.are_all_up:
                self._brokers.kill_one(step)
            case 1:
                await cut_off(self.cluster, self._hosts)
            case 2:
                members = list(self._group.members)  # from all brokers, but not from ZooKeeper
                await cut_off(self.cluster, self._hosts, members, s_max=2 * SESSION_S)
            case 3:
                self.cluster.ensemble.stop()
                await asyncio.sleep(self.rng.uniform(0, 2 * SESSION_S))
                self.cluster.ensemble.start()
            case 4 if self._brokers.are_all_up and len(self._partitions) < PARTITIONS_MAX:
                await self._grow()

    async def _happen_to(self, one: Member | None) -> None:
        """`None` comes."""
        match self.rng.randrange(5):
            case 0 if one:
                await one.leave()
            case 1 if one:
                await one.die()
            case 2 if one:
                one.lose_session()
            case 3 if one:
                one.be_cut_off(noticed_after_ms=self.rng.uniform(0, SESSION_MS * 2 / 3))
                delay_s = self.rng.uniform(0, 2 * SESSION_S)
                self.cluster.loop.call_later(delay_s, one.maybe_be_heard_again)
            case _ if len(self._group.members) < MEMBERS_MAX:
                await self._join()

    @property
    def _hosts(self) -> list[str]:
        return [*self._brokers.hosts, Sending.host, *self._group.members]

    async def _join(self) -> None:
        streams = 1 if self._strategy == "roundrobin" else self.rng.randint(1, 2)
        named: Subscription = Topics({TOPIC: streams})
        wants = self.rng.choice([named, Filtered(Whitelist(f"{TOPIC}|x.*"), streams)])
        await self._group.join(wants, partition_assignment_strategy=self._strategy)

    async def _grow(self) -> None:
        client = await self.cluster.client()
        await client.negotiate()
        count = len(self._partitions) + 1
        more = GrownTopic(name=TOPIC, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[more], timeout_ms=5_000, validate_only=False)
        (result,) = (await client.send(request)).results
        if result.error_code == 0:
            self._partitions.append(TopicPartition(TOPIC, count - 1))

    # What must hold

    async def _judge(self, acknowledged: set[bytes]) -> None:
        stored = await read_all(self.cluster, self._partitions)
        check_stored(stored, acknowledged)
        await asyncio.sleep(2 * SESSION_S)  # until the last who was cut off is heard again
        if not self._group.members:
            await self._join()
        await asyncio.sleep(SESSION_S)  # by then they have settled
        ends = {each.partition: len(records) for each, records in stored.items() if records}
        end_s = self.cluster.loop.time() + READ_S_MAX
        while self._group.committed != ends or len(self._group.owners) < len(stored):
            assert self.cluster.loop.time() < end_s, self._standing(ends)
            await asyncio.sleep(0.1)
        assert acknowledged <= self._group.found.keys()
        await self._rest()
        for member in list(self._group.members.values()):
            await member.leave()
        left = [path for path in await self._group.tree() if not path.startswith("offsets/")]
        assert sorted(left) == sorted({"ids", "offsets", "owners", f"owners/{TOPIC}"})

    def _standing(self, ends: dict[int, int]) -> str:
        group = self._group
        return f"committed: {group.committed}, written: {ends}, owned: {group.owners}"

    async def _rest(self) -> None:
        """Each member owns its share by Algorithm 1, and keeps it."""
        one = next(iter(self._group.members.values()))
        wanted = (await one.joined.rebalancer._registry.read()).owners(self._strategy)
        end_s = self.cluster.loop.time() + REST_S
        while self.cluster.loop.time() < end_s:
            assert self._group.owners == {each.partition: name for each, name in wanted.items()}
            await asyncio.sleep(0.01)


class ReadersGroup(Connectors):
    """The group, whose offsets are watched at every moment."""

    def __init__(self, cluster: Cluster, partitions: int) -> None:
        super().__init__(cluster, partitions)
        self.committed: dict[int, int] = {}
        self._worked_on: defaultdict[int, int] = defaultdict(
            int
        )  # everything before that offset is processed
        self._ahead: defaultdict[int, set[int]] = defaultdict(set)

    def work_on(self, message: Message) -> None:
        """Count the message as processed."""
        self.found[message.value] += 1
        partition, ahead = message.partition, self._ahead[message.partition]
        ahead.add(message.offset)
        while self._worked_on[partition] in ahead:
            ahead.remove(self._worked_on[partition])
            self._worked_on[partition] += 1

    def check(self) -> None:
        super().check()
        for partition in range(PARTITIONS_MAX):
            data = self._data(offset_path(partition))
            if data is None:
                continue
            offset, before = int(data), self.committed.get(partition, 0)
            assert before <= offset, f"{partition}: {offset} is committed, and {before} was"
            worked_on = self._worked_on[partition]
            assert offset <= worked_on, f"{partition}: {offset} is committed, and not worked on"
            if offset:
                self.committed[partition] = offset

    @property
    def owners(self) -> dict[int, str]:
        """By partition, as ZooKeeper has it."""
        found = {each: self._data(owner_path(each)) for each in range(PARTITIONS_MAX)}
        return {each: data.decode() for each, data in found.items() if data is not None}

    def _data(self, path: str) -> bytes | None:
        tree = self.cluster.ensemble.tree
        return tree.get(path).data if tree.exists(path) else None


class SlowMember(Member):
    """A member that processes a message for a while before it asks for the next."""

    async def _work(self) -> None:
        rng, group = self.group.cluster.rng, self.group
        assert isinstance(group, ReadersGroup)
        while self.is_reading:
            for stream in self.streams:
                try:
                    message = next(stream)
                except ConsumerTimeout:
                    await asyncio.sleep(rng.uniform(0, 0.1))
                    continue
                except StopIteration:
                    return
                await asyncio.sleep(rng.choice([0, 0, 0, 0.05, 0.3]))
                if self.is_reading:  # it did not die over it
                    group.work_on(message)


ReadersGroup.member_kind = SlowMember
