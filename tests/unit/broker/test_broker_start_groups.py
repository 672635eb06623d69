"""Groups through a whole broker: commits are in the log, read back, and gone with topics."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from kdist.broker import offsets_log
from kdist.broker.broker import Broker
from kdist.errors import Error, OutOfDescriptors
from kdist.groups.context import partition_for
from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.protocol.compiler import put_versioned
from kdist.protocol.delete_topics import DeleteTopicsRequest
from kdist.protocol.find_coordinator import FindCoordinatorRequest
from kdist.protocol.frame import RequestHeader, encode_request
from kdist.protocol.group_records import (
    VALUE_VERSION,
    GroupMember,
    GroupMetadataKey,
    GroupMetadataValue,
)
from kdist.protocol.list_groups import ListGroupsRequest
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from kdist.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchTopic
from kdist.runtime import steps
from kdist.storage.log import Log
from kdist.storage.reading import Slice
from kdist.testing.memory_zookeeper import MemoryZooKeeper
from kdist.zk.client import Create, Delete
from tests.simulator.cluster import Cluster, create, produce
from tests.unit.broker.test_broker_dispatch import raw
from tests.unit.broker.test_broker_metadata import ask


def commit_request(
    group: str, offset: int, metadata: str = "", topic: str = "clicks"
) -> OffsetCommitRequest:
    part = OffsetCommitPartition(
        partition_index=0, committed_offset=offset, committed_metadata=metadata
    )
    return OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitTopic(name=topic, partitions=[part])]
    )


async def commit(
    client: Client, group: str, offset: int, metadata: str = "", topic: str = "clicks"
) -> int:
    answer = await client.send(commit_request(group, offset, metadata, topic), 2)
    error: int = answer.topics[0].partitions[0].error_code
    return error


async def committed(client: Client, group: str) -> tuple[int, int]:
    """Error and offset; no offset where the whole request is refused."""
    topic = OffsetFetchTopic(name="clicks", partition_indexes=[0])
    answer = await client.send(OffsetFetchRequest(group_id=group, topics=[topic]), 2)
    if answer.error_code:
        return answer.error_code, -1
    return 0, answer.topics[0].partitions[0].committed_offset


async def committed_after_start(cluster: Cluster) -> tuple[int, int]:
    """Group g's commit, from a broker that is started now and has loaded all offsets."""
    broker = await cluster.started()
    await cluster.until(lambda: not broker.service.coordinator._registry.is_loading)
    return await committed(await cluster.client(), "g")


async def with_offsets_topic(cluster: Cluster, broker: Broker) -> None:
    broker.service.creation.create_offsets_topic()
    last = TopicPartition("__consumer_offsets", 2)
    await cluster.until(lambda: broker.service.cache.has(last))


async def coordinating(cluster: Cluster, **settings: str) -> tuple[Broker, Client]:
    """A broker that coordinates groups and has the topic clicks, and a client's connection."""
    broker, client = await cluster.started(**settings), await cluster.client()
    await create(client, "clicks")
    await with_offsets_topic(cluster, broker)
    return broker, client


ROOT = "/brokers/topics/clicks"
PATHS = (ROOT, f"{ROOT}/partitions", f"{ROOT}/partitions/0", f"{ROOT}/partitions/0/state")


async def with_a_commit(cluster: Cluster) -> Client:
    """A client of a broker with a topic, and a group that has committed 5 for it."""
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    await with_offsets_topic(cluster, broker)
    assert await commit(client, "g", 5) == 0
    return client


async def remove(zk: MemoryZooKeeper) -> list[bytes]:
    """Remove the topic's znodes by hand; returns what they held."""
    held = [(await zk.get(path)).data for path in PATHS]
    await zk.multi([Delete(path) for path in reversed(PATHS)])
    return held


async def is_known(client: Client) -> bool:
    (told,) = (await ask(client, 9, "clicks", allow_auto_topic_creation=False)).topics
    return bool(told.error_code == 0)


