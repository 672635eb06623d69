"""DescribeLogDirs: the one directory, and what each replica takes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kdist.broker.handlers import alter_replica_log_dirs, describe_log_dirs
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kdist.protocol.describe_log_dirs import (
    API,
    AskedLogDirTopic,
    DescribeLogDirsRequest,
    LogDirResult,
)
from kdist.protocol.envelope import encode_response
from tests.unit.replication.replication_world import CLICKS, VIEWS, World, append


def ask(world: World, asked: Iterable[TopicPartition] | None = None) -> LogDirResult:
    """The directory as it is described; the answer can be encoded at every version."""
    topics = None
    if asked is not None:
        topics = [AskedLogDirTopic(topic=each.topic, partitions=[each.partition]) for each in asked]
    request = DescribeLogDirsRequest(topics=topics)
    answer = describe_log_dirs.answer(request, world.directory)
    for version in range(API.newest + 1):
        assert encode_response(version, 1, answer)
    (result,) = answer.results
    return result


def sizes(result: LogDirResult) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, each.partition_index): each.partition_size
        for topic in result.topics
        for each in topic.partitions
    }


def test_every_replica_is_described_with_its_size() -> None:
    world = World()
    partition = world.lead()
    world.lead(VIEWS)
    append(world, partition, b"x" * 1000)
    result = ask(world)
    assert (result.error_code, result.log_dir) == (0, "/d01")
    assert sizes(result) == {
        CLICKS: world.disk.size("/d01/clicks-0/" + "0" * 20 + ".log"),
        VIEWS: 0,
    }
    assert sizes(result)[CLICKS] > 1000
    assert 0 < result.usable_bytes < result.total_bytes


def test_only_requested_replicas_of_this_broker_are_described() -> None:
    world = World()
    world.lead()
    world.lead(VIEWS)
    assert sizes(ask(world, [VIEWS, TopicPartition("views", 9)])) == {VIEWS: 0}
    assert sizes(ask(world, [])) == {}


def test_a_leader_has_no_lag_though_its_log_goes_beyond_the_high_watermark() -> None:
    world = World()
    partition = world.lead(flush_before_expose=True)
    append(world, partition, b"a", b"b")
    assert partition.high_watermark < partition.log.end_offset
    assert ask(world).topics[0].partitions[0].offset_lag == 0


@pytest.mark.parametrize(
    ("path", "partition", "error"),
    [
        ("/d01", 0, Error.NONE),
        ("/d01", 1, Error.REPLICA_NOT_AVAILABLE),
        ("/d02", 0, Error.LOG_DIR_NOT_FOUND),
    ],
)
def test_a_replica_is_in_the_one_directory_and_moves_to_no_other(
    path: str, partition: int, error: Error
) -> None:
    world = World()
    world.lead()
    topic = AlterReplicaLogDirTopic(name="clicks", partitions=[partition])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
    (result,) = alter_replica_log_dirs.answer(request, world.directory).results
    (found,) = result.partitions
    assert (result.topic_name, found.partition_index) == ("clicks", partition)
    assert found.error_code == error
