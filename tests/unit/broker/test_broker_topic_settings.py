"""How a broker follows changes of topic settings while ZooKeeper refuses some requests."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kdist.protocol.incremental_alter_configs import SET
from kdist.zk.errors import Refused
from kdist.zk.memory import MemoryZooKeeper
from tests.simulator.cluster import Cluster, create
from tests.unit.broker.broker_configs import change, settings_of


def refusing(real: Callable[..., Awaitable[Any]], times: int) -> Callable[..., Awaitable[Any]]:
    """A request that ZooKeeper refuses a few times, as a server does that has too much to do."""
    left = [Refused("/config", "ZooKeeper says ThrottledOpError")] * times

    async def ask(*args: Any) -> Any:
        if left:
            raise left.pop()
        return await real(*args)

    return ask


def refuse(zk: MemoryZooKeeper, request: str, times: int = 3) -> None:
    setattr(zk, request, refusing(getattr(zk, request), times))


def note_reads(zk: MemoryZooKeeper, paths: list[str]) -> None:
    read = zk.get_many

    async def noted(asked: Sequence[str]) -> Any:
        paths.extend(asked)
        return await read(asked)

    zk.get_many = noted  # type: ignore[method-assign]


@pytest.mark.parametrize("request_name", ["get", "get_many"])
def test_a_change_that_could_not_be_read_is_read_again(request_name: str) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        first, _ = await cluster.started(1), await cluster.started(2)
        client, other = await cluster.client(1), await cluster.client(2)
        for name in ("clicks", "views"):
            assert (await create(client, name, 2)).error_code == 0
        refuse(cluster.zks[1], request_name)
        for name in ("clicks", "views"):
            result = await change(other, ("retention.ms", SET, "77"), name=name)
            assert result.error_code == 0
        for name in ("clicks", "views"):
            await cluster.until(lambda name=name: settings_of(cluster, name).retention_ms == 77)
        assert not first.failure.done()

    cluster.run(scenario())


def test_the_settings_of_a_new_topic_are_not_read_by_the_broker_that_wrote_them() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(1)
        second = await cluster.started(2)
        client = await cluster.client(1)
        await cluster.until(lambda: second.service.cache.loaded.is_set())
        reads: dict[int, list[str]] = {1: [], 2: []}
        for broker_id, zk in cluster.zks.items():
            note_reads(zk, reads[broker_id])
        second._overrides.expect("clicks", uuid.uuid4(), {"retention.ms": "5"})  # of another id
        assert (await create(client, "clicks", 2, retention_ms="77")).error_code == 0
        assert [settings_of(cluster, broker=each).retention_ms for each in (1, 2)] == [77, 77]
        assert reads == {1: [], 2: ["/config/topics/clicks"]}
        assert (await change(client, ("retention.ms", SET, "78"))).error_code == 0
        await cluster.until(lambda: settings_of(cluster).retention_ms == 78)

    cluster.run(scenario())


def test_topics_that_could_not_be_read_at_once_in_a_new_session_are_read_later() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(1)
        await cluster.started(2)
        client, other = await cluster.client(1), await cluster.client(2)
        assert (await create(client, "clicks", 2)).error_code == 0
        zk = cluster.zks[1]
        cluster.ensemble.suspend(zk)
        assert (await change(other, ("retention.ms", SET, "77"))).error_code == 0
        for name in await cluster.zks[2].children("/config/changes"):
            await cluster.zks[2].delete(f"/config/changes/{name}")
        cluster.ensemble.expire(zk)
        refuse(zk, "get_many")
        cluster.ensemble.resume(zk)
        await cluster.until(lambda: settings_of(cluster).retention_ms == 77)

    cluster.run(scenario())
