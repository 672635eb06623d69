"""The controller's requests: on which listener they are accepted; and a controlled shutdown."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import cast

import pytest

from kdist.broker.authorization import Authorizer
from kdist.broker.broker import State
from kdist.broker.controller_access import ControllerAccess, move_leaders
from kdist.broker.handlers import Call
from kdist.broker.handlers.control import Admission
from kdist.config.broker import BrokerSettings
from kdist.config.faults import ConfigError
from kdist.config.load import broker_from
from kdist.config.security import ACL_AUTHORIZER
from kdist.errors import ApiError, Error
from kdist.metrics.broker import AuthorizationMetrics
from kdist.metrics.declare import Family
from kdist.model import ANONYMOUS, Principal
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
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from tests.simulator.cluster import Cluster, create, produce

REQUEST = ControlledShutdownRequest(broker_id=1, broker_epoch=7)
GIVEN = {
    "broker.id": "1",
    "log.dir": "/d",
    "listeners": "PLAINTEXT://:9092",
    "zookeeper.connect": "z",
}


class FakeAccess:
    """Answers with each outcome in turn: how many partitions remain, or an error."""

    def __init__(self, *outcomes: int | Error) -> None:
        self._outcomes = list(outcomes)
        self.asked = 0

    async def shut_down(self, request: ControlledShutdownRequest) -> int:
        assert request is REQUEST
        self.asked += 1
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Error):
            raise ApiError(outcome)
        return outcome


def stop(access: FakeAccess, *, has_shared: bool = True, **settings: str) -> float:
    """Move the leaders; how long it took, in seconds."""
    given = {f"controlled.shutdown.{k.replace('_', '.')}": v for k, v in settings.items()}
    found: BrokerSettings = broker_from(GIVEN | given).broker
    loop = VirtualLoop(VirtualClock())
    moving = move_leaders(cast(ControllerAccess, access), found, REQUEST, lambda: has_shared)
    try:
        loop.run_until_complete(moving)
        return loop.time()
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("broker_id", "epochs_ago", "error"),
    [
        (1, 0, Error.NONE),
        (1, 1, Error.STALE_BROKER_EPOCH),
        (7, 0, Error.BROKER_NOT_AVAILABLE),
    ],
)
async def test_controlled_shutdown_needs_the_brokers_current_epoch(
    cluster: Cluster, broker_id: int, epochs_ago: int, error: Error
) -> None:
    broker = await cluster.started()
    epoch = broker.service.replicas.broker_epoch - epochs_ago
    request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=epoch)
    answer = await (await cluster.client()).send(request, 3)
    assert (answer.error_code, answer.remaining_partitions) == (error, [])


async def test_controlled_shutdown_without_an_epoch_is_refused(cluster: Cluster) -> None:
    await cluster.started()
    answer = await (await cluster.client()).send(ControlledShutdownRequest(broker_id=1), 1)
    assert answer.error_code == Error.STALE_BROKER_EPOCH


async def test_controlled_shutdown_is_refused_by_a_broker_that_is_not_the_controller(
    cluster: Cluster,
) -> None:
    await cluster.started(1)
    await cluster.started(2)
    request = ControlledShutdownRequest(broker_id=1, broker_epoch=1)
    answer = await (await cluster.client(2)).send(request, 3)
    assert answer.error_code == Error.NOT_CONTROLLER


MOVING = {
    "listeners": "OLD://:9092,NEW://:9093,SSL://:9094",
    "listener.security.protocol.map": "OLD:PLAINTEXT,NEW:SASL_PLAINTEXT,SSL:SSL",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "ssl.keystore.location": "/key.pem",
}
ALICE, BROKER = Principal("User", "alice"), Principal("User", "broker")
ON_ACLS = {"authorizer.class.name": ACL_AUTHORIZER, "super.users": "User:broker;User:ANONYMOUS"}


def takes(listener: str, principal: Principal, **given: str) -> bool:
    """Whether a broker of which MOVING and these are the settings takes a broker's request."""
    config = broker_from(GIVEN | MOVING | {k.replace("_", "."): v for k, v in given.items()})
    authorizer = Authorizer(config.authorization, VirtualClock(), Family(AuthorizationMetrics))
    connection = SimpleNamespace(subject=authorizer.subject(principal, "10.0.0.1"))
    call = SimpleNamespace(listener=listener, connection=connection)
    return Admission.of(config, asyncio.Event()).takes(cast(Call, call))


