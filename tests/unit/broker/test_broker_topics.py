"""Requests for topics and producer ids, sent to brokers in virtual time."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from kdist.errors import Error
from kdist.model import OFFSETS_TOPIC, TopicPartition
from kdist.network.client import Client
from kdist.protocol.allocate_producer_ids import AllocateProducerIdsRequest
from kdist.protocol.create_partitions import CreatePartitionsRequest, GrownTopic
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic, TopicSetting
from kdist.protocol.delete_topics import DeleteTopicsRequest, TopicToDelete
from kdist.protocol.init_producer_id import InitProducerIdRequest
from kdist.protocol.leader_and_isr import LeaderAndIsrRequest
from kdist.protocol.metadata import MetadataRequest, MetadataTopic
from kdist.protocol.stop_replica import StopReplicaRequest
from kdist.protocol.update_metadata import UpdateMetadataRequest
from kdist.wire.primitives import STRING_BYTES_MAX
from kdist.zk import znodes
from tests.simulator.cluster import Cluster, create, produce
from tests.unit.broker.broker_configs import by_name, describe, own


def new(name: str = "clicks", replication_factor: int = 1) -> NewTopic:
    return NewTopic(
        name=name,
        num_partitions=1,
        replication_factor=replication_factor,
        assignments=[],
        configs=[],
    )


@pytest.mark.parametrize("version", range(8))
async def test_a_topic_is_created_in_every_version(cluster: Cluster, version: int) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    request = CreateTopicsRequest(topics=[new()], timeout_ms=10_000)
    (made,) = (await client.send(request, version)).topics
    assert (made.name, made.error_code) == ("clicks", 0)
    assert broker.service.cache.has(TopicPartition("clicks", 0))
    assert (made.num_partitions, made.replication_factor) == ((1, 1) if version >= 5 else (-1, -1))
    assert ("retention.ms" in {each.name for each in made.configs}) == (version >= 5)


@pytest.mark.parametrize(
    ("partitions", "given", "policy", "count"),
    [
        (-1, {}, "compact", 3),  # `offsets.topic.num.partitions`
        (2, {"retention_ms": "5"}, "compact", 2),
        (2, {"cleanup_policy": "delete"}, "delete", 2),
    ],
)
async def test_an_offsets_topic_created_by_hand_is_compacted_by_default(
    cluster: Cluster, partitions: int, given: dict[str, str], policy: str, count: int
) -> None:
    await cluster.started()
    client = await cluster.client()
    made = await create(client, OFFSETS_TOPIC, partitions, **given)
    assert (made.error_code, made.num_partitions) == (0, count)
    told = {each.name: each.value for each in made.configs}
    described = by_name(await describe(client, OFFSETS_TOPIC))
    for name in ("cleanup.policy", "retention.ms", "segment.bytes", "compression.type"):
        assert told[name] == described[name].value
    assert described["cleanup.policy"].value == policy
    assert described["segment.bytes"].value == str(100 << 20)
    assert ("retention.ms" in await own(client, OFFSETS_TOPIC)) == ("retention_ms" in given)


@pytest.mark.parametrize("version", range(8))
async def test_overlong_names_and_settings_are_refused_in_answers_that_can_be_encoded(
    cluster: Cluster, version: int
) -> None:
    await cluster.started()
    client = await cluster.client()
    long, wide = new("x" * STRING_BYTES_MAX), new("wide")
    wide.configs = [TopicSetting(name="retention.ms", value="x" * STRING_BYTES_MAX)]
    request = CreateTopicsRequest(topics=[long, long, wide], timeout_ms=1_000)
    answer = await client.send(request, version)
    codes = [each.error_code for each in answer.topics]
    assert codes == [Error.INVALID_REQUEST, Error.INVALID_CONFIG]


async def test_a_topic_with_settings_too_long_for_a_znode_does_not_make_the_controller_resign(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    wide = new("wide")
    wide.configs = [
        TopicSetting(name=f"metrics.{number}", value="x" * STRING_BYTES_MAX) for number in range(32)
    ]
    request = CreateTopicsRequest(topics=[wide, new()], timeout_ms=10_000)
    refused, made = (await client.send(request, 7)).topics
    assert (refused.error_code, made.error_code) == (Error.INVALID_CONFIG, Error.NONE)
    assert broker.service.controller.is_active


async def test_a_topic_that_is_only_validated_is_not_created(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    good, bad = new(), new("two", replication_factor=2)
    request = CreateTopicsRequest(topics=[good, bad], validate_only=True, timeout_ms=1_000)
    answer = await client.send(request, 7)
    errors = [each.error_code for each in answer.topics]
    assert errors == [0, Error.INVALID_REPLICATION_FACTOR]
    assert broker.service.cache.topics == {}


async def test_a_topic_named_twice_gets_one_answer(cluster: Cluster) -> None:
    await cluster.started()
    client = await cluster.client()
    await create(client, "views")
    asked = CreateTopicsRequest(topics=[new(), new()], timeout_ms=1_000)
    (made,) = (await client.send(asked, 7)).topics
    grow = GrownTopic(name="views", count=2, assignments=None)
    more = CreatePartitionsRequest(topics=[grow, grow], timeout_ms=1_000, validate_only=False)
    (grown,) = (await client.send(more, 3)).results
    deleted = DeleteTopicsRequest(topic_names=["views", "views"], timeout_ms=1_000)
    (deleted,) = (await client.send(deleted, 5)).responses
    errors = [made.error_code, grown.error_code, deleted.error_code]
    assert errors == [Error.INVALID_REQUEST] * 3


async def test_a_broker_that_is_not_the_controller_refuses(cluster: Cluster) -> None:
    await cluster.started(1)
    await cluster.started(2)
    client = await cluster.client(2)
    assert (await create(client, "clicks")).error_code == Error.NOT_CONTROLLER
    deleted = DeleteTopicsRequest(topics=[TopicToDelete(name="x")], timeout_ms=100)
    assert (await client.send(deleted, 6)).responses[0].error_code == Error.NOT_CONTROLLER
    grown = GrownTopic(name="x", count=2, assignments=None)
    request = CreatePartitionsRequest(topics=[grown], timeout_ms=100, validate_only=False)
    assert (await client.send(request, 3)).results[0].error_code == Error.NOT_CONTROLLER


async def test_a_broker_forwards_the_creation_of_a_requested_topic_to_the_controller(
    cluster: Cluster,
) -> None:
    await cluster.started(1)
    other = await cluster.started(2)
    asked = MetadataTopic(name="wanted")
    await (await cluster.client(2)).send(MetadataRequest(topics=[asked]), 4)
    await cluster.until(lambda: other.service.cache.has(TopicPartition("wanted", 0)))


@pytest.mark.parametrize("version", range(7))
async def test_a_topic_is_deleted_in_every_version(cluster: Cluster, version: int) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    named: dict[str, Any] = {"topic_names": ["clicks"]}
    if version >= 6:
        named = {"topics": [TopicToDelete(name="clicks")]}
    request = DeleteTopicsRequest(timeout_ms=10_000, **named)
    (gone,) = (await client.send(request, version)).responses
    assert (gone.name, gone.error_code) == ("clicks", 0)
    assert broker.service.cache.topics == {}
    assert broker.service.replicas.partitions == {}


async def test_a_topic_is_deleted_by_its_id(cluster: Cluster) -> None:
    await cluster.started()
    client = await cluster.client()
    made = await create(client, "clicks")
    deleted = [TopicToDelete(topic_id=made.topic_id), TopicToDelete(topic_id=uuid.UUID(int=1))]
    request = DeleteTopicsRequest(topics=deleted, timeout_ms=10_000)
    known, unknown = (await client.send(request, 6)).responses
    assert (known.name, known.topic_id, known.error_code) == ("clicks", made.topic_id, 0)
    assert (unknown.name, unknown.error_code) == (None, Error.UNKNOWN_TOPIC_ID)


async def test_a_topic_named_twice_by_name_or_id_is_not_deleted(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    made = await create(client, "clicks")
    by_name, by_id = TopicToDelete(name="clicks"), TopicToDelete(topic_id=made.topic_id)
    by_both = TopicToDelete(name="clicks", topic_id=made.topic_id)
    for twice in ([by_name, by_id], [by_id, by_id], [by_name, by_name]):
        request = DeleteTopicsRequest(topics=twice, timeout_ms=10_000)
        answers = (await client.send(request, 6)).responses
        assert {each.error_code for each in answers} == {Error.INVALID_REQUEST}
    assert list(broker.service.cache.topics) == ["clicks"]
    request = DeleteTopicsRequest(topics=[by_name, by_both], timeout_ms=10_000)
    deleted, refused = (await client.send(request, 6)).responses
    assert (deleted.error_code, refused.error_code) == (0, Error.INVALID_REQUEST)


@pytest.mark.parametrize("version", range(6))
async def test_with_deletion_disabled_each_version_gets_the_error_it_knows(
    cluster: Cluster, version: int
) -> None:
    await cluster.started(delete_topic_enable="false")
    client = await cluster.client()
    await create(client, "clicks")
    names = ["clicks", "twice", "twice"]
    request = DeleteTopicsRequest(topic_names=names, timeout_ms=10_000)
    answers = (await client.send(request, version)).responses
    known = Error.INVALID_REQUEST if version < 3 else Error.TOPIC_DELETION_DISABLED
    assert {each.error_code for each in answers} == {known}


async def test_a_recreated_topic_has_settings_and_records_of_its_own(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks", max_message_bytes="100")
    assert (await produce(client, "clicks", b"x" * 200)).error_code == Error.MESSAGE_TOO_LARGE
    await produce(client, "clicks", b"x")
    request = DeleteTopicsRequest(topics=[TopicToDelete(name="clicks")], timeout_ms=10_000)
    await client.send(request, 6)
    await create(client, "clicks", max_message_bytes="1000")
    assert (await produce(client, "clicks", b"x" * 200)).base_offset == 0
    (log,) = broker.service.directory.logs.values()
    assert log.settings.max_message_bytes == 1000


async def test_create_partitions_adds_partitions(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    await create(client, "clicks")
    for version in range(4):
        grown = GrownTopic(name="clicks", count=2 + version, assignments=None)
        request = CreatePartitionsRequest(topics=[grown], timeout_ms=9_000, validate_only=False)
        (result,) = (await client.send(request, version)).results
        assert result.error_code == 0
        assert len(broker.service.cache.topics["clicks"].partitions) == 2 + version


# Producer ids


async def test_producer_ids_are_unique_across_brokers_and_restarts(cluster: Cluster) -> None:
    first, _ = await cluster.started(1), await cluster.started(2)
    found: list[int] = []

    async def take(broker_id: int, times: int) -> None:
        client = await cluster.client(broker_id)
        for _ in range(times):
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            answer = await client.send(request, 4)
            assert (answer.error_code, answer.producer_epoch) == (0, 0)
            found.append(answer.producer_id)

    await take(1, 3)
    await take(2, 1001)
    await first.stop()
    await cluster.started(1)
    await take(1, 3)
    assert len(set(found)) == len(found)
    assert max(found) < 4000


@pytest.mark.parametrize("is_made_by_kafka", [False, True])
async def test_the_first_block_of_producer_ids_goes_to_one_broker(
    cluster: Cluster, is_made_by_kafka: bool
) -> None:
    """Kafka's controller cannot read a znode with empty data: so brokers make none in advance."""
    await cluster.started(1)
    await cluster.started(2)
    path = znodes.PRODUCER_ID_BLOCK.path()
    assert cluster.ensemble.tree.exists(path) is None
    if is_made_by_kafka:
        await cluster.zks[1].create(path)
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    clients = [await cluster.client(broker_id) for broker_id in (1, 2)]
    answers = await asyncio.gather(*(client.send(request, 4) for client in clients))
    assert sorted(each.producer_id for each in answers) == [0, 1000]


