"""Log directories: the replicas on each broker's disks, and how much space is left."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kdist.client.admin.asking import ask_brokers
from kdist.client.admin.outcomes import settled
from kdist.client.cluster import Cluster, raise_for
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.describe_log_dirs import DescribeLogDirsRequest, LogDirPartition, LogDirResult

_UNKNOWN = -1  # as a volume's size


class Replica(NamedTuple):
    """A replica's files. `lag` is how many records it is behind the partition's high watermark."""

    partition: TopicPartition
    size_bytes: int
    lag: int
    is_future: bool = False


class LogDirectory(NamedTuple):
    """A log directory; `error` is None unless it has failed.

    `total_bytes` and `usable_bytes` are those of its volume, None if the broker does not say.
    """

    path: str
    error: Error | None
    total_bytes: int | None
    usable_bytes: int | None
    replicas: tuple[Replica, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all replicas in it."""
        return sum(each.size_bytes for each in self.replicas)


async def describe_log_dirs(
    cluster: Cluster, brokers: Iterable[int] | None = None
) -> dict[int, list[LogDirectory]]:
    """The log directories of each broker, with None of all brokers; `SomeFailed`, by broker id."""

    wanted = None if brokers is None else list(brokers)
    return settled(
        await ask_brokers(cluster, lambda broker: log_directories(cluster, broker), wanted)
    )


async def log_directories(cluster: Cluster, broker: int) -> list[LogDirectory]:
    """The log directories of one broker, which must be known to `cluster`."""
    answer = await cluster.ask(DescribeLogDirsRequest(topics=None), broker)
    raise_for(answer.error_code, f"broker {broker}")
    return [_directory(each) for each in answer.results]


def _directory(found: LogDirResult) -> LogDirectory:
    total, usable = (
        None if size == _UNKNOWN else size for size in (found.total_bytes, found.usable_bytes)
    )
    replicas = (_replica(topic.name, each) for topic in found.topics for each in topic.partitions)
    error = Error.of(found.error_code) if found.error_code else None
    return LogDirectory(found.log_dir, error, total, usable, tuple(sorted(replicas)))


def _replica(topic: str, found: LogDirPartition) -> Replica:
    partition = TopicPartition(topic, found.partition_index)
    return Replica(partition, found.partition_size, found.offset_lag, found.is_future_key)