def test_the_brokers_listener_is_a_second_door_with_and_without_acls() -> None:
    old = {"inter.broker.listener.name": "OLD"}
    for given in (old, old | ON_ACLS):
        assert takes("OLD", ANONYMOUS, **given)  # the rights were asked for before
        assert not takes("NEW", ANONYMOUS, **given)
        assert not takes("SSL", BROKER, **given)  # nobody authenticates there
    assert not takes("NEW", BROKER, **old)
    assert takes("NEW", BROKER, **old, **ON_ACLS)
    assert not takes("NEW", ALICE, **old, **ON_ACLS)


def test_a_dry_run_opens_no_second_door() -> None:
    given = {"inter.broker.listener.name": "OLD", "authorizer.dry.run": "true"}
    assert not takes("NEW", ALICE, **given, **ON_ACLS)
    assert takes("NEW", BROKER, **given, **ON_ACLS)


def test_the_listener_that_brokers_leave_is_open_for_as_long_as_it_is_named() -> None:
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="broker" password="x";'
    )
    new = {"inter.broker.listener.name": "NEW", "sasl.jaas.config": jaas}
    assert not takes("OLD", ANONYMOUS, **new)
    assert takes("OLD", ANONYMOUS, **new, **{"inter.broker.listener.former": "old"})
    with pytest.raises(ConfigError, match=r"former is ODD, which is not in listeners"):
        takes("OLD", ANONYMOUS, **new, **{"inter.broker.listener.former": "ODD"})


async def test_controller_requests_are_accepted_on_the_brokers_listener_only(
    cluster: Cluster,
) -> None:
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


async def test_a_request_on_a_connection_that_the_controller_no_longer_uses_is_refused(
    cluster: Cluster,
) -> None:
    """A delayed request may arrive after the topic's deletion, and must not create it again."""
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


async def test_a_broker_with_a_slow_disk_can_stop_during_a_controller_request(
    cluster: Cluster,
) -> None:
    """The request is carried out to its end, by when the controller is no longer connected."""
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


@pytest.mark.parametrize(
    ("outcomes", "asked", "took_s"),
    [
        ((0,), 1, 0),
        ((3, 0), 2, 5),
        ((3, 2, 1), 3, 10),
        ((Error.NOT_CONTROLLER, 0), 2, 5),
        ((Error.NETWORK_EXCEPTION,) * 3, 3, 10),
    ],
)
def test_a_broker_asks_until_nothing_remains_or_its_tries_are_over(
    outcomes: tuple[int | Error, ...], asked: int, took_s: float
) -> None:
    access = FakeAccess(*outcomes)
    assert stop(access) == pytest.approx(took_s)
    assert access.asked == asked


def test_a_broker_whose_partitions_have_no_other_replica_does_not_ask() -> None:
    access = FakeAccess()
    assert stop(access, has_shared=False) == 0
    assert access.asked == 0


def test_tries_and_pauses_can_be_set_or_controlled_shutdown_turned_off() -> None:
    assert stop(FakeAccess(1, 1), max_retries="2", retry_backoff_ms="70") == pytest.approx(0.07)
    assert stop(FakeAccess(), enable="false") == 0
    assert stop(FakeAccess(), max_retries="0") == 0


def test_a_broker_stops_though_the_controller_never_answers() -> None:
    class Silent(FakeAccess):
        async def shut_down(self, request: ControlledShutdownRequest) -> int:
            self.asked += 1
            return await asyncio.get_running_loop().create_future()

    access = Silent()
    assert stop(access) == pytest.approx(3 * 30 + 2 * 5)
    assert access.asked == 3


async def test_with_one_replica_each_a_stop_takes_no_longer_than_without_controlled_shutdown(
    cluster: Cluster,
) -> None:
    broker = await cluster.started()
    await create(await cluster.client(), "clicks", 3)
    start_s = cluster.loop.time()
    await broker.stop()
    assert cluster.loop.time() - start_s < 1
