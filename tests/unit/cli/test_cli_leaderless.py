"""One partition of a topic has no leader: what has nothing to do with it goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from kdist import Admin, Consumer, NewTopic, Producer, SomeFailed, ToLatest, TopicPartition, aio
from kdist.agent.publisher import Publisher
from kdist.agent.queue import Queue, Queued
from kdist.cli.consume import consume, reading
from kdist.client.cluster import cluster_at, parse_addresses
from kdist.client.partitioner import partition_for
from kdist.errors import Error
from kdist.metrics.agent import AgentMetrics
from kdist.spark.options import read_options
from kdist.spark.resolving import plan_read
from tests.unit.cli.cli_cluster import CliCluster, cli_cluster

LED, LEADERLESS = TopicPartition("half", 0), TopicPartition("half", 1)
SOON = ("-X", "default.api.timeout.ms=300")


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    """The topic `half` has three records in each partition; the broker of the second is gone."""
    with cli_cluster(tmp_path_factory.mktemp("halved")) as cluster:
        with Admin(cluster.address) as admin, Producer(cluster.address) as producer:
            admin.create_topics([NewTopic("half", replicas=[[1], [2]])])
            for each in range(6):
                producer.send("half", b"%d" % each, partition=each % 2)
            producer.flush(10)
            for group in ("shown", "moved", "called"):
                admin.alter_group_offsets(group, {LED: 1, LEADERLESS: 1})
            cluster.stop_broker(2)
            cluster.until(
                lambda: admin.describe_topics(["half"])["half"].partitions[1].leader is None
            )
        yield cluster


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "_LEADERS_S", 0)


def test_a_partition_that_has_a_leader_is_read(halved: CliCluster) -> None:
    words = ("half", "--partition", 0, "--from-beginning", "--until-end")
    assert halved.done("consume", *words) == "0\n2\n4\n"


def test_the_others_are_read_and_what_was_not_is_said(halved: CliCluster, impatient: None) -> None:
    result = halved.run("consume", "half", "--from-beginning", "--until-end")
    assert (result.exit_code, result.stdout) == (1, "0\n2\n4\n")
    assert result.stderr == "kdist: what is in half-1 is left out: no broker leads it\n"


def test_who_waits_for_records_is_given_those_of_the_others(halved: CliCluster) -> None:
    assert halved.done("consume", "half", "--from-beginning", "--max", 3) == "0\n2\n4\n"


def test_a_member_reads_the_others(halved: CliCluster, impatient: None) -> None:
    words = ("consume", "half", "--group", "readers", "--from-beginning")
    assert halved.done(*words, "--max", 2) == "0\n2\n"
    result = halved.run(*words, "--until-end")
    assert (result.exit_code, result.stdout) == (1, "4\n")
    assert halved.done("consume", "half", "--group", "called", "--max", 1) == "2\n"


def test_who_waits_for_records_in_silence_asks_only_leaders_whether_they_are_there(
    halved: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command failed after 30 s without records, and read nothing for another 30 s before."""
    monkeypatch.setattr(reading, "_SILENCE_NS", 0)

    async def wait() -> None:
        with cluster_at(parse_addresses(halved.address), "test") as cluster:
            async with aio.Consumer(halved.address, default_api_timeout_ms=300) as consumer:
                consumer.assign([LED, LEADERLESS])
                await reading.Silence(cluster, consumer).check(has_records=False)

    asyncio.run(wait())


def test_a_group_is_reset_where_there_are_leaders(halved: CliCluster) -> None:
    result = halved.run("groups", "reset", *SOON, "--yes", "--json", "shown", "--to-latest")
    moves = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["partition"], each["after"]) for each in moves] == [(0, 3)]
    assert result.exit_code == 1
    assert "half-1" in result.stderr
    with Admin(halved.address) as admin:
        assert admin.list_group_offsets("shown") == {LED: 3, LEADERLESS: 1}


def test_an_admin_client_says_which_partitions_failed(halved: CliCluster) -> None:
    with Admin(halved.address, default_api_timeout_ms=300) as admin:
        with pytest.raises(SomeFailed) as caught:
            admin.list_offsets([LED, LEADERLESS])
        assert caught.value.done == {LED: 3}
        assert [*caught.value.failed] == [LEADERLESS]
        assert caught.value.error is Error.LEADER_NOT_AVAILABLE
        with pytest.raises(SomeFailed):
            admin.reset_group_offsets("moved", ToLatest())
        assert admin.list_group_offsets("moved") == {LED: 3, LEADERLESS: 1}
        assert admin.list_offsets([LED]) == {LED: 3}


def test_a_topics_partitions_are_counted(halved: CliCluster) -> None:
    with Consumer(halved.address, default_api_timeout_ms=1) as consumer:
        assert consumer.partitions_for("half") == [LED, LEADERLESS]


def test_a_read_of_other_partitions_is_planned(halved: CliCluster) -> None:
    options = {"kafka.bootstrap.servers": halved.address, "assign": '{"half": [0]}'}
    assert plan_read(read_options(options)) == [(LED, 0, 3)]


def test_an_agent_whose_partition_has_a_leader_sends(halved: CliCluster) -> None:
    host = next(name for name in ("a", "b", "c", "d") if partition_for(name.encode(), 2) == 0)

    async def run() -> bool:
        queue = Queue(10)
        queue.add(Queued(1, b"5"))
        with cluster_at(parse_addresses(halved.address), "agent", retry_ms=0) as cluster:
            return await Publisher(cluster, "half", host, queue, AgentMetrics()).send_all()

    with Admin(halved.address) as admin:
        end = admin.list_offsets([LED])[LED]
        assert asyncio.run(run())
        assert admin.list_offsets([LED])[LED] == end + 1
