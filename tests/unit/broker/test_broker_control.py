"""The controller's requests: on which listener they are accepted; and ControlledShutdown."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from kdist.broker.broker import State
from kdist.errors import Error
from kdist.network.client import Client, ClientSettings
from kdist.protocol.allocate_producer_ids import AllocateProducerIdsRequest
from kdist.protocol.alter_partition import AlterPartitionRequest
from kdist.protocol.api_versions import ApiVersionsRequest
from kdist.protocol.controlled_shutdown import ControlledShutdownRequest
from kdist.protocol.delete_topics import DeleteTopicsRequest
from kdist.protocol.leader_and_isr import (
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
)
from kdist.protocol.stop_replica import StopReplicaRequest
from kdist.protocol.update_metadata import UpdateMetadataRequest
from tests.simulator.cluster import Cluster, create, produce


@pytest.mark.parametrize(
    ("broker_id", "epochs_ago", "error"),
    [
        (1, 0, Error.NONE),
        (1, 1, Error.STALE_BROKER_EPOCH),
        (7, 0, Error.BROKER_NOT_AVAILABLE),
    ],
)
def test_controlled_shutdown_needs_the_brokers_current_epoch(
    broker_id: int, epochs_ago: int, error: Error
) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        epoch = broker.service.replicas.broker_epoch - epochs_ago
        request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=epoch)
        answer = await (await cluster.client()).send(request, 3)
        assert (answer.error_code, answer.remaining_partitions) == (error, [])

    cluster.run(scenario())


def test_controlled_shutdown_without_an_epoch_is_refused() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        answer = await (await cluster.client()).send(ControlledShutdownRequest(broker_id=1), 1)
        assert answer.error_code == Error.STALE_BROKER_EPOCH

    cluster.run(scenario())


def test_controlled_shutdown_is_refused_by_a_broker_that_is_not_the_controller() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(1)
        await cluster.started(2)
        request = ControlledShutdownRequest(broker_id=1, broker_epoch=1)
        answer = await (await cluster.client(2)).send(request, 3)
        assert answer.error_code == Error.NOT_CONTROLLER

    cluster.run(scenario())


def test_controller_requests_are_accepted_on_the_brokers_listener_only() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started(
            listeners="PLAINTEXT://:9092,OUTSIDE://:9093",
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT",
        )
        epoch = broker.service.replicas.broker_epoch
        author = {"controller_id": 1, "controller_epoch": 99, "broker_epoch": epoch}
        orders = (
            (LeaderAndIsrRequest(topic_states=[], live_leaders=[], **author), 7),
            (StopReplicaRequest(topic_states=[], **author), 4),
            (UpdateMetadataRequest(topic_states=[], live_brokers=[], type=2, **author), 8),
            (ControlledShutdownRequest(broker_id=1, broker_epoch=epoch), 3),
            (AlterPartitionRequest(broker_id=1, broker_epoch=epoch, topics=[]), 3),
            (AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch), 0),
        )
        host = cluster.network.host("client")
        outside = await Client.connect(host, "m1", 9093, ClientSettings("tests"))
        refused = [(await outside.send(*order)).error_code for order in orders]
        assert refused == [Error.CLUSTER_AUTHORIZATION_FAILED] * len(orders)
        assert broker.service.replicas.controller_epoch < 99
        inside = await cluster.client()
        accepted = [(await inside.send(*order)).error_code for order in orders]
        assert accepted == [Error.NONE] * len(orders)
        between_brokers = {request.api.key for request, _ in orders}
        for client, listed in ((outside, set()), (inside, between_brokers)):
            versions = (await client.send(ApiVersionsRequest(), 0)).api_keys
            assert {each.api_key for each in versions} & between_brokers == listed

    cluster.run(scenario())


def test_a_request_on_a_connection_that_the_controller_no_longer_uses_is_refused() -> None:
    """A delayed request may arrive after the topic's deletion, and must not create it again."""
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        left, present = await cluster.client(), await cluster.client()
        epoch = broker.service.replicas.broker_epoch
        author = {"controller_id": 1, "controller_epoch": 99, "broker_epoch": epoch}
        state = LeaderAndIsrPartition(
            partition_index=0,
            controller_epoch=99,
            leader=1,
            leader_epoch=0,
            isr=[1],
            partition_epoch=0,
            replicas=[1],
        )
        topic = LeaderAndIsrTopic(
            topic_name="clicks", topic_id=uuid.UUID(int=7), partition_states=[state]
        )
        late = (LeaderAndIsrRequest(topic_states=[topic], live_leaders=[], **author), 7)
        orders = (
            (StopReplicaRequest(topic_states=[], **author), 4),
            (UpdateMetadataRequest(topic_states=[], live_brokers=[], type=2, **author), 8),
        )
        assert [(await present.send(*each)).error_code for each in orders] == [Error.NONE] * 2
        refused = [(await left.send(*each)).error_code for each in (late, *orders)]
        assert refused == [Error.NETWORK_EXCEPTION] * 3
        assert not broker.service.directory.logs
        author["controller_epoch"] = 100  # another controller, which connected earlier
        orders = ((UpdateMetadataRequest(topic_states=[], live_brokers=[], type=2, **author), 8),)
        assert [(await left.send(*each)).error_code for each in orders] == [Error.NONE]

    cluster.run(scenario())


def test_a_broker_with_a_slow_disk_can_stop_during_a_controller_request() -> None:
    """The request is carried out to its end, by when the controller is no longer connected."""
    cluster = Cluster()

    async def scenario() -> None:
        broker = await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        await produce(client, "clicks", b"x")  # so that there are files to delete
        cluster.processes[1].blocking_ms_max = 20_000
        request = DeleteTopicsRequest(topic_names=["clicks"], timeout_ms=10_000)
        deleting = asyncio.ensure_future(client.send(request, 5))
        await cluster.until(lambda: not broker.service.replicas.partitions)
        await broker.stop(drain_ms=100)
        assert broker.state is State.STOPPED
        assert not broker.failure.done()
        deleting.cancel()

    cluster.run(scenario())
