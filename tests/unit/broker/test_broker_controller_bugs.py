"""A bug that the controller meets costs a command or the term, and never the broker."""

from __future__ import annotations

from typing import Any

import pytest

from kdist.controller import commands
from kdist.controller.loading import Loader
from kdist.errors import Error
from kdist.protocol.create_topics import CreateTopicsRequest, NewTopic
from kdist.zk import znodes
from tests.simulator.cluster import Cluster


def run(scenario: Any) -> None:
    cluster = Cluster(0)
    cluster.run(scenario(cluster))


async def created(cluster: Cluster, name: str) -> Error:
    client = await cluster.client()
    new = NewTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    answer = await client.send(CreateTopicsRequest(topics=[new], timeout_ms=20_000), 5)
    return Error.of(answer.topics[0].error_code)


def test_an_order_that_meets_a_bug_is_refused_and_the_controller_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = commands.plan_topic

    def poisoned(new: NewTopic, *rest: Any) -> Any:
        if new.name == "poison":
            raise ZeroDivisionError
        return plan(new, *rest)

    monkeypatch.setattr(commands, "plan_topic", poisoned)

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.started()
        term = broker.service.controller._term
        for _ in range(2):
            assert await created(cluster, "poison") is Error.UNKNOWN_SERVER_ERROR
        assert await created(cluster, "clicks") is Error.NONE
        assert broker.service.controller._term is term

    run(scenario)


def test_a_znode_that_meets_a_bug_ends_terms_until_it_is_gone_and_no_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = Loader.reassignment

    async def poisoned(self: Loader, watch: Any) -> Any:
        if await self._zk.exists(znodes.REASSIGNMENT.path(), watch):
            raise ZeroDivisionError
        return await read(self, watch)

    monkeypatch.setattr(Loader, "reassignment", poisoned)

    async def scenario(cluster: Cluster) -> None:
        broker = await cluster.started()
        path = znodes.REASSIGNMENT.path()
        metrics = broker.service._measures.controller
        await broker.context.zk.create(path, b"poison")
        await cluster.until(lambda: metrics.crashed == 2)
        await broker.context.zk.delete(path)
        assert await created(cluster, "clicks") is Error.NONE
        assert metrics.crashed < 10

    run(scenario)
