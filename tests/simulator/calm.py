"""What a calm cluster answers: each API once, without an error, and rightly.

An operator's errors are only noted while faults go on. Once they are over, and all is alike, no
request is refused, and what an operator is told is what the brokers' disks and ZooKeeper have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kdist.broker.broker import Broker
from kdist.client.admin.clients import AsyncAdmin
from kdist.client.admin.settings import Setting
from kdist.client.offsets import EARLIEST_TIMESTAMP
from kdist.errors import ApiError, Error, KdistError
from kdist.model import NO_OFFSET, TopicPartition
from kdist.protocol.offset_for_leader_epoch import (
    AskedEpoch,
    AskedEpochTopic,
    OffsetForLeaderEpochRequest,
)
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.batch import read_header
from kdist.records.build import build_batch, read_batch
from kdist.replication.partition import Partition
from tests.simulator.assignments import GROUP
from tests.simulator.cluster import PORT
from tests.simulator.record import Violation, require
from tests.simulator.shape import TOPIC

if TYPE_CHECKING:
    from tests.simulator.history import History

_PROMPT_S = 5.0
_EXPIRED_S = 30.0  # by when members that died are no longer counted
_GROUP = "passing"
_CLIENT = "passer-by"
_QUOTA = "producer_byte_rate"


class Calm:
    """Owner: `Rest`."""

    def __init__(
        self, history: History, leader: Callable[[TopicPartition], Partition | None]
    ) -> None:
        self._history = history
        self._leader = leader
        self._rng = history.cluster.stream("calm")
        self._admin: AsyncAdmin = history.operating.admin

    async def judge(self) -> None:
        """Ask for everything once."""
        checks: tuple[Callable[[], Awaitable[None]], ...] = (
            *(
                self._produce,
                self._describe,
                self._read_groups,
                self._change_group,
                self._list_offsets,
            ),
            *(self._find_epochs, self._change_settings, self._change_quotas, self._look_at_disks),
            *(self._delete_records, self._elect_preferred, self._elect_meanwhile),
        )
        for check in checks:
            name = check.__name__.strip("_").replace("_", " ")
            begun_s = self._history.trace.now_s
            try:
                await self._history.operating.process.run(check())
            except KdistError as error:
                raise Violation(f"L5: a calm cluster refuses to {name}: {error}") from None
            took_s = self._history.trace.now_s - begun_s
            is_prompt = took_s < _PROMPT_S or check == self._read_groups  # which waits for sessions
            require(is_prompt, f"L5: a calm cluster takes {took_s:.1f} s to {name}")
            self._history.count(f"calm cluster: {name}")

    def _led(self) -> dict[TopicPartition, Partition]:
        """The partitions of the topic that stays, at their leaders."""
        found = {key: self._leader(key) for key in self._history.stable_partitions()}
        return {key: each for key, each in found.items() if each is not None}

    async def _produce(self) -> None:
        """To each partition, with acks=all."""
        now_ms, cluster = self._history.cluster.clock.now_ms(), self._admin.cluster
        for key, partition in self._led().items():
            data = bytes(build_batch([b"calm"], timestamp_ms=now_ms))
            part = ProducePartition(index=key.partition, records=data)
            topic = ProduceTopic(name=key.topic, partition_data=[part])
            request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
            await cluster.metadata([key.topic])
            answer = await cluster.ask(request, partition._context.broker_id)
            ((found,),) = (each.partition_responses for each in answer.responses)
            if found.error_code:
                raise ApiError(Error.of(found.error_code), str(key))

    # Brokers and topics

    async def _describe(self) -> None:
        described = await self._admin.describe_topics([TOPIC])
        told = {each.number: each for each in described[TOPIC].partitions}
        for key in self._history.stable_partitions():
            state = self._history.known.states[key]
            found = told[key.partition]
            is_so = (found.leader, sorted(found.isr)) == (state.leader, sorted(state.isr))
            require(is_so, f"S13: {key} is described as {found}, and has {state}", key)
        moves = await self._admin.list_partition_reassignments()
        require(not moves, f"L6: moves are under way: {moves}")

    async def _change_settings(self) -> None:
        value = str(self._rng.randint(10**6, 10**7))
        name = "retention.ms"
        before: Setting = (await self._admin.describe_topic_configs([TOPIC]))[TOPIC][name]
        await self._admin.incremental_alter_topic_configs(TOPIC, {name: value})
        self._history.operating.require_setting(TOPIC, name, value)
        unset = (name,) if before.is_default else ()
        given = {} if before.is_default else {name: str(before.value)}
        await self._admin.incremental_alter_topic_configs(TOPIC, given, unset)

    async def _change_quotas(self) -> None:
        await self._admin.alter_client_quotas(_CLIENT, {_QUOTA: 10**6})
        found = (await self._admin.describe_client_quotas()).get(_CLIENT, {})
        require(found.get(_QUOTA) == 10**6, f"S9: the quotas of {_CLIENT} are {found}")
        await self._admin.alter_client_quotas(_CLIENT, unset=[_QUOTA])
        found = (await self._admin.describe_client_quotas()).get(_CLIENT, {})
        require(not found, f"S9: {_CLIENT} still has quotas: {found}")

    async def _look_at_disks(self) -> None:
        brokers = [*self._history.machines.brokers()]
        before = {each.id: _sizes_of(each) for each in brokers}
        told = await self._admin.describe_log_dirs()
        for broker in brokers:
            sizes = {
                each.partition: each.size_bytes for d in told[broker.id] for each in d.replicas
            }
            for key, size in _sizes_of(broker).items():
                require(key in sizes, f"S13: m{broker.id} does not tell of {key}'s log", key)
                # A cleaner may take something away between the answer and now.
                is_so = sizes[key] == size or before[broker.id].get(key) != size
                sentence = f"S13: {key} on m{broker.id} has {size} bytes, and {sizes[key]} told"
                require(is_so, sentence, key)

    async def _elect_preferred(self) -> None:
        """L6: afterwards the first of the assigned replicas lead, as all are in sync."""
        await self._admin.elect_leaders()
        for name, topic in self._history.known.topics.items():
            for number, replicas in topic.partitions.items():
                key = TopicPartition(name, number)
                state = self._history.known.states[key]
                require(state.leader == replicas[0], f"L6: {key} of {replicas} has {state}", key)

    async def _elect_meanwhile(self) -> None:
        """Where nobody has to be elected, while brokers are told of something else."""
        history = self._history
        brokers = [f"m{each}:{PORT}" for each in history.shape.broker_ids]
        another = AsyncAdmin(brokers, network=history.cluster.network.host(_CLIENT))

        async def elect() -> None:
            for _ in range(6):
                await asyncio.sleep(self._rng.uniform(0, 0.003))
                await another.elect_leaders()

        async with another:
            await another.elect_leaders()  # from here on they are connected
            await asyncio.gather(self._admin.create_topic(_CLIENT, 1, 1), elect())
        await self._admin.delete_topics([_CLIENT])

    # Groups

    async def _read_groups(self) -> None:
        committed = await self._admin.list_group_offsets(GROUP)
        if not committed:
            return  # nobody was given anything
        listed = [each.name for each in await self._admin.list_groups()]
        require(GROUP in listed, f"S21: {GROUP} is not listed, but {listed}")
        end_s = self._history.trace.now_s + _EXPIRED_S
        while (found := (await self._admin.describe_groups([GROUP]))[GROUP]).members:
            sentence = f"L8: {GROUP} is left by all, and is described as {found}"
            require(self._history.trace.now_s < end_s, sentence)
            await asyncio.sleep(1)
        require(found.state == "Empty", f"L8: {GROUP} has no members, and is {found.state}")

    async def _change_group(self) -> None:
        admin, keys = self._admin, self._history.stable_partitions()
        offsets = {key: self._rng.randint(0, 100) for key in keys}
        await admin.alter_group_offsets(_GROUP, offsets)
        await self._require_offsets(offsets)
        gone = self._rng.choice(keys)
        await admin.delete_group_offsets(_GROUP, [gone])
        del offsets[gone]
        await self._require_offsets(offsets)
        if offsets:
            await admin.delete_groups([_GROUP])
            await self._require_offsets({})
        listed = [each.name for each in await admin.list_groups()]
        require(_GROUP not in listed, f"S21: {_GROUP} was deleted, and is listed")

    async def _require_offsets(self, wanted: dict[TopicPartition, int]) -> None:
        found = await self._admin.list_group_offsets(_GROUP)
        require(found == wanted, f"S21: {_GROUP} has committed {found}, and is to have {wanted}")

    # Logs

    async def _list_offsets(self) -> None:
        for key, partition in self._led().items():
            log = partition.log
            before = log.start_offset, log.end_offset
            (start,) = (await self._admin.list_offsets([key], EARLIEST_TIMESTAMP)).values()
            (end,) = (await self._admin.list_offsets([key])).values()
            told = f"S17: {key} begins at {start} and ends at {end}, as is told"
            now = log.start_offset, log.end_offset
            # Retention may take something away between the first answer and now.
            require((start, end) == now or before != now, f"{told}: {log}", key)
            times = _times(partition)
            if not times:
                continue
            wanted_ms = self._rng.choice(sorted({*times.values()})) - self._rng.randint(0, 1)
            (found,) = (await self._admin.list_offsets([key], wanted_ms)).values()
            later = sorted(offset for offset, time_ms in times.items() if time_ms >= wanted_ms)
            # Retention may have taken some of them away by then.
            left = [offset for offset in later if offset >= log.start_offset]
            sentence = f"S17: {key} has {later} from {wanted_ms} ms on, and {found} is told"
            require(found in (later[0], left[0] if left else NO_OFFSET), sentence, key)

    async def _find_epochs(self) -> None:
        """S2: each epoch ends where the next one's first record is."""
        for key, partition in self._led().items():
            ends = _epoch_ends(partition)
            for epoch, end in ends.items():
                asked = AskedEpoch(partition=key.partition, leader_epoch=epoch)
                topic = AskedEpochTopic(topic=key.topic, partitions=[asked])
                request = OffsetForLeaderEpochRequest(topics=[topic])
                cluster = self._admin.cluster
                await cluster.metadata([key.topic])
                answer = await cluster.ask(request, cluster.leaders[key])
                ((found,),) = (each.partitions for each in answer.topics)
                if found.error_code:
                    raise ApiError(Error.of(found.error_code), str(key))
                told = found.leader_epoch, found.end_offset
                require(told == (epoch, end), f"S2: {key} has {ends}, and {told} is told", key)

    async def _delete_records(self) -> None:
        led = self._led()
        key = self._rng.choice(sorted(led))
        before = self._rng.randint(led[key].log.start_offset, led[key].high_watermark)
        starts = await self._admin.delete_records({key: before})
        require(starts[key] >= before, f"S6: {key} was deleted before {before}: {starts}", key)
        for broker in self._history.machines.brokers():
            found = broker.service.replicas.partitions.get(key)
            if found is not None:
                sentence = f"S6: {key} was deleted before {before}, on m{broker.id} is {found.log}"
                require(found.log.start_offset >= before, sentence, key)


def _times(partition: Partition) -> dict[int, int]:
    """The timestamps of its records, in ms, by their offsets."""
    log, times = partition.log, {}
    for segment in log.segments if log.has_files else ():
        data, position = segment.file.read(0, segment.size), 0
        while position < len(data):
            records = read_batch(data, position)
            times |= {e.offset: e.timestamp for e in records if e.offset >= log.start_offset}
            position += read_header(data, position).size
    return times


def _epoch_ends(partition: Partition) -> dict[int, int]:
    """Where the records of each epoch end."""
    log, ends = partition.log, {}
    for segment in log.segments if log.has_files else ():
        data, position = segment.file.read(0, segment.size), 0
        while position < len(data):
            header = read_header(data, position)
            if header.next_offset > log.start_offset:
                ends[header.partition_leader_epoch] = header.next_offset
            position += header.size
    return ends


def _sizes_of(broker: Broker) -> dict[TopicPartition, int]:
    logs = broker.service.directory.logs
    return {each: logs[each].size for each in broker.service.replicas.partitions}
