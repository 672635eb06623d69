"""Settings of many topics described by one request: read together, each with its own result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kdist.errors import Error
from kdist.protocol.describe_configs import (
    BROKER,
    TOPIC,
    DescribeConfigsRequest,
    DescribedResource,
)
from kdist.protocol.incremental_alter_configs import SET
from kdist.zk.client import Znode
from kdist.zk.session import SessionClient
from tests.simulator.cluster import Cluster, create
from tests.unit.broker.broker_configs import by_name, change


def named(*names: str, kind: int = TOPIC) -> list[DescribedResource]:
    return [
        DescribedResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for name in names
    ]


@pytest.mark.slow
def test_hundreds_of_topics_are_read_in_a_few_requests_and_described_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    names = [f"t{number}" for number in range(450)]
    read: list[int] = []
    get_many = SessionClient.get_many

    async def count(zk: SessionClient, paths: Sequence[str]) -> list[Znode | None]:
        read.append(len(paths))
        return await get_many(zk, paths)

    async def get(*_: object) -> None:
        raise AssertionError("one by one")

    async def scenario() -> None:
        await cluster.started(1)
        await cluster.started(2)
        client, other = await cluster.client(1), await cluster.client(2)
        for name in names:
            assert (await create(client, name)).error_code == 0
        assert (await change(other, ("retention.ms", SET, "77"), name="t7")).error_code == 0
        resources = [*named(*names, "gone"), *named("1", kind=BROKER)]
        await asyncio.sleep(1)  # until each broker has looked at what was changed
        monkeypatch.setattr(SessionClient, "get_many", count)
        monkeypatch.setattr(SessionClient, "get", get)
        answer = await client.send(DescribeConfigsRequest(resources=resources), 4)
        monkeypatch.undo()
        *topics, gone, broker = answer.results
        assert [each.resource_name for each in topics] == names
        own = {each.resource_name: by_name(each)["retention.ms"].value for each in topics}
        assert own.pop("t7") == "77"
        assert set(own.values()) == {"604800000"}
        assert gone.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION
        assert by_name(broker)["broker.id"].value == "1"
        assert read == [200, 200, 50]

    cluster.run(scenario())


def test_without_zookeeper_a_broker_describes_itself_and_refuses_topics() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started()
        client = await cluster.client()
        await create(client, "clicks")
        cluster.ensemble.stop()
        resources = [*named("clicks"), *named("1", kind=BROKER)]
        request = DescribeConfigsRequest(resources=resources)
        topic, broker = (await client.send(request, 4)).results
        assert (topic.error_code, topic.configs) == (Error.REQUEST_TIMED_OUT, [])
        assert by_name(broker)["broker.id"].value == "1"

    cluster.run(scenario())
