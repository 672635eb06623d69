"""What a fast path has registered holds for one principal on one listener, and no refusal is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kdist.broker.broker import Broker
from kdist.broker.fast_path.fast_path import Scope
from kdist.errors import Error
from kdist.model import ANONYMOUS, Principal
from kdist.protocol.envelope import decode_response, encode_request
from kdist.protocol.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResult,
)
from kdist.protocol.headers import RequestHeader
from kdist.protocol.produce import ProducePartitionResult, ProduceResponse, ProduceTopicResult
from tests.simulator.cluster import Cluster, create, produce_request
from tests.unit.broker.broker_fetches import Asked
from tests.unit.broker.broker_fetches import Broker as FetchedBroker
from tests.unit.broker.test_broker_dispatch import Raw, raw

MALLORY = Principal("User", "mallory")
REFUSED = Error.TOPIC_AUTHORIZATION_FAILED


def fetch_request() -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="clicks", partitions=[part])]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)


def refusal_of(request: Any) -> Any:
    if isinstance(request, FetchRequest):
        refused = FetchPartitionResult(
            partition_index=0, error_code=REFUSED, high_watermark=-1, records=b""
        )
        return FetchResponse(responses=[FetchTopicResult(topic="clicks", partitions=[refused])])
    result = ProducePartitionResult(index=0, error_code=REFUSED, base_offset=-1)
    return ProduceResponse(
        responses=[ProduceTopicResult(name="clicks", partition_responses=[result])]
    )


def error_in(response: Any) -> int:
    (topic,) = response.responses
    (result,) = (
        topic.partitions if isinstance(topic, FetchTopicResult) else topic.partition_responses
    )
    return int(result.error_code)


def refuse_mallory(broker: Broker, key: int) -> None:
    """As an authorizer would, ahead of the handler."""
    routes: Any = broker.service._routes
    handler = routes.direct[key]

    def authorize(request: Any, call: Any) -> None:
        if call.connection.principal == MALLORY:
            call.answer(refusal_of(request))
        else:
            handler(request, call)

    routes.direct[key] = authorize


async def connect(cluster: Cluster, broker: Broker, principal: Principal) -> Raw:
    way = await raw(cluster)
    await asyncio.sleep(0.1)
    (listener,) = broker._gateway._listeners
    max(listener.connections, key=lambda each: each.number).principal = principal
    return way


@pytest.mark.parametrize(
    ("request_", "version"), [(produce_request("clicks", b"x", acks=1), 9), (fetch_request(), 11)]
)
def test_a_refused_client_is_refused_again_whoever_else_sends_the_same(
    request_: Any, version: int
) -> None:
    cluster, api = Cluster(), request_.api

    async def scenario() -> None:
        broker = await cluster.started()
        await create(await cluster.client(), "clicks")
        refuse_mallory(broker, api.key)
        for principal, error in ((MALLORY, REFUSED), (ANONYMOUS, Error.NONE), (MALLORY, REFUSED)):
            way = await connect(cluster, broker, principal)
            for number in range(3):
                header = RequestHeader(api.key, version, number, "a client")
                way.send(bytes(encode_request(header, request_)))
                await cluster.until(lambda way=way, number=number: len(way.frames()) > number)
            answers = [decode_response(api, version, each)[1] for each in way.frames()]
            assert [error_in(each) for each in answers] == [error] * 3

    cluster.run(scenario())


@pytest.mark.parametrize("scope", [(MALLORY, "PLAINTEXT"), (ANONYMOUS, "OTHER")])
def test_templates_are_shared_within_a_principal_and_a_listener_only(scope: Scope) -> None:
    asked = Asked(FetchedBroker())
    one, same, other = asked.register(), asked.register(), asked.register(scope=scope)
    assert one is not None
    assert same is not None
    assert other is not None
    assert one[2] is same[2] is not other[2]
