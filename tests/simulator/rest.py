"""What must hold once the faults are over and the clients have finished.

Something that must come true in the end (L1, L5 to L9, L11) has so long: two minutes would do in
real life, too. What is compared then: the logs with what was sent, acknowledged and read (S1, S2,
S5, S8 to S10, S14), what was committed with what was read (S21), the brokers' memory and disks with
ZooKeeper (S13, S14).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from kdist.errors import CorruptFile, KdistError
from kdist.model import TopicPartition
from kdist.records.batch import crc_fault, read_header
from kdist.records.build import read_batch
from kdist.replication.partition import Partition
from kdist.storage.meta import decode_partition_metadata
from kdist.storage.names import PARTITION_METADATA, DirectoryState, directory_name
from kdist.testing.simulated_content import Content
from kdist.testing.simulated_names import Directory
from kdist.zk import znodes
from tests.simulator.assignments import GROUP
from tests.simulator.calm import Calm
from tests.simulator.faults import EMPTY_DISK
from tests.simulator.likeness import compare, difference
from tests.simulator.machines import LOG_DIR
from tests.simulator.producing import Producing
from tests.simulator.record import NEVER_S, Violation, require
from tests.simulator.shape import TOPIC

if TYPE_CHECKING:
    from tests.simulator.history import History

PATIENCE_S = 90.0
QUIET_S = 5.0
REQUESTS_PER_S = 1.0  # of an idle broker
ZOOKEEPER_REQUESTS_PER_S = 1.0
_PROBE = "probe"

Stored = Mapping[int, bytes]


class Rest:
    """Owner: the history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._known = history.known
        self._machines = history.machines
        self._loop = history.cluster.loop
        self._read: dict[tuple[TopicPartition, int, int], set[bytes]] = {}

    async def judge(self) -> None:
        """Raise the first violation."""
        history = self._history
        for producer in history.producers:
            await self._in_time(producer.end(), f"L5: {producer.name} is not answered")
        await self._in_time(history.zombies.end(), "L5: the zombie is not answered")
        await self._in_time(history.asking.end(), "L5: the asker is not answered")
        await self._in_time(history.trespassing.end(), "L5: the trespasser is not answered")
        await self._in_time(history.operating.end(), "L5: the operator is not answered")
        await self._in_time(history.moving.end(), "L5: the mover is not answered")
        await self._in_time(self._order_elections(), "L5: the operator is not answered")
        await self._in_time(history.forgetting.end(), "L5: the forgetter is not answered")
        await self._in_time(history.probing.end(), "L5: the prober is not answered")
        await self._in_time(history.tallies.end_producers(), "L5: a tallier is not answered")
        await self._until(lambda: not self._known.to_be_deleted, "L6: a topic is still there")
        await self._until(lambda: self._machines.are_ready, "L7: a broker does not start")
        await self._until(self._are_led, "L1: a partition has no leader")
        await self._until(self._are_moved, "L6: ")
        for key in self._partitions():
            self._check_log(key)
        await self._in_time(history.group.settle(), "L8: a member cannot leave the group")
        await self._until(self._is_all_read, "L8: not all is read")
        await self._until(lambda: history.tallies.is_all_read(self._leader), "L8")
        await self._in_time(history.tallies.end_reader(), "L5: a consumer cannot be closed")
        await self._in_time(self._delete_used_group(), "L5: the operator is not answered")
        await self._in_time(history.group.end(), "L5: a member cannot be closed")
        await self._in_time(history.reader.end(), "L5: a consumer cannot be closed")
        await self._in_time(self._check_committed(), "L5: the group's offsets are not told")
        await self._in_time(self._change_something(), "L7: the operator is not answered")
        await self._until(self._are_at_one, "at rest: ")
        compare(history)
        await self._in_time(Calm(history, self._leader).judge(), "L5: the operator is not answered")
        await self._until(self._are_led, "L1: a partition has no leader")
        await self._until(self._are_at_one, "at rest: ")
        await self._until(self._are_disks_clean, "S14: ")
        await self._in_time(history.operating.admin.close(), "L5: the operator cannot be closed")
        await self._be_quiet()

    # Waiting

    async def _in_time(self, work: Awaitable[object], sentence: str) -> None:
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait((task,), timeout=PATIENCE_S)
        require(bool(done), sentence)
        task.result()

    async def _until(self, condition: Callable[[], bool | str], sentence: str) -> None:
        """`condition` is true, or a text that says what is wrong; then an empty one is good."""
        end_s = self._loop.time() + PATIENCE_S
        while True:
            found = condition()
            if found is True or found == "":
                return
            if self._loop.time() >= end_s:
                raise Violation(f"{sentence}{found or ''}")
            await asyncio.sleep(0.2)

    # Leaders

    async def _order_elections(self) -> None:
        """As an operator: have somebody lead where all who might have lost everything (R4)."""
        history = self._history
        if EMPTY_DISK not in history.shape.kinds:
            return
        await asyncio.sleep(QUIET_S)  # by then the controller has judged all disks
        lost = [key for key, state in self._known.states.items() if state.emptied]
        if lost:
            history.trace.note(f"operator has leaders elected of {lost}")
            elect = history.operating.admin.elect_leaders(lost, is_unclean=True)
            await history.operating.process.run(elect)
            history.trace.count("operator had an empty replica lead")

    def _partitions(self) -> list[TopicPartition]:
        counts = self._known.counts()
        return [TopicPartition(name, n) for name in sorted(counts) for n in range(counts[name])]

    def _leader(self, key: TopicPartition) -> Partition | None:
        for broker in self._machines.brokers():
            found = broker.service.replicas.partitions.get(key)
            if found is not None and found.is_leader:
                return found
        return None

    def _are_led(self) -> bool:
        return all(self._leader(key) is not None for key in self._partitions())

    def _are_moved(self) -> str:
        for name, topic in self._known.topics.items():
            for what in (topic.adding, topic.removing, topic.removed):
                if what:
                    return f"{name} is still being moved: {topic}"
        return ""

    # Logs

    def _check_log(self, key: TopicPartition) -> None:
        """The leader's log against what was sent, acknowledged and read."""
        partition = self._leader(key)
        assert partition is not None
        stored = _stored(partition)
        for producer in self._history.producers:
            self._check_sent(key, producer, stored, partition.log.start_offset)
        self._history.zombies.check(key, stored, partition.log.start_offset)
        history = self._history
        for (seen_key, offset), (value, seen_s) in history.readings.seen.items():
            if seen_key == key and offset >= partition.log.start_offset:
                is_there = stored.get(offset) == value
                may_change = history.readings.may_change(key, offset, seen_s)
                require(
                    is_there or may_change, f"S17: {key} at {offset} changed after it was read", key
                )

    def _check_sent(
        self, key: TopicPartition, producer: Producing, stored: Stored, start_offset: int
    ) -> None:
        mark, created_s = producer.name.encode() + b":", self._known.created_s[key.topic]
        places: dict[bytes, list[int]] = {}
        for offset, value in stored.items():
            if value.startswith(mark):
                places.setdefault(value, []).append(offset)
        numbers: list[tuple[int, int]] = []
        for record in producer.records:
            if record.key != key:
                require(record.value not in places, f"S9: {record.key}'s record is in {key}", key)
                continue
            found = places.get(record.value, [])
            name = f"{producer.name}'s {record.number} of {key}"
            require(not (found and record.is_refused), f"S9: {name} was refused, and is there", key)
            may_repeat = producer.may_repeat or len(found) <= 1
            require(may_repeat, f"S10: {name} is there at {found}", key)
            was_before = record.acked_s != NEVER_S and record.acked_s < created_s
            require(not (found and was_before), f"S14: {name} is of the deleted topic", key)
            numbers += [(offset, record.number) for offset in found]
            is_promised = record.acked_s != NEVER_S and producer.acks != "0"
            if is_promised and record.sent_s > created_s and record.offset >= start_offset:
                is_there = record.offset in found
                place = record.sent_s, record.offset
                if not self._history.may_be_lost(key, *place, producer.acks):
                    sentence = f"S1: {name} was acknowledged at {record.offset}, acks="
                    require(is_there, f"{sentence}{producer.acks}, and is at {found}", key)
        if producer.is_idempotent:
            in_order = [number for _, number in sorted(numbers)]
            require(in_order == sorted(in_order), f"S10: {key} is out of order: {in_order}", key)

    # Consumers

    def _is_all_read(self) -> str:
        """L8, and for the topic that stays: each record that is there was given to the group."""
        history = self._history
        found, ends, read = history.group.found, history.group.ends(), history.reader.found
        for key in self._partitions():
            partition = self._leader(key)
            if partition is None:
                return f": {key} has no leader"
            log = partition.log
            if key.topic != TOPIC or history.may_be_lost(key, 0.0):
                is_empty = log.start_offset == log.end_offset
                if ends.get(key, 0) < log.end_offset and not is_empty:
                    return f": {key} to {ends.get(key, 0)} of {log.end_offset}"
                continue
            values = self._values(partition)
            for name, given in (("the group", found), (history.reader.name, read)):
                if missing := sorted(values - given):
                    return f": {name} was not given {missing[0][:20]!r} of {key}"
        return ""

    def _values(self, partition: Partition) -> set[bytes]:
        """What is in its log, which nobody appends to any more, and was in all replicas': by its
        own retention another one, read from before, may begin later."""
        key, brokers = partition.key, self._history.machines.brokers()
        found = [each.service.replicas.partitions.get(key) for each in brokers]
        start = max(each.log.start_offset for each in (partition, *found) if each is not None)
        place = key, start, partition.log.end_offset
        if place not in self._read:
            stored = _stored(partition).items()
            self._read[place] = {value for offset, value in stored if offset >= start}
        return self._read[place]

    async def _delete_used_group(self) -> None:
        """S21: a group that has members is not deleted."""
        run, admin = self._history.operating.process.run, self._history.operating.admin
        with suppress(KdistError):  # it is refused, or there is no group
            if (await run(admin.describe_groups([GROUP])))[GROUP].members:
                await run(admin.delete_groups([GROUP]))
                raise Violation(f"S21: {GROUP} was deleted, and has members")

    async def _check_committed(self) -> None:
        """S21: the group has committed what its members were given, and no more."""
        history = self._history
        committed = await history.operating.process.run(
            history.operating.admin.list_group_offsets(GROUP)
        )
        for key in history.stable_partitions():
            partition = self._leader(key)
            if partition is None or history.may_be_lost(key, 0.0):
                continue
            end = partition.log.end_offset
            found = committed.get(key)
            sentence = f"S21: the group has committed {found} of {key}, to {end}"
            require(found is None or found <= end, sentence, key)
            fault = history.assignments.fault(key, found)
            require(not fault, f"S21: {key}: {fault}", key)

    # The cluster

    async def _change_something(self) -> None:
        """L7: watches are set. A topic is created, changed and deleted, and all brokers know."""
        history, admin = self._history, self._history.operating.admin
        run = history.operating.process.run
        await run(admin.create_topic(_PROBE, len(self._machines.ids), 1))
        await self._until(self._are_led, "L7: a new topic has no leaders")
        name, value = "retention.ms", "1234567"
        await run(admin.incremental_alter_topic_configs(_PROBE, {name: value}))
        history.operating.require_setting(_PROBE, name, value)
        await self._until(lambda: self._has_setting(int(value)), "L7: a setting is not applied")
        await run(admin.delete_topics([_PROBE]))
        await self._until(lambda: not self._known.to_be_deleted, "L7: a topic is not deleted")

    def _has_setting(self, value: int) -> bool:
        logs = [
            log
            for broker in self._machines.brokers()
            for key, log in broker.service.directory.logs.items()
            if key.topic == _PROBE
        ]
        return bool(logs) and all(log.settings.retention_ms == value for log in logs)

    def _are_at_one(self) -> str:
        """What ZooKeeper has, the brokers have in memory, and the clients are told."""
        tree, brokers = self._history.cluster.ensemble.tree, self._machines.brokers()
        registered = sorted(map(int, tree.children(znodes.BROKERS.path())))
        if registered != list(self._machines.ids):
            return f"L7: the brokers {registered} are registered"
        active = [each.id for each in brokers if each.service.controller.is_active]
        if len(active) != 1:
            return f"L7: the controllers are {active}"
        topics = self._known.topics
        for broker in brokers:
            if broker._epoch != tree.get(znodes.BROKER.path(broker.id)).stat.czxid:
                return f"m{broker.id} does not know its epoch"
            told = {
                name: len(each.partitions) for name, each in broker.service.cache.topics.items()
            }
            if told != {name: len(each.partitions) for name, each in topics.items()}:
                return f"m{broker.id} tells clients of {told}"
        return difference(self._history)

    def _are_disks_clean(self) -> str:
        """No directory is there but those of partitions that the broker hosts, and strays that a
        power loss has left without their topic's id."""
        topics = self._known.topics
        for broker_id in self._machines.ids:
            names = self._history.cluster.disks[broker_id]._names
            wanted = {
                directory_name(TopicPartition(topic, number))
                for topic, assignment in topics.items()
                for number, replicas in assignment.partitions.items()
                if broker_id in replicas
            }
            entries = names.directory(LOG_DIR).entries
            there = {
                name
                for name, each in entries.items()
                if isinstance(each, Directory) and not _is_unknown(name, each)
            }
            if there != wanted:
                return f"m{broker_id} has {sorted(there - wanted)}, lacks {sorted(wanted - there)}"
        return ""

    async def _be_quiet(self) -> None:
        """L9 and L11: nobody asks anything any more, nothing waits, nothing is left."""
        ensemble, brokers = self._history.cluster.ensemble, self._machines.brokers()
        await asyncio.sleep(1)
        asked, requests = ensemble.requests, _answered(brokers)
        await asyncio.sleep(QUIET_S)
        asked, requests = ensemble.requests - asked, _answered(brokers) - requests
        pairs = len(brokers) * (len(brokers) - 1)  # of which each fetches again and again
        fetches_per_s = pairs / self._history.shape.fetch_wait_s
        most = (REQUESTS_PER_S * len(brokers) + fetches_per_s) * QUIET_S
        require(requests <= most, f"L9: {requests} requests in {QUIET_S} s of rest")
        most = ZOOKEEPER_REQUESTS_PER_S * QUIET_S * len(brokers)
        require(asked <= most, f"L9: {asked} questions to ZooKeeper in {QUIET_S} s of rest")
        for broker in brokers:
            left = len(broker.service.replicas.delayed)
            most = len(brokers) - 1  # the others' fetches
            require(left <= most, f"L11: {left} operations still wait on m{broker.id}")


