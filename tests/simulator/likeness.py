"""What is alike once nothing goes on: a partition's replicas, and what all brokers know of it.

L2: the ISR is whole. L3, L4: all logs are the same, and all of them is committed. L12: each
follower is fetched for once, from its leader in its epoch. L13: each log has a flush mark if it is
to be flushed first, and else none, durably. S10, S11: producers' sequences have no gap, and all
replicas know the same of them. S13: ZooKeeper, controller and brokers tell the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kdist.broker.broker import Broker
from kdist.model import TopicPartition
from kdist.records.batch import read_header
from kdist.replication.follower_session import FetchState
from kdist.replication.partition import Partition
from kdist.storage.log import Log
from kdist.storage.names import flush_mark_in
from kdist.zk.values import PartitionState
from tests.simulator.record import require

if TYPE_CHECKING:
    from tests.simulator.history import History


_EACH = 1 << 10


def difference(history: History) -> str:
    """What is not yet alike; "" if all is."""
    brokers = {each.id: each for each in history.machines.brokers()}
    for key, state in history.known.states.items():
        assigned = history.known.topics[key.topic].partitions[key.partition]
        if sorted(state.isr) != sorted(assigned) or state.eligible:
            return f"L2: {key} is assigned to {assigned}, and has {state}"
        for told, where in _told(history, key):
            if told != (state.leader, state.leader_epoch, state.isr):
                return f"S13: {key} has {state}, and {where} has {told}"
        found = _difference(key, state, {each: brokers[each] for each in assigned})
        if found:
            return found
    return ""


def _told(history: History, key: TopicPartition) -> Iterator[tuple[object, str]]:
    for broker in history.machines.brokers():
        cached = broker.service.cache.state_of(key)
        told = cached and (cached.leader, cached.leader_epoch, tuple(cached.isr))
        yield told, f"m{broker.id}'s metadata"
        term = broker.service.controller._term
        if term is not None:
            state = term.cluster.leader_and_isr(key)
            told = state and (state.leader, state.leader_epoch, state.isr)
            yield told, f"controller m{broker.id}"


def _difference(key: TopicPartition, state: PartitionState, hosts: dict[int, Broker]) -> str:
    partitions = {i: each.service.replicas.partitions.get(key) for i, each in hosts.items()}
    leading = partitions[state.leader]
    if leading is None:
        return f"L1: m{state.leader} does not host {key}"
    log = leading.log
    wanted = log.end_offset, log.end_offset
    for broker_id, partition in partitions.items():
        if partition is None:
            return f"L3: m{broker_id} does not host {key}"
        own = partition.log
        found = own.end_offset, partition.high_watermark
        # It may begin later: an earlier leader deleted records, which died before all had heard.
        if found != wanted or own.start_offset < log.start_offset:
            return f"L3: {key} on m{broker_id} is {own}, committed {found[1]}, its leader's {log}"
        if partition.leader_epoch != state.leader_epoch:
            return f"S13: {key} on m{broker_id} has {partition.role}"
        if fault := _fetching_fault(hosts[broker_id], partition):
            return f"L12: {key} on m{broker_id} {fault}"
        if fault := _mark_fault(hosts[broker_id], own):
            return f"L13: {key} on m{broker_id} {fault}"
    return ""


def _mark_fault(broker: Broker, log: Log) -> str:
    files: Any = broker.context.files
    if not log.has_files:
        return "has no files"
    found = files._names.directory(log.directory)
    marked, is_first = {*filter(flush_mark_in, found.entries)}, log.settings.flush_before_expose
    durable = {*filter(flush_mark_in, found.durable)}
    told = (
        f"is set to {is_first}, is {log.is_flushed_first}, and has {marked}, on the disk {durable}"
    )
    is_right = bool(log.flush_mark and marked) if is_first else not (marked or durable)
    return "" if is_right and log.is_flushed_first == is_first else told


def _fetching_fault(broker: Broker, partition: Partition) -> str:
    fetchers, key = broker.service.replicas._fetchers._fetchers, partition.key
    found = {i: each.followed[key] for i, each in fetchers.items() if key in each.followed}
    if partition.is_leader:
        return f"leads, and is fetched from {list(found)}" if found else ""
    if list(found) != [partition.role.leader]:  # type: ignore[union-attr]
        return f"has {partition.role}, and is fetched from {list(found)}"
    (followed,) = found.values()
    is_fetched = followed.is_current and followed.partition is partition
    is_ready = followed.state is FetchState.READY
    return "" if is_fetched and is_ready else f"is {followed.state.value} in {followed.role}"


def compare(history: History) -> None:
    """Raise a violation unless replicas agree in what they know of producers (S10, S11), and with
    what is in their logs."""
    for key, state in history.known.states.items():
        replicas: dict[int, Partition] = {}
        is_compacted = history.copies.of(key).table is not None
        for broker in history.machines.brokers():
            partition = broker.service.replicas.partitions.get(key)
            if partition is not None:
                history.copies.look(broker.id, partition)
                replicas[broker.id] = partition
                _check_sequences(broker, partition, is_compacted=is_compacted)
        leader = replicas[state.leader]
        for broker_id, replica in replicas.items():
            # Records may have been deleted of one alone: the others were away, or came to lead.
            start = max(leader.log.start_offset, replica.log.start_offset)
            known, leaders = (
                _producers(each, start, 1 if is_compacted else _EACH) for each in (replica, leader)
            )
            sentence = f"S11: m{broker_id} knows of {key}'s producers {known}, its leader {leaders}"
            require(known == leaders, sentence, key)


def _producers(partition: Partition, start: int, last: int) -> dict[int, tuple[object, ...]]:
    """What is known of them by batches that are in the log from `start` on: the `last` of each."""
    found = {}
    for producer, each in partition.log.producers.producers.items():
        batches = [batch[:3] for batch in each.batches if batch.last_offset >= start][-last:]
        if batches:
            found[producer] = each.epoch, batches
    return found


def _check_sequences(broker: Broker, partition: Partition, *, is_compacted: bool) -> None:
    """S10, and that each producer's last batch in the log is the last that is known of. Batches
    between may be missing in a compacted one."""
    last: dict[int, tuple[int, int]] = {}
    for segment in partition.log.segments if partition.log.has_files else ():
        data, position = segment.file.read(0, segment.size), 0
        while position < len(data):
            header = read_header(data, position)
            position += header.size
            producer, epoch = header.producer_id, header.producer_epoch
            if producer < 0 or header.last_offset < partition.log.start_offset:
                continue
            before = last.get(producer)
            if before is not None and before[0] != epoch:
                sentence = f"S10: producer {producer} has epoch {epoch} after {before}"
                is_next = epoch > before[0] and (is_compacted or not header.base_sequence)
                require(is_next, f"{sentence}, from {header.base_sequence} on", partition.key)
            if before is not None and before[0] == epoch and not is_compacted:
                sentence = f"S10: producer {producer} has {header.base_sequence} after {before[1]}"
                require(header.base_sequence == before[1] + 1, sentence, partition.key)
            last[producer] = epoch, header.last_sequence
    for producer, (epoch, sequence) in last.items():
        found = partition.log.producers.producer(producer)
        told = found and (found.epoch, found.last_sequence)
        known = f"m{broker.id} knows {told} of producer {producer}"
        sentence = f"S11: {known}, and {sequence} is in the log"
        require(told == (epoch, sequence), sentence, partition.key)
