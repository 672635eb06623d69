"""What a broker promises that answers DeleteRecords: no replica that is alive begins lower.

One that was away meanwhile may, until it hears of it; and if it leads then, so does the partition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from kdist.broker.handlers import delete_records
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.delete_records import (
    HIGH_WATERMARK,
    TrimmedPartition,
    TrimmedPartitionResult,
)
from kdist.replication.in_sync import RemoteReplica
from kdist.replication.partition import Partition
from kdist.replication.replicas import Replicas
from kdist.storage.names import LOG_START_OFFSETS
from tests.simulator.bug import Bug, patched
from tests.simulator.contracts import saved_offset
from tests.simulator.record import Violation, require

if TYPE_CHECKING:
    from tests.simulator.history import History

Trim = Callable[..., Awaitable[TrimmedPartitionResult]]


@contextmanager
def trims_checked(history: History) -> Iterator[None]:
    """Within the block each broker's answer is looked at when it is given."""
    waited = Bug(Partition, "await_deleted", partial(_await_deleted, history))
    with patched(Bug(delete_records, "_trim", partial(_checked, history)), waited):
        yield


def _checked(history: History, trim: Trim) -> Trim:
    async def checked(
        topic: str, asked: TrimmedPartition, replicas: Replicas, timeout_ms: int
    ) -> TrimmedPartitionResult:
        key = TopicPartition(topic, asked.partition_index)
        leading = replicas.partitions.get(key)
        mark = leading.high_watermark if leading is not None else 0
        result = await trim(topic, asked, replicas, timeout_ms)
        if not result.error_code:
            offset = mark if asked.offset == HIGH_WATERMARK else asked.offset
            try:
                sentence = f"S7: {key} was deleted before {offset}, and committed to {mark}"
                require(offset <= mark, sentence, key)
                _check_saved(leading, offset)
                _check(history, replicas, key, asked.offset, result.low_watermark)
            except (
                Violation
            ) as error:  # in a broker's code it might be taken for a bug of one request
                history.cluster.loop.end_run(error)
        return result

    return checked


def _check_saved(leading: Partition | None, offset: int) -> None:
    """Where the log begins is on the leader's disk."""
    if leading is None or leading.log.start_offset < offset or not leading.log.has_files:
        return  # nothing is left of it, after a loss
    saved = saved_offset(leading.log.context.files, LOG_START_OFFSETS, leading.key)
    is_saved = leading.log.is_closed or saved >= offset
    require(is_saved, f"S6: {leading.key} was deleted before {offset}, saved is {saved}")


def _await_deleted(history: History, wait: Callable[..., None]) -> Callable[..., None]:
    """All whom the leader takes to be alive have deleted them, if they fetch in this life."""

    def await_seen(
        self: Partition, offset: int, timeout_ms: int, done: Callable[[Error], None]
    ) -> None:
        def seen(error: Error) -> None:
            if error is Error.NONE and self.in_sync is not None:
                for each in self.in_sync.remotes.values():
                    if self.in_sync._alive(each.broker_id):
                        history.checked(_check_deleted, history, self, each, offset)
            done(error)

        wait(self, offset, timeout_ms, seen)

    return await_seen


def _check_deleted(
    history: History, leading: Partition, remote: RemoteReplica, offset: int
) -> None:
    broker = history.cluster.brokers[remote.broker_id]
    if broker._service is None or broker._epoch != remote.broker_epoch:
        return
    found = broker.service.replicas.partitions.get(leading.key)
    if found is not None and found.topic_id == leading.topic_id:
        start, key = found.log.start_offset, leading.key
        sentence = f"S6: {key} was deleted before {offset}, and begins at {start}"
        require(start >= offset, f"{sentence} on m{broker.id}", key)


def _check(
    history: History, replicas: Replicas, key: TopicPartition, offset: int, told: int
) -> None:
    known, leading = history.known, replicas.partitions.get(key)
    state, topic = known.states.get(key), known.topics.get(key.topic)
    if leading is None or state is None or topic is None or leading.topic_id != topic.topic_id:
        return  # it is deleted meanwhile
    require(told >= offset, f"S6: {key} was deleted before {offset}, and begins at {told}", key)
    if (leading.role.epoch, leading.is_leader) != (state.leader_epoch, True):
        return  # who is alive is known late to who has been replaced
    assigned, ready = topic.partitions.get(key.partition, ()), history.machines.brokers()
    settled = {*assigned} & {*history.copies.electable.registered()}
    for broker in ready:
        found = broker.service.replicas.partitions.get(key)
        if found is None or found.topic_id != topic.topic_id or found.log.start_offset >= told:
            continue
        if broker.id in settled and broker.id not in topic.adding.get(key.partition, ()):
            sentence = f"S6: {key} was deleted before {told}, and begins at"
            require(False, f"{sentence} {found.log.start_offset} on m{broker.id}", key)
    if not {*assigned} <= {each.id for each in ready}:
        history.count("a replica was away while records were deleted")
    history.count("records deleted on all who are alive")