def _is_unknown(name: str, directory: Directory) -> bool:
    """Whether it is a stray, of nobody knows which topic."""
    if not name.endswith(DirectoryState.STRAY):
        return False
    content = directory.entries.get(PARTITION_METADATA)
    try:
        decode_partition_metadata(content.data if isinstance(content, Content) else b"", name)
    except CorruptFile:  # a power loss may have left a part of it
        return True
    return False


def _answered(brokers: list[object]) -> int:
    return sum(
        each.answered + each.failed
        for broker in brokers
        for each in broker.measures.requests.values()  # type: ignore[attr-defined]
    )


def _stored(partition: Partition) -> dict[int, bytes]:
    """The records of a log, whose batches are sound, dense, and of the epochs that the leader tells
    of (S2, S5, S8)."""
    key, log = partition.key, partition.log
    stored: dict[int, bytes] = {}
    expected, epoch = log.segments[0].base_offset, -1
    for segment in log.segments if log.has_files else ():
        data, position = segment.file.read(0, segment.size), 0
        while position < len(data):
            header = read_header(data, position)
            fault = crc_fault(data, position, header)
            require(fault is None, f"S8: {key} at {header.base_offset}: {fault}", key)
            is_next = header.base_offset == expected
            require(is_next, f"S8: {key} has {header.base_offset} where {expected} follows", key)
            expected, last = header.next_offset, header.last_offset
            require(
                header.partition_leader_epoch >= epoch,
                f"S5: {key} has epoch {header.partition_leader_epoch} after {epoch} at {last}",
                key,
            )
            epoch, told = header.partition_leader_epoch, log.epochs.epoch_of(last)
            if last >= log.start_offset:
                sentence = f"S2: {key} has epoch {epoch} at {last}, and OffsetForLeaderEpoch says "
                require(told == epoch, f"{sentence}{told}", key)
            records = read_batch(data, position)
            stored |= {each.offset: each.value or b"" for each in records}
            position += header.size
    require(expected == log.end_offset, f"S8: {key} ends at {expected}, not {log.end_offset}", key)
    return {offset: value for offset, value in stored.items() if offset >= log.start_offset}
