"""Clients that have quotas, against a broker in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kdist.broker.quotas import Quotas, Throttles
from kdist.broker.stored_quotas import Entity
from kdist.client import cluster as clients
from kdist.client.fetch_once import fetch_at
from kdist.errors import Error
from kdist.metrics.broker import QuotaMetrics
from kdist.metrics.declare import Family
from kdist.model import TopicPartition
from kdist.network.client import Client, ClientSettings
from kdist.protocol import fetch, list_offsets, offset_for_leader_epoch
from kdist.protocol.api import Api
from kdist.protocol.api_versions import ApiVersionsRequest
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.protocol.fetch import ReplicaState
from kdist.protocol.frame import RequestHeader
from kdist.protocol.metadata import MetadataRequest
from kdist.security.acls import Operation, ResourceType
from kdist.security.subjects import ANYBODY, Subject
from kdist.testing.virtual_clock import VirtualClock
from kdist.zk.znodes import DEFAULT_ENTITY
from tests.simulator.cluster import PORT, Cluster, create, produce_request, records
from tests.unit.broker.broker_quotas import FETCH, PRODUCE, REQUEST, fetch_request, named, set_

RATE = 100_000
VALUE = b"x" * 10_000


async def with_quotas(cluster: Cluster, **quotas: float) -> Client:
    """A broker with a topic, and quotas of the client `etl`; the client that made them."""
    await cluster.started()
    admin = await named(cluster, "admin")
    assert (await create(admin, "clicks")).error_code == 0
    await set_(admin, "etl", **quotas)
    return admin


async def produced_in(
    cluster: Cluster, client: Client, seconds: float, version: int = 9, acks: int = 1
) -> tuple[int, int]:
    """How many bytes of records got through, and the longest pause that was told."""
    end_s, total, told = cluster.loop.time() + seconds, 0, 0
    while cluster.loop.time() < end_s:
        answer = await client.send(produce_request("clicks", VALUE, acks=acks), version)
        assert answer.responses[0].partition_responses[0].error_code == 0
        told = max(told, answer.throttle_time_ms)
        total += len(records(VALUE))
    return total, told


async def fetched_in(
    cluster: Cluster, client: Client, seconds: float, version: int = 12, **fields: Any
) -> tuple[int, int, int]:
    """Bytes of records, the longest pause that was told, and how many answers were empty."""
    end_s, total, told, empty = cluster.loop.time() + seconds, 0, 0, 0
    while cluster.loop.time() < end_s:
        answer = await client.send(fetch_request("clicks", **fields), version)
        assert answer.error_code == 0
        told = max(told, answer.throttle_time_ms)
        sizes = [len(part.records) for topic in answer.responses for part in topic.partitions]
        empty += not any(sizes)
        total += sum(sizes)
    return total, told, empty


@pytest.mark.parametrize("version", [3, 5, 9, 11])
@pytest.mark.parametrize("acks", [1, -1])
async def test_a_producer_is_held_to_its_quota_whatever_version_it_speaks(
    cluster: Cluster, version: int, acks: int
) -> None:
    await with_quotas(cluster, **{PRODUCE: RATE})
    client = await named(cluster, "etl")
    total, told = await produced_in(cluster, client, 30, version, acks)
    assert RATE * 29 <= total <= RATE * 33
    assert 90 <= told <= 110


@pytest.mark.parametrize("version", [4, 7, 12])
async def test_a_consumer_is_held_to_its_quota_by_answers_of_a_seconds_worth(
    cluster: Cluster, version: int
) -> None:
    admin = await with_quotas(cluster, **{FETCH: RATE})
    for _ in range(100):
        await admin.send(produce_request("clicks", VALUE), 9)
    client = await named(cluster, "etl")
    total, told, empty = await fetched_in(cluster, client, 30, version)
    assert RATE * 27 <= total <= RATE * 33
    assert told <= 1_010
    assert empty == 0


async def test_a_batch_that_is_larger_than_the_quota_gets_through_in_time(cluster: Cluster) -> None:
    admin = await with_quotas(cluster, **{FETCH: 1_000})
    await admin.send(produce_request("clicks", VALUE), 9)
    client = await named(cluster, "etl")
    total, told, _ = await fetched_in(cluster, client, 60)
    assert 5 * len(VALUE) <= total <= 8 * len(records(VALUE))
    assert told > 8_000


async def test_a_consumer_that_owes_is_answered_empty_at_once_on_another_connection(
    cluster: Cluster,
) -> None:
    admin = await with_quotas(cluster, **{FETCH: 1_000})
    await admin.send(produce_request("clicks", VALUE), 9)
    first, second = await named(cluster, "etl"), await named(cluster, "etl")
    assert (await first.send(fetch_request("clicks"), 12)).throttle_time_ms > 8_000
    began_s = cluster.loop.time()
    answer = await second.send(fetch_request("clicks", max_wait_ms=500), 12)
    assert cluster.loop.time() - began_s < 0.1
    assert (answer.responses, answer.session_id) == ([], 0)
    assert answer.throttle_time_ms > 8_000


async def test_a_session_goes_on_after_an_answer_that_was_held(cluster: Cluster) -> None:
    admin = await with_quotas(cluster, **{FETCH: 1e9})
    await admin.send(produce_request("clicks", VALUE), 9)
    client, other = await named(cluster, "etl"), await named(cluster, "etl")
    begun = await client.send(fetch_request("clicks", session_epoch=0), 12)
    assert begun.session_id
    await set_(admin, "etl", **{FETCH: 1_000})
    await other.send(fetch_request("clicks"), 12)  # this one owes now, for both

    async def go_on(epoch: int) -> Any:
        request = fetch_request("clicks", session_id=begun.session_id, session_epoch=epoch)
        request.topics = []
        return await client.send(request, 12)

    held = await go_on(1)
    assert (held.error_code, held.session_id, held.responses) == (0, begun.session_id, [])
    assert held.throttle_time_ms > 0
    after = await go_on(2)
    assert (after.error_code, after.session_id) == (0, begun.session_id)
    (topic,) = after.responses
    assert len(topic.partitions[0].records) > len(VALUE)


async def test_a_throttled_session_that_is_not_known_is_an_error_as_ever(cluster: Cluster) -> None:
    admin = await with_quotas(cluster, **{FETCH: 10})
    await admin.send(produce_request("clicks", VALUE), 9)
    client, other = await named(cluster, "etl"), await named(cluster, "etl")
    await client.send(fetch_request("clicks"), 12)
    answer = await other.send(fetch_request("clicks", session_id=5, session_epoch=3), 12)
    assert answer.error_code == Error.FETCH_SESSION_ID_NOT_FOUND


async def test_produces_on_many_connections_share_the_quota_and_other_clients_have_all_else(
    cluster: Cluster,
) -> None:
    await with_quotas(cluster, **{PRODUCE: RATE})
    greedy = [await named(cluster, "etl") for _ in range(5)]
    other = await named(cluster, "other")
    *held, (free, told) = await asyncio.gather(
        *(produced_in(cluster, each, 30) for each in greedy), produced_in(cluster, other, 30)
    )
    assert RATE * 29 <= sum(total for total, _ in held) <= RATE * 33
    assert free > RATE * 60
    assert told == 0


async def test_pipelined_produces_are_taken_one_by_one(cluster: Cluster) -> None:
    await with_quotas(cluster, **{PRODUCE: RATE})
    client, began_s = await named(cluster, "etl"), cluster.loop.time()
    requests = [client.send(produce_request("clicks", VALUE), 9) for _ in range(110)]
    answers = await asyncio.gather(*requests)
    offsets = [each.responses[0].partition_responses[0].base_offset for each in answers]
    assert offsets == sorted(offsets)
    assert 9.9 <= cluster.loop.time() - began_s <= 11


async def test_a_quota_takes_effect_on_a_client_that_has_the_fast_path_and_leaves_it_again(
    cluster: Cluster,
) -> None:
    admin = await with_quotas(cluster, **{PRODUCE: 1e12})
    client, sharing = await named(cluster, "late"), await named(cluster, "late")
    free, _ = await produced_in(cluster, client, 5)
    assert free > RATE * 10
    await set_(admin, "late", **{PRODUCE: RATE})
    # Also where the fast path knows the client's requests from another connection.
    totals = await asyncio.gather(
        produced_in(cluster, client, 20), produced_in(cluster, sharing, 20)
    )
    assert RATE * 19 <= sum(total for total, _ in totals) <= RATE * 22.5
    await set_(admin, "late", **{PRODUCE: 1e12})
    assert (await produced_in(cluster, client, 5))[0] > RATE * 10


async def test_a_pause_ends_when_the_quota_is_raised(cluster: Cluster) -> None:
    admin = await with_quotas(cluster, **{PRODUCE: 100})
    client = await named(cluster, "etl")
    answer = await client.send(produce_request("clicks", VALUE), 9)
    assert answer.throttle_time_ms > 90_000
    waiting = asyncio.ensure_future(client.send(produce_request("clicks", b"x"), 9))
    await asyncio.sleep(5)
    assert not waiting.done()
    await set_(admin, "etl", **{PRODUCE: 1e6})
    await asyncio.wait_for(waiting, 1)


async def test_kdists_own_client_does_not_give_up_a_request_that_waits_for_a_pause(
    cluster: Cluster,
) -> None:
    await with_quotas(cluster, **{PRODUCE: 1_000})
    settings = ClientSettings("etl", request_timeout_ms=500)
    client = await Client.connect(cluster.network.host("etl"), "m1", PORT, settings)
    assert (await client.send(produce_request("clicks", VALUE), 9)).throttle_time_ms > 9_000
    answer = await client.send(produce_request("clicks", VALUE), 9)
    assert answer.responses[0].partition_responses[0].base_offset == 1


async def test_acks_0_is_throttled_without_an_answer(cluster: Cluster) -> None:
    await with_quotas(cluster, **{PRODUCE: RATE})
    client, began_s = await named(cluster, "etl"), cluster.loop.time()
    for _ in range(60):
        await client.tell(produce_request("clicks", VALUE, acks=0), 9)
    await client.send(ApiVersionsRequest(), 0)
    assert 4.8 <= cluster.loop.time() - began_s <= 6


@pytest.mark.parametrize("version", [12, 15])
async def test_a_follower_is_never_throttled_and_one_that_is_no_broker_is(
    cluster: Cluster, version: int
) -> None:
    admin = await with_quotas(cluster, **{FETCH: 10})
    await admin.send(produce_request("clicks", VALUE), 9)
    client = await named(cluster, "etl")

    def of(replica: int) -> Any:
        if version >= 15:
            request = fetch_request("clicks", replica_state=ReplicaState(replica_id=replica))
            topic = cluster.brokers[1].service.cache.topics["clicks"]
            request.topics[0].topic, request.topics[0].topic_id = "", topic.id
            return request
        return fetch_request("clicks", replica_id=replica)

    for _ in range(3):
        answer = await client.send(of(1), version)
        assert answer.throttle_time_ms == 0
        assert answer.responses[0].partitions[0].records
    assert (await client.send(of(7), version)).throttle_time_ms > 0


async def test_replicas_follow_as_ever_beneath_a_default_quota(cluster: Cluster) -> None:
    await cluster.started(1)
    await cluster.started(2)
    admin = await named(cluster, "admin")
    await set_(admin, None, **{FETCH: 1})
    new = NewTopic(name="views", num_partitions=1, replication_factor=2, assignments=[], configs=[])
    request = CreateTopicsRequest(topics=[new], timeout_ms=10_000)
    assert (await admin.send(request, 7)).topics[0].error_code == 0
    (leader,) = (
        each
        for each, broker in cluster.brokers.items()
        if broker.service.replicas.partitions["views", 0].is_leader
    )
    client, began_s = await named(cluster, "any", leader), cluster.loop.time()
    for _ in range(20):
        answer = await client.send(produce_request("views", VALUE), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
    assert cluster.loop.time() - began_s < 2
    follower = cluster.brokers[3 - leader].service.replicas.partitions["views", 0]
    assert follower.log.end_offset == 20
    consumer = await named(cluster, "any", leader)
    assert (await consumer.send(fetch_request("views"), 12)).throttle_time_ms > 1_000


def test_time_is_charged_where_a_handler_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await with_quotas(cluster, **{REQUEST: 10})
        service = cluster.brokers[1].service
        (dispatch,) = service._dispatches
        spent_ns = 0
        real = dispatch.now_ns

        def now_ns() -> int:  # each look at the clock finds 50 ms gone
            nonlocal spent_ns
            spent_ns += 50_000_000
            return real() + spent_ns

        monkeypatch.setattr(dispatch, "now_ns", now_ns)
        client, other = await named(cluster, "etl"), await named(cluster, "other")
        pauses = [
            (await client.send(request, version)).throttle_time_ms
            for _ in range(3)
            for request, version in ((ApiVersionsRequest(), 3), (MetadataRequest(topics=[]), 9))
        ]
        assert pauses[0] == 0
        assert all(0 < each <= 1000 for each in pauses[2:])
        assert (await other.send(MetadataRequest(topics=[]), 9)).throttle_time_ms == 0

    cluster.run(scenario())


class Powerless(Subject):
    """Whoever says that it is a broker."""

    def may(self, operation: Operation, resource_type: ResourceType, name: str, /) -> bool:
        assert (operation, resource_type) == (Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        return False


@pytest.mark.parametrize("api", [fetch.API, list_offsets.API, offset_for_leader_epoch.API])
def test_what_followers_ask_costs_nothing(api: Api) -> None:
    quotas = Quotas(
        VirtualClock(), 1.0, Family(QuotaMetrics, "user", "client", "quota"), lambda: None
    )
    quotas.replace({Entity(None, DEFAULT_ENTITY): {REQUEST: 1.0}})
    throttles = Throttles(quotas, {1}.__contains__)
    header = RequestHeader(api.key, 4, 1, "kdist")
    known = {"max_wait_ms": 0, "min_bytes": 0} if api is fetch.API else {}
    costs = {
        (subject, replica): throttles.begin(
            header, api.request(replica_id=replica, topics=[], **known), 99, subject
        )
        for replica in (-2, -1, 1, 7)
        for subject in (ANYBODY, Powerless(ANYBODY.principal, ""))
    }
    assert [key for key, throttle in costs.items() if throttle is None] == [(ANYBODY, 1)]


async def test_a_client_that_has_gone_before_its_answer_is_not_kept_in_memory(
    cluster: Cluster,
) -> None:
    await with_quotas(cluster, **{PRODUCE: RATE})
    broker = cluster.brokers[1]
    client = await named(cluster, "etl")
    await client.send(ApiVersionsRequest(), 0)
    (listener,), (dispatch,) = broker._gateway._listeners, broker.service._dispatches
    connection = max(listener.connections, key=lambda each: each.number)
    client.close()
    await cluster.until(lambda: connection not in listener.connections)
    dispatch.pause(connection, 60)
    assert connection not in dispatch._paused


async def test_a_single_fetch_of_kdists_client_waits_until_its_client_may_fetch_again(
    cluster: Cluster,
) -> None:
    admin = await with_quotas(cluster, **{FETCH: 1000})
    await admin.send(produce_request("clicks", VALUE), 9)
    network, settings = cluster.network.host("of etl"), ClientSettings("etl")
    began_s = cluster.loop.time()
    for _ in range(2):  # each on a connection of its own
        asking = clients.Cluster(network, [clients.Address("m1", PORT)], settings)
        batches = await fetch_at(asking, TopicPartition("clicks", 0), 0)
        assert len(list(batches.headers())) == 1
    assert cluster.loop.time() - began_s >= 9
