"""What is asked of a log before a fetch is answered from it, and whether what it had is enough."""

from __future__ import annotations

from collections.abc import Iterable

from kdist.errors import ApiError, Error
from kdist.protocol.fetch import DivergingEpoch, FetchPartition, FetchRequest
from kdist.records.batch import HEADER_SIZE, read_header
from kdist.replication.leadership import Following
from kdist.replication.partition import Partition
from kdist.storage.log import Log
from kdist.storage.reading import Slice, is_followed

LAST_VERSION_OF_MAGIC_1 = 3

Read = tuple[Log, Slice, int]
"""A log, the records found in it, and the end of what may be read of it."""


def bytes_wanted(request: FetchRequest, bytes_max: int) -> int:
    """How many bytes of records a fetch waits for; not more than it may get, 0 if it waits not."""
    return min(request.min_bytes, bytes_max) if request.max_wait_ms > 0 else 0


def is_enough(size: int, wanted: int, reads: Iterable[Read]) -> bool:
    """Whether a fetch that found `size` bytes in these reads is to be answered with them.

    Records behind which there are more to read are enough, as in Kafka if they are in an older
    segment: a reader that is behind gains nothing by waiting.
    """
    return size >= wanted or any(is_followed(*each) for each in reads)


def is_awaited(partition: Partition, offset: int) -> bool:
    """Whether a follower has nothing for a consumer at this offset so far, and others may have."""
    high_watermark, leaders = partition.high_watermark, partition.leader_high_watermark
    known_end = max(partition.log.end_offset, leaders)
    return high_watermark < offset <= known_end or high_watermark == offset < leaders


def require_replica(partition: Partition, current_leader_epoch: int) -> None:
    """As `Partition.require_leader`, but a follower will do: for consumers that were sent to it,
    and for tools that compare replicas.

    They are shown what is below its own high watermark. One without a leader will not do, nor one
    whose log is being cut off.
    """
    role = partition.role
    if not isinstance(role, Following) or role.leader < 0 or partition.log.is_truncating:
        partition.require_leader(current_leader_epoch)
    elif 0 <= current_leader_epoch != role.epoch:
        is_older = current_leader_epoch < role.epoch
        raise ApiError(Error.FENCED_LEADER_EPOCH if is_older else Error.UNKNOWN_LEADER_EPOCH)


def check_format(log: Log, version: int) -> None:
    """Raise `ApiError` if a client of this Fetch version cannot read the topic's format."""
    if log.settings.compression_type == "zstd":
        raise ApiError(Error.UNSUPPORTED_COMPRESSION_TYPE, f"Fetch {version} does not know zstd")
    if version <= LAST_VERSION_OF_MAGIC_1 and not log.settings.message_downconversion_enable:
        raise ApiError(Error.UNSUPPORTED_VERSION, "message.downconversion.enable is off")


def find_divergence(partition: Partition, asked: FetchPartition) -> DivergingEpoch | None:
    """Where the client's log diverges from this one; None if it does not (KIP-595).

    Only the leader tells: a follower may just not have what was read elsewhere.
    """
    start_offset = partition.log.start_offset
    if asked.fetch_offset < start_offset:  # whether or not the epochs diverge
        raise ApiError(Error.OFFSET_OUT_OF_RANGE, f"{partition.key} starts at {start_offset}")
    epoch, end_offset = partition.epoch_end(asked.last_fetched_epoch)
    if epoch < 0:
        raise ApiError(
            Error.OFFSET_OUT_OF_RANGE, f"epoch {asked.last_fetched_epoch} is not in the log"
        )
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        if not partition.is_leader:
            raise ApiError(Error.OFFSET_OUT_OF_RANGE, "this follower has something else there")
        return DivergingEpoch(epoch=epoch, end_offset=end_offset)
    return None


def is_cut_short(part: Slice) -> bool:
    """Whether even the first batch is incomplete."""
    return part.size < HEADER_SIZE or read_header(part.read(HEADER_SIZE)).size > part.size
