"""Metadata in every version, DescribeCluster, and the cache that they are answered from."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from kdist.broker.metadata_cache import NO_CONTROLLER, MetadataCache
from kdist.errors import Error
from kdist.model import ZERO_UUID, TopicPartition
from kdist.network.client import Client, ClientSettings
from kdist.protocol.delete_topics import DeleteTopicsRequest
from kdist.protocol.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kdist.protocol.find_coordinator import FindCoordinatorRequest
from kdist.protocol.leader_and_isr import FULL, INCREMENTAL
from kdist.protocol.metadata import OMITTED, ON_CLUSTER, ON_TOPIC, MetadataRequest, MetadataTopic
from kdist.protocol.update_metadata import UpdatedPartition, UpdatedTopic, UpdateMetadataRequest
from tests.simulator.cluster import Cluster, create

ID = uuid.UUID(int=1)


async def ask(client: Client, version: int, *names: str, **fields: Any) -> Any:
    topics = [MetadataTopic(name=name) for name in names]
    return await client.send(MetadataRequest(topics=topics, **fields), version)


OTHER = uuid.UUID(int=2)


def update(kind: int, *topics: tuple[str, uuid.UUID, dict[int, int]]) -> UpdateMetadataRequest:
    """Topics as (name, id, leader by partition)."""
    return UpdateMetadataRequest(
        controller_id=1,
        type=kind,
        controller_epoch=1,
        topic_states=[
            UpdatedTopic(
                topic_name=name,
                topic_id=topic_id,
                partition_states=[
                    UpdatedPartition(
                        partition_index=index,
                        controller_epoch=1,
                        leader=leader,
                        leader_epoch=0,
                        isr=[leader],
                        zk_version=0,
                        replicas=[leader],
                    )
                    for index, leader in leaders.items()
                ],
            )
            for name, topic_id, leaders in topics
        ],
        live_brokers=[],
    )


@pytest.mark.parametrize("version", range(13))
async def test_a_topic_is_described_in_every_version(cluster: Cluster, version: int) -> None:
    await cluster.started(broker_rack="r1")
    client = await cluster.client()
    made = await create(client, "clicks", 2)
    answer = await ask(client, version, "clicks")
    (broker,), (topic,) = answer.brokers, answer.topics
    assert (broker.node_id, broker.host, broker.port) == (1, "m1", 9092)
    assert broker.rack == ("r1" if version >= 1 else None)
    assert answer.controller_id == (1 if version >= 1 else -1)
    assert (answer.cluster_id is not None) == (version >= 2)
    assert answer.cluster_authorized_operations == OMITTED
    assert (topic.name, topic.error_code, topic.is_internal) == ("clicks", 0, False)
    assert topic.topic_id == (made.topic_id if version >= 10 else ZERO_UUID)
    parts = [(p.partition_index, p.leader_id, p.replica_nodes) for p in topic.partitions]
    assert parts == [(0, 1, [1]), (1, 1, [1])]
    assert {p.leader_epoch for p in topic.partitions} == ({0} if version >= 7 else {-1})


@pytest.mark.parametrize("version", range(8, 13))
async def test_authorized_operations_are_all_of_them_where_requested(
    cluster: Cluster, version: int
) -> None:
    await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    request = MetadataRequest(
        topics=[MetadataTopic(name="clicks")],
        include_cluster_authorized_operations=version <= 10,
        include_topic_authorized_operations=True,
    )
    answer = await client.send(request, version)
    told = answer.cluster_authorized_operations, answer.topics[0].topic_authorized_operations
    assert told == (ON_CLUSTER if version <= 10 else OMITTED, ON_TOPIC)


async def test_no_controller_is_named_once_the_last_one_lost_its_session(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    assert (await ask(client, 9)).controller_id == 1
    cluster.ensemble.stop()
    assert (await ask(client, 9)).controller_id == 1  # its session may live on
    await asyncio.sleep(10)
    assert (await ask(client, 9)).controller_id == NO_CONTROLLER
    cluster.ensemble.start()
    await cluster.until(lambda: broker.service.cache.controller_id == 1)
    assert (await create(client, "clicks")).error_code == 0


async def test_a_controller_is_named_only_once_it_has_registered(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    broker.service.cache.controller_id = 2  # it has not registered yet
    assert (await ask(client, 9)).controller_id == NO_CONTROLLER


async def test_a_null_list_and_an_empty_list_of_topics_differ(cluster: Cluster) -> None:
    await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    assert len((await client.send(MetadataRequest(topics=None), 1)).topics) == 1
    assert (await client.send(MetadataRequest(topics=[]), 1)).topics == []
    assert len((await client.send(MetadataRequest(topics=[]), 0)).topics) == 1


async def test_a_requested_topic_is_created_if_allowed(cluster: Cluster) -> None:
    broker = await cluster.started(num_partitions="3")
    client = await cluster.client()
    refused = await ask(client, 4, "new", allow_auto_topic_creation=False)
    assert refused.topics[0].error_code == Error.UNKNOWN_TOPIC_OR_PARTITION
    made = await ask(client, 4, "new")
    assert made.topics[0].error_code == Error.LEADER_NOT_AVAILABLE
    await cluster.until(lambda: broker.service.cache.has(TopicPartition("new", 2)))
    found = await ask(client, 4, "new")
    assert [p.leader_id for p in found.topics[0].partitions] == [1, 1, 1]
    assert broker.measures.broker.created_topics == 1


async def test_no_topic_is_created_where_the_setting_forbids_it(cluster: Cluster) -> None:
    await cluster.started(auto_create_topics_enable="false")
    answer = await ask(await cluster.client(), 1, "new")
    assert answer.topics[0].error_code == Error.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_name_that_collides_is_refused_where_it_would_be_created(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "a.b")
    answer = await ask(client, 4, "a_b")
    assert answer.topics[0].error_code == Error.INVALID_TOPIC_EXCEPTION
    unknown = await ask(client, 4, "a_b", allow_auto_topic_creation=False)
    assert unknown.topics[0].error_code == Error.UNKNOWN_TOPIC_OR_PARTITION
    await client.send(DeleteTopicsRequest(topic_names=["a.b"], timeout_ms=1000), 1)
    await cluster.until(lambda: not broker.service.cache.topics)
    assert (await ask(client, 4, "a_b")).topics[0].error_code == Error.LEADER_NOT_AVAILABLE
    await cluster.until(lambda: "a_b" in broker.service.cache.topics)


@pytest.mark.parametrize("name", ["", "a b", "..", "x" * 250, "ä"])
async def test_an_invalid_topic_name_is_refused(cluster: Cluster, name: str) -> None:
    await cluster.started()
    answer = await ask(await cluster.client(), 4, name)
    assert answer.topics[0].error_code == Error.INVALID_TOPIC_EXCEPTION


async def test_a_topic_may_be_asked_for_by_its_id_from_version_12_on(cluster: Cluster) -> None:
    await cluster.started()
    client = await cluster.client()
    made = await create(client, "clicks")

    async def ask_by(topic_id: uuid.UUID, version: int, name: str | None = None) -> Any:
        asked = MetadataTopic(name=name, topic_id=topic_id)
        return (await client.send(MetadataRequest(topics=[asked]), version)).topics[0]

    assert (await ask_by(made.topic_id, 12)).name == "clicks"
    unknown = await ask_by(ID, 12)
    assert (unknown.name, unknown.error_code) == (None, Error.UNKNOWN_TOPIC_ID)
    assert (await ask_by(made.topic_id, 11)).error_code == Error.INVALID_REQUEST
    # The id counts where both are given: a topic of that name may be another by now.
    assert (await ask_by(made.topic_id, 12, "nobody")).name == "clicks"
    stale = await ask_by(uuid.UUID(int=1), 12, "clicks")
    assert (stale.name, stale.error_code) == (None, Error.UNKNOWN_TOPIC_ID)


async def test_a_partition_without_a_live_leader_says_so(cluster: Cluster) -> None:
    first, second = await cluster.started(1), await cluster.started(2)
    client = await cluster.client(1)
    await create(client, "clicks", 2)
    await second.stop()
    await cluster.until(lambda: 2 not in first.service.cache.brokers)
    await cluster.until(
        lambda: -1 in {p.leader for p in first.service.cache.topics["clicks"].partitions.values()}
    )
    partitions = (await ask(client, 5, "clicks")).topics[0].partitions
    lost = next(each for each in partitions if each.replica_nodes == [2])
    assert (lost.error_code, lost.leader_id) == (Error.LEADER_NOT_AVAILABLE, -1)
    assert lost.offline_replicas == [2]


async def test_clients_get_the_addresses_of_the_listener_they_use(cluster: Cluster) -> None:
    await cluster.started(
        listeners="PLAINTEXT://:9092,OUTSIDE://:9093",
        advertised_listeners="OUTSIDE://far.example.com:443",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT",
    )
    found = {}
    for port in (9092, 9093):
        client = await Client.connect(
            cluster.network.host("client"), "m1", port, ClientSettings("tests")
        )
        (told,) = (await ask(client, 9)).brokers
        found[port] = (told.host, told.port)
    assert found == {9092: ("m1", 9092), 9093: ("far.example.com", 443)}


async def test_a_broker_without_metadata_yet_makes_clients_retry(cluster: Cluster) -> None:
    broker = cluster.broker()
    starting = cluster.loop.create_task(broker.start())
    await cluster.until(lambda: broker._gateway.endpoints)
    answer = await ask(await cluster.client(), 1)
    assert answer.controller_id == 1
    await starting


# Coordinators


@pytest.mark.parametrize("version", range(5))
async def test_a_coordinator_is_found_once_the_offsets_topic_exists(
    cluster: Cluster, version: int
) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    by_key = {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}

    async def find() -> Any:
        answer = await client.send(FindCoordinatorRequest(**by_key), version)
        return answer.coordinators[0] if version >= 4 else answer

    assert (await find()).error_code == Error.COORDINATOR_NOT_AVAILABLE
    await cluster.until(lambda: "__consumer_offsets" in broker.service.cache.topics)
    found = await find()
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 1, "m1", 9092)
    told = (await ask(client, 12, "__consumer_offsets")).topics[0]
    assert (told.is_internal, len(told.partitions)) == (True, 3)


@pytest.mark.parametrize(
    ("key_type", "error"),
    [(1, Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), (7, Error.INVALID_REQUEST)],
)
async def test_only_groups_have_a_coordinator(
    cluster: Cluster, key_type: int, error: Error
) -> None:
    await cluster.started()
    request = FindCoordinatorRequest(key="t", key_type=key_type)
    answer = await (await cluster.client()).send(request, 3)
    assert answer.error_code == error


async def test_a_transactional_producer_is_told_that_no_right_is_missing(cluster: Cluster) -> None:
    await cluster.started()
    request = FindCoordinatorRequest(key="t", key_type=1)
    answer = await (await cluster.client()).send(request, 3)
    assert "no transactions" in answer.error_message
    assert "No right is missing" in answer.error_message


# --- DescribeCluster ----------------------------------------------------------------------------


def described(
    cluster: Cluster,
    version: int = 1,
    *,
    endpoint_type: int = 1,
    asks_operations: bool = False,
) -> DescribeClusterResponse:
    """What one of two brokers answers."""

    async def scenario() -> DescribeClusterResponse:
        await cluster.started(1, broker_rack="r1")
        await cluster.started(2)
        client = await cluster.client(2)
        request = DescribeClusterRequest(
            endpoint_type=endpoint_type, include_cluster_authorized_operations=asks_operations
        )
        answer = await client.send(request, version)
        assert isinstance(answer, DescribeClusterResponse)
        return answer

    answer: DescribeClusterResponse = cluster.run(scenario())
    return answer


@pytest.mark.parametrize("version", range(2))
def test_brokers_controller_and_cluster_id_are_returned(version: int) -> None:
    answer = described(Cluster(), version)
    assert (answer.error_code, answer.error_message) == (Error.NONE, None)
    brokers = [(each.broker_id, each.host, each.port, each.rack) for each in answer.brokers]
    assert brokers == [(1, "m1", 9092, "r1"), (2, "m2", 9092, None)]
    assert answer.controller_id == 1
    assert len(answer.cluster_id) == 22
    assert answer.cluster_authorized_operations == OMITTED


def test_authorized_operations_are_all_of_them() -> None:
    answer = described(Cluster(), asks_operations=True)
    assert answer.cluster_authorized_operations == 0b1_1111_1010_0000


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [(2, Error.MISMATCHED_ENDPOINT_TYPE), (3, Error.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_kraft_controllers_cannot_be_asked_for(endpoint_type: int, error: Error) -> None:
    answer = described(Cluster(), endpoint_type=endpoint_type)
    assert (answer.error_code, answer.brokers) == (error, [])
    assert answer.error_message


def test_a_full_update_replaces_everything_and_reports_no_deletion() -> None:
    cache = MetadataCache()
    cache.update(update(FULL, ("a", ID, {0: 1}), ("b", OTHER, {0: 1})))
    assert cache.update(update(FULL, ("b", OTHER, {0: 1}))) == []
    assert list(cache.topics) == ["b"]
    assert (cache.name_of(ID), cache.name_of(OTHER)) == (None, "b")


@pytest.mark.parametrize("kind", [INCREMENTAL, FULL])
def test_a_topic_that_reappears_with_its_id_is_the_same(kind: int) -> None:
    for topic_id, gone in ((ID, []), (OTHER, [TopicPartition("a", 0), TopicPartition("a", 1)])):
        cache = MetadataCache()
        cache.update(update(FULL, ("a", ID, {0: 1, 1: 1})))
        assert cache.update(update(FULL)) == []
        assert cache.update(update(FULL)) == []
        for expected in (gone, []):
            assert cache.update(update(kind, ("a", topic_id, {0: 1}))) == expected
            assert cache.topics["a"].id == topic_id


def test_a_topic_that_reappears_with_another_id_was_recreated() -> None:
    cache = MetadataCache()
    cache.update(update(FULL, ("a", ID, {0: 1})))
    assert cache.update(update(FULL, ("a", OTHER, {0: 1}))) == [TopicPartition("a", 0)]
    assert (cache.name_of(ID), cache.name_of(OTHER)) == (None, "a")


@pytest.mark.parametrize("kind", [INCREMENTAL, FULL])
def test_a_topic_that_was_missing_may_be_reported_as_deleted(kind: int) -> None:
    cache = MetadataCache()
    cache.update(update(FULL, ("a", ID, {0: 1})))
    cache.update(update(FULL))
    assert cache.update(update(kind, ("a", ID, {0: -2}))) == [TopicPartition("a", 0)]
    assert cache.update(update(INCREMENTAL, ("a", OTHER, {0: 1}))) == []


def test_a_deleted_topic_and_its_successor_may_come_in_one_update() -> None:
    cache = MetadataCache()
    cache.update(update(INCREMENTAL, ("a", ID, {0: 1, 1: 1})))
    gone = cache.update(update(INCREMENTAL, ("a", ID, {0: -2, 1: -2}), ("a", OTHER, {0: 1})))
    assert gone == [TopicPartition("a", 0), TopicPartition("a", 1)]
    assert (cache.topics["a"].id, list(cache.topics["a"].partitions)) == (OTHER, [0])


def test_a_name_collides_with_known_topics_and_not_with_deleted_ones() -> None:
    cache = MetadataCache()
    cache.update(update(INCREMENTAL, ("a.b", ID, {0: 1}), ("c.d", OTHER, {0: 1})))
    assert cache.collides("a_b")
    assert not cache.collides("a-b")
    cache.update(update(INCREMENTAL, ("a.b", ID, {0: -2})))
    assert not cache.collides("a_b")
    cache.update(update(FULL))
    assert not cache.collides("c_d")


def test_a_name_collides_as_long_as_one_such_topic_is_left() -> None:
    cache = MetadataCache()
    cache.update(update(INCREMENTAL, ("a.b", ID, {0: 1}), ("a_b", OTHER, {0: 1})))  # an old tool's
    for name, topic_id, collides in (("a.b", ID, True), ("a_b", OTHER, False)):
        cache.update(update(INCREMENTAL, (name, topic_id, {0: -2})))
        assert cache.collides("a_b") == collides


def test_a_recreated_topic_counts_once_for_collisions() -> None:
    cache = MetadataCache()
    for made in (ID, OTHER):
        cache.update(update(INCREMENTAL, ("a.b", made, {0: 1}), ("c", made, {0: 1})))
    cache.update(update(INCREMENTAL, ("a.b", OTHER, {0: -2})))
    assert not cache.collides("a_b")


def test_a_late_deletion_does_not_touch_a_topic_of_the_same_name() -> None:
    cache = MetadataCache()
    cache.update(update(INCREMENTAL, ("a", OTHER, {0: 1})))
    cache.update(update(INCREMENTAL, ("a", ID, {0: -2})))
    assert cache.has(TopicPartition("a", 0))