async def test_the_controller_gives_blocks_of_producer_ids_to_registered_brokers(
    cluster: Cluster,
) -> None:
    await cluster.started(1)
    epoch = (await cluster.started(2)).service.replicas.broker_epoch
    controller, other = await cluster.client(1), await cluster.client(2)

    async def ask(client: Client, broker_id: int, broker_epoch: int) -> tuple[int, int, int]:
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        answer = await client.send(request, 0)
        return answer.error_code, answer.producer_id_start, answer.producer_id_len

    assert await ask(controller, 2, epoch) == (Error.NONE, 0, 1000)
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    assert (await other.send(request, 4)).producer_id == 1000
    assert await ask(controller, 2, epoch) == (Error.NONE, 2000, 1000)
    assert await ask(controller, 2, epoch - 1) == (Error.STALE_BROKER_EPOCH, 0, 0)
    assert await ask(controller, 9, epoch) == (Error.BROKER_ID_NOT_REGISTERED, 0, 0)
    assert await ask(other, 2, epoch) == (Error.NOT_CONTROLLER, 0, 0)


@pytest.mark.parametrize(
    ("transactional_id", "present", "error"),
    [
        ("t", (-1, -1), Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("", (-1, -1), Error.INVALID_REQUEST),
        (None, (5, -1), Error.INVALID_REQUEST),
        (None, (5, 1), Error.NONE),
    ],
)
async def test_invalid_requests_for_a_producer_id_are_refused(
    cluster: Cluster, transactional_id: str | None, present: tuple[int, int], error: Error
) -> None:
    await cluster.started()
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=1_000,
        producer_id=present[0],
        producer_epoch=present[1],
    )
    assert (await (await cluster.client()).send(request, 4)).error_code == error


# The controller's requests


async def test_requests_of_a_controller_that_was_replaced_are_refused(cluster: Cluster) -> None:
    broker = await cluster.started()
    client = await cluster.client()
    epoch = broker.service.replicas.broker_epoch
    ours = {"controller_id": 1, "broker_epoch": epoch}
    for old, error in (
        ({**ours, "controller_epoch": 0}, Error.STALE_CONTROLLER_EPOCH),
        ({**ours, "controller_epoch": 9, "broker_epoch": epoch - 1}, Error.STALE_BROKER_EPOCH),
    ):
        lead = LeaderAndIsrRequest(topic_states=[], live_leaders=[], **old)
        assert (await client.send(lead, 7)).error_code == error
        stop = StopReplicaRequest(topic_states=[], **old)
        assert (await client.send(stop, 4)).error_code == error
        learn = UpdateMetadataRequest(topic_states=[], live_brokers=[], type=2, **old)
        assert (await client.send(learn, 8)).error_code == error
    assert list(broker.service.cache.brokers) == [1]
