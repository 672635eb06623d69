"""Many topics at once: each is mirrored once the target has it, whatever becomes of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from flow_world import FlowScene, flow_of, play

from kdist.client.admin.outcomes import SomeFailed
from kdist.client.admin.settings import Settings, describe_topic_configs
from kdist.client.admin.topics import NewTopic, create_topics
from kdist.client.cluster import Cluster
from kdist.errors import ApiError, Error
from kdist.mirror import copying
from kdist.testing.simulated_transport import Conditions
from tests.simulator.cluster import create, produce

pytestmark = pytest.mark.played(by=play)

TOPICS = 120
DELAY_MS = 50.0


async def create_many(scene: FlowScene) -> None:
    for number in range(TOPICS):
        await create(scene.client, f"t{number:03}")
    await produce(scene.client, "t000", b"1")


async def test_topics_are_mirrored_while_others_are_still_created(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    is_blocked = asyncio.Event()

    async def block_last(cluster: Cluster, topics: Iterable[NewTopic], **given: Any) -> Any:
        wanted = list(topics)
        asked.append(len(wanted))
        if any(each.name == f"copy.t{TOPICS - 1}" for each in wanted):
            is_blocked.set()
            await asyncio.Event().wait()
        return await create_topics(cluster, wanted, **given)

    monkeypatch.setattr(copying, "create_topics", block_last)
    await create_many(scene)
    mirror = scene.start()
    await asyncio.wait_for(is_blocked.wait(), 60)
    await scene.until_copied("t000", b"1")
    assert len(flow_of(mirror).streams) == sum(asked[:-1])
    assert len(asked) < 10


async def test_a_topic_that_cannot_be_created_for_now_holds_up_no_other(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = ApiError(Error.REQUEST_TIMED_OUT, "topic copy.t.a: not all brokers know it")

    async def create_others(cluster: Cluster, topics: Iterable[NewTopic], **given: Any) -> Any:
        others = [each for each in topics if each.name != "copy.t.a"]
        done = await create_topics(cluster, others, **given) if others else {}
        raise SomeFailed({"copy.t.a": late}, done)

    monkeypatch.setattr(copying, "create_topics", create_others)
    for topic in ("t.a", "t.b"):
        await create(scene.client, topic)
        await produce(scene.client, topic, b"1")
    mirror = scene.start()
    await scene.until_copied("t.b", b"1")
    found = json.loads(mirror._health_page().body)["flows"]["f"]
    assert "not all brokers know it" in found["trouble"]
    assert found["refused"] == {}
    monkeypatch.undo()
    await scene.until_copied("t.a", b"1")
    await scene.stop()


async def test_a_topic_whose_settings_the_source_does_not_tell_says_so_and_holds_up_no_other(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = ApiError(Error.TOPIC_AUTHORIZATION_FAILED, "topic t.a: not for you")

    async def tell_others(cluster: Cluster, topics: Iterable[str]) -> dict[str, Settings]:
        others = [each for each in topics if each != "t.a"]
        found = await describe_topic_configs(cluster, others) if others else {}
        raise SomeFailed({"t.a": denied}, found)

    monkeypatch.setattr(copying, "describe_topic_configs", tell_others)
    for topic in ("t.a", "t.b"):
        await create(scene.client, topic, retention_ms="60000")
        await produce(scene.client, topic, b"1")
    mirror = scene.start()
    await scene.until_copied("t.b", b"1")
    await asyncio.sleep(2)
    refused = json.loads(mirror._health_page().body)["flows"]["f"]["refused"]
    assert refused == {"t.a": "the source does not tell its settings: topic t.a: not for you"}
    await scene.stop()


async def test_hundreds_of_topics_are_mirrored_within_seconds_over_a_slow_link(
    scene: FlowScene, /
) -> None:
    await create_many(scene)
    scene.cluster.network.conditions = Conditions(delay_ms_max=DELAY_MS, cut_share=0.0)
    flow, begun_s = flow_of(scene.start()), scene.cluster.loop.time()
    await scene.cluster.until(lambda: len(flow.streams) == TOPICS)
    assert scene.cluster.loop.time() - begun_s < 6
    await scene.stop()
