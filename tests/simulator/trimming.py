"""What a broker promises that answers DeleteRecords: no replica that is alive begins lower.

One that was away meanwhile may, until it hears of it; and if it leads then, so does the partition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from kdist.broker.handlers import delete_records
from kdist.model import TopicPartition
from kdist.protocol.delete_records import TrimmedPartition, TrimmedPartitionResult
from kdist.replication.replicas import Replicas
from tests.simulator.bug import Bug, patched
from tests.simulator.record import Violation, require

if TYPE_CHECKING:
    from tests.simulator.history import History

Trim = Callable[..., Awaitable[TrimmedPartitionResult]]


@contextmanager
def trims_checked(history: History) -> Iterator[None]:
    """Within the block each broker's answer is looked at when it is given."""
    with patched(Bug(delete_records, "_trim", partial(_checked, history))):
        yield


def _checked(history: History, trim: Trim) -> Trim:
    async def checked(
        topic: str, asked: TrimmedPartition, replicas: Replicas, timeout_ms: int
    ) -> TrimmedPartitionResult:
        result = await trim(topic, asked, replicas, timeout_ms)
        if not result.error_code:
            key = TopicPartition(topic, asked.partition_index)
            try:
                _check(history, replicas, key, asked.offset, result.low_watermark)
            except (
                Violation
            ) as error:  # in a broker's code it might be taken for a bug of one request
                history.cluster.loop.end_run(error)
        return result

    return checked


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