async def until_known(client: Client, wanted: bool) -> None:
    while await is_known(client) is not wanted:
        await asyncio.sleep(0.1)


async def test_a_broker_uses_the_offsets_topic_that_another_one_created(cluster: Cluster) -> None:
    first = await cluster.started(1)
    other = await cluster.started(2, offsets_topic_num_partitions="5")
    client, far = await cluster.client(1), await cluster.client(2)
    await create(client, "clicks")
    await with_offsets_topic(cluster, first)  # of 3
    last = TopicPartition("__consumer_offsets", 2)
    await cluster.until(lambda: other.service.cache.has(last))
    for number in range(20):
        asked = FindCoordinatorRequest(key=f"g{number}")
        found = await client.send(asked, 0)
        there = client if found.node_id == 1 else far
        assert await commit(there, f"g{number}", 7) == 0


async def test_offsets_are_read_back_after_a_restart_in_many_steps(cluster: Cluster) -> None:
    broker, client = await coordinating(cluster)
    for number in range(400):  # half a megabyte
        assert await commit(client, f"g{number % 7}", number, "m" * 1200) == 0
    await broker.stop()
    broker = await cluster.started()
    client = await cluster.client()
    await cluster.until(lambda: not broker.service.coordinator._registry.is_loading)
    assert await committed(client, "g6") == (0, 398)
    groups = (await client.send(ListGroupsRequest(), 0)).groups
    assert sorted(each.group_id for each in groups) == [f"g{n}" for n in range(7)]


async def test_an_unknown_group_has_no_committed_offsets_and_no_error(cluster: Cluster) -> None:
    _, client = await coordinating(cluster)
    assert await committed(client, "nobody") == (0, -1)


async def test_a_group_with_a_name_in_latin_1_is_served(cluster: Cluster) -> None:
    broker, client = await coordinating(cluster)
    header = RequestHeader(api_key=8, api_version=2, correlation_id=1, client_id="M_ller")
    frame = bytes(encode_request(header, commit_request("Gl_ck", 7, "M_he")))
    way = await raw(cluster)
    way.send(frame.replace(b"_", b"\xfc"))
    await cluster.until(lambda: way.received)
    assert await committed(client, "Gl\ufffdck") == (0, 7)
    await broker.stop()
    broker = await cluster.started()
    client = await cluster.client()
    await cluster.until(lambda: not broker.service.coordinator._registry.is_loading)
    assert await committed(client, "Gl\ufffdck") == (0, 7)


async def test_a_commit_for_an_unknown_partition_is_refused(cluster: Cluster) -> None:
    _, client = await coordinating(cluster)
    assert await commit(client, "g", 5, topic="views") == Error.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("seed", [11])
async def test_commits_flushed_before_exposure_survive_a_power_loss(
    cluster: Cluster, seed: int
) -> None:
    broker, client = await coordinating(cluster, log_flush_before_expose="true")
    for number in range(20):
        assert await commit(client, "g", number) == 0
    cluster.kill(broker, is_power_lost=True)
    broker = await cluster.started(log_flush_before_expose="true")
    client = await cluster.client()
    await cluster.until(lambda: broker.service.replicas.partitions)
    await cluster.until(lambda: not broker.service.coordinator._registry.is_loading)
    assert await committed(client, "g") == (0, 19)


async def test_a_group_of_another_coordinator_is_refused(cluster: Cluster) -> None:
    first, second = await cluster.started(1), await cluster.started(2)
    await with_offsets_topic(cluster, first)
    clients = [await cluster.client(1), await cluster.client(2)]
    await cluster.until(lambda: second.service.cache.topics.get("__consumer_offsets"))
    errors = [(await committed(each, "g"))[0] for each in clients]
    assert sorted(errors) == [0, Error.NOT_COORDINATOR]


