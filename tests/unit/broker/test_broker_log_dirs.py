"""DescribeLogDirs, and levels of loggers described and changed through a broker (KIP-412)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pytest
from broker_configs import by_name, change, describe, replace

from kdist.broker.handlers import log_dirs
from kdist.errors import Error
from kdist.model import TopicPartition
from kdist.protocol.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kdist.protocol.describe_configs import BROKER_LOGGER
from kdist.protocol.describe_log_dirs import (
    API,
    AskedLogDirTopic,
    DescribeLogDirsRequest,
    LogDirResult,
)
from kdist.protocol.frame import encode_response
from kdist.protocol.incremental_alter_configs import APPEND, DELETE, SET
from kdist.runtime.diagnostics import LogLevels
from tests.simulator.cluster import Cluster
from tests.unit.replication.replication_world import CLICKS, VIEWS, World, append


def ask(world: World, asked: Iterable[TopicPartition] | None = None) -> LogDirResult:
    """The directory as it is described; the answer can be encoded at every version."""
    topics = None
    if asked is not None:
        topics = [AskedLogDirTopic(topic=each.topic, partitions=[each.partition]) for each in asked]
    request = DescribeLogDirsRequest(topics=topics)
    answer = log_dirs.describe(request, world.directory)
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


STORAGE = "kdist.storage"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    yield Cluster()
    logging.getLogger(STORAGE).setLevel(logging.NOTSET)


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
    (result,) = log_dirs.alter(request, world.directory).results
    (found,) = result.partitions
    assert (result.topic_name, found.partition_index) == ("clicks", partition)
    assert found.error_code == error


async def test_the_brokers_loggers_are_described_with_their_levels(cluster: Cluster) -> None:
    await cluster.started()
    client = await cluster.client()
    found = by_name(await describe(client, "1", BROKER_LOGGER))
    level = LogLevels().all()["root"]
    assert {"root", STORAGE, "kdist.storage.directory"} <= found.keys()
    assert (found["root"].value, found["root"].config_source) == (level, 6)
    assert not found["root"].read_only
    some = by_name(await describe(client, "1", BROKER_LOGGER, keys=["root", "nobody"]))
    assert list(some) == ["root"]


async def test_a_packages_level_is_that_of_all_its_loggers_until_it_is_removed(
    cluster: Cluster,
) -> None:
    await cluster.started()
    client = await cluster.client()
    for is_trial in (True, False):
        result = await change(
            client,
            (STORAGE, SET, "ERROR"),
            name="1",
            kind=BROKER_LOGGER,
            is_trial=is_trial,
        )
        assert (result.error_code, result.error_message) == (0, None)
        is_quiet = not logging.getLogger("kdist.storage.directory").isEnabledFor(logging.INFO)
        levels = by_name(await describe(client, "1", BROKER_LOGGER))
        assert (levels["kdist.storage.directory"].value == "ERROR") == (not is_trial)
        assert is_quiet or is_trial
    result = await change(client, (STORAGE, DELETE, None), name="1", kind=BROKER_LOGGER)
    assert result.error_code == 0
    levels = by_name(await describe(client, "1", BROKER_LOGGER))
    assert levels["kdist.storage.directory"].value == levels["root"].value


@pytest.mark.parametrize(
    ("broker", "asked", "error", "sentence"),
    [
        ("2", (STORAGE, SET, "INFO"), Error.INVALID_REQUEST, "this is broker 1, not broker '2'"),
        ("", (STORAGE, SET, "INFO"), Error.INVALID_REQUEST, "this is broker 1, not broker ''"),
        ("1", ("kdist.nobody", SET, "INFO"), Error.INVALID_CONFIG, "no logger kdist.nobody"),
        ("1", (STORAGE, SET, "LOUD"), Error.INVALID_CONFIG, "must be one of FATAL, ERROR, WARN"),
        ("1", (STORAGE, SET, None), Error.INVALID_REQUEST, "has no value"),
        ("1", ("root", DELETE, None), Error.INVALID_REQUEST, "must have a level"),
        ("1", (STORAGE, APPEND, "INFO"), Error.INVALID_REQUEST, "is set or removed"),
    ],
)
async def test_what_is_no_level_of_a_logger_of_this_broker_is_refused(
    cluster: Cluster, broker: str, asked: tuple[str, int, str | None], error: Error, sentence: str
) -> None:
    await cluster.started()
    client = await cluster.client()
    before = LogLevels().all()
    result = await change(client, (STORAGE, SET, "ERROR"), asked, name=broker, kind=BROKER_LOGGER)
    if asked[0] == STORAGE:  # named twice
        assert result.error_code == Error.INVALID_REQUEST
    result = await change(
        client, ("kdist.broker", SET, "ERROR"), asked, name=broker, kind=BROKER_LOGGER
    )
    assert result.error_code == error
    assert sentence in (result.error_message or "")
    assert LogLevels().all() == before


async def test_levels_are_not_replaced_all_together(cluster: Cluster) -> None:
    await cluster.started()
    client = await cluster.client()
    result = await replace(client, {STORAGE: "INFO"}, "1", BROKER_LOGGER)
    assert result.error_code == Error.INVALID_REQUEST
    assert "changed one by one" in (result.error_message or "")
    result = await describe(client, "2", BROKER_LOGGER)
    assert (result.error_code, result.configs) == (Error.INVALID_REQUEST, [])


def test_every_level_is_named_as_it_was_given() -> None:
    levels = LogLevels(logging.Logger("some", logging.WARNING))
    assert levels.all()["root"] == "WARN"
    for name in LogLevels.NAMES:
        levels.set("root", name)
        assert levels.all()["root"] == name