async def test_a_request_behind_a_commit_sees_it_however_long_the_flush_takes(
    cluster: Cluster,
) -> None:
    _, client = await coordinating(cluster, log_flush_before_expose="true")
    for offset in range(3):
        both = await asyncio.gather(commit(client, "g", offset), committed(client, "g"))
        assert both == [0, (0, offset)]


async def test_commits_survive_a_time_when_the_topic_cannot_be_read(cluster: Cluster) -> None:
    broker, client = await coordinating(cluster)
    assert await commit(client, "g", 5) == 0
    zk, path = broker.context.zk, "/brokers/topics/clicks"
    good, _ = await zk.get(path)
    clicks = TopicPartition("clicks", 0)
    await zk.set(path, b"{")
    await zk.delete("/controller")  # the next one loads all that is there
    await cluster.until(lambda: not broker.service.cache.has(clicks))
    await zk.set(path, good)
    await zk.delete("/controller")
    await cluster.until(lambda: broker.service.cache.has(clicks))
    assert await committed(client, "g") == (0, 5)
    await broker.stop()
    assert await committed_after_start(cluster) == (0, 5)


def test_a_lack_of_descriptors_delays_the_loading_of_offsets_and_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, faults = offsets_log.read, [OutOfDescriptors("0.log") for _ in range(5)]

    def wanting(log: Log, offset: int, bytes_max: int) -> Slice | None:
        if faults:
            raise faults.pop()
        return read(log, offset, bytes_max)

    async def scenario(cluster: Cluster) -> None:
        broker, client = await coordinating(cluster)
        assert await commit(client, "g", 5) == 0
        await broker.stop()
        monkeypatch.setattr(offsets_log, "read", wanting)
        assert await committed_after_start(cluster) == (0, 5)

    cluster = Cluster()
    cluster.run(scenario(cluster))
    assert caplog.text.count("is paused, to be resumed") == 3  # once for each partition


async def test_loading_offsets_resumes_at_the_new_start_when_the_log_loses_its_beginning(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = offsets_log.read

    def retaining(log: Log, offset: int, bytes_max: int) -> Slice | None:
        part = read(log, offset, bytes_max)
        log.start_offset = log.end_offset - 1  # cleanup.policy=compact,delete
        return part

    broker, client = await coordinating(cluster)
    for number in range(100):  # more than one step
        assert await commit(client, "g", number, "m" * 1200) == 0
    await broker.stop()
    monkeypatch.setattr(offsets_log, "read", retaining)
    assert await committed_after_start(cluster) == (0, 99)


async def test_a_group_with_a_member_twice_leaves_its_partition_unserved_and_the_broker_alive(
    cluster: Cluster,
) -> None:
    member = GroupMember(
        member_id="m",
        client_id="c",
        client_host="/h",
        session_timeout=6_000,
        subscription=b"",
        assignment=b"",
    )
    value = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol="range", leader="m", members=[member] * 2
    )
    record = (put_versioned(GroupMetadataKey(group="g"), 2), put_versioned(value, VALUE_VERSION))
    homes = {f"g{n}": partition_for(f"g{n}", 3) for n in range(9)}
    damaged = partition_for("g", 3)
    broker, client = await coordinating(cluster)
    for each in homes:
        assert await commit(client, each, 5) == 0
    written: list[Error] = []
    broker.service.coordinator._context.log.append(damaged, [record], written.append)
    await cluster.until(lambda: written == [Error.NONE])
    await broker.stop()
    assert await committed_after_start(cluster) == (Error.NOT_COORDINATOR, -1)
    client = await cluster.client()
    unserved = (Error.NOT_COORDINATOR, -1)
    found = {each: await committed(client, each) for each in homes}
    assert found == {e: unserved if homes[e] == damaged else (0, 5) for e in homes}


async def test_partitions_that_are_led_elsewhere_at_any_moment_of_a_load_are_served_only_when_led(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SLICE_US", 50)
    broker, client = await coordinating(cluster)
    names = [f"g{number}" for number in range(90)]
    for number, name in enumerate(names):
        assert await commit(client, name, number) == 0
    replicas, registry = broker.service.replicas, broker.service.coordinator._registry
    hosts = [each for each in replicas.partitions.values() if each.key.topic != "clicks"]
    for turns in range(60):
        for host, hear in product(hosts, [*replicas.on_resign, *replicas.on_leader]):
            hear(host)
        for _ in range(turns):
            await asyncio.sleep(0)
        for host, hear in product(hosts, replicas.on_resign):
            hear(host)
        assert {registry.find(name)[0] for name in names} == {Error.NOT_COORDINATOR}
        await asyncio.sleep(0)
        assert {registry.find(name)[0] for name in names} == {Error.NOT_COORDINATOR}
    for host, hear in product(hosts, replicas.on_leader):
        hear(host)
    await cluster.until(lambda: not registry.is_loading)
    found = [await committed(client, name) for name in names]
    assert found == [(0, number) for number in range(90)]


@pytest.mark.parametrize("is_elected_meanwhile", [False, True])
async def test_a_topic_removed_from_zookeeper_by_hand_is_served_again_when_restored(
    cluster: Cluster, is_elected_meanwhile: bool
) -> None:
    """Meanwhile no record is accepted that could be lost, and no group loses its offsets."""
    client = await with_a_commit(cluster)
    assert (await produce(client, "clicks", b"x")).base_offset == 0
    zk = cluster.zks[1]
    held = await remove(zk)
    if is_elected_meanwhile:
        await zk.delete("/controller")
    await until_known(client, False)
    assert (await produce(client, "clicks", b"x")).error_code == Error.NOT_LEADER_OR_FOLLOWER
    assert await committed(client, "g") == (0, 5)
    await zk.multi([Create(path, each) for path, each in zip(PATHS, held, strict=True)])
    await until_known(client, True)
    assert (await produce(client, "clicks", b"x")).base_offset == 1
    await cluster.brokers[1].stop()
    assert await committed_after_start(cluster) == (0, 5)


async def test_a_topic_removed_by_hand_and_recreated_has_no_committed_offsets(
    cluster: Cluster,
) -> None:
    client = await with_a_commit(cluster)
    await remove(cluster.zks[1])
    await until_known(client, False)
    await cluster.zks[1].delete("/config/topics/clicks")
    assert (await create(client, "clicks")).error_code == 0
    assert await committed(client, "g") == (0, -1)
    await cluster.brokers[1].stop()
    assert await committed_after_start(cluster) == (0, -1)


@pytest.mark.parametrize("records", [0, pytest.param(2_000, marks=pytest.mark.slow)])
async def test_a_deletion_that_waits_for_a_broker_removes_the_commits_on_it_too(
    cluster: Cluster, records: int
) -> None:
    """It is still loading its groups, which may take long, when it hears of the deletion."""
    client = await with_a_commit(cluster)  # all is on the one broker that there is yet
    for number in range(records):
        assert await commit(client, f"g{number % 9}", number, "m" * 1200) == 0
    await cluster.started(2)
    await cluster.brokers[1].stop()
    far = await cluster.client(2)
    await cluster.until(lambda: cluster.brokers[2].service.controller.is_active)
    answer = await far.send(DeleteTopicsRequest(topic_names=["clicks"], timeout_ms=1_000), 1)
    assert answer.responses[0].error_code == 0
    assert await committed_after_start(cluster) == (0, -1)
    while (await create(far, "clicks")).error_code == Error.TOPIC_ALREADY_EXISTS:
        await asyncio.sleep(0.1)
    assert await committed(await cluster.client(), "g") == (0, -1)
    await cluster.brokers[1].stop()
    assert await committed_after_start(cluster) == (0, -1)
