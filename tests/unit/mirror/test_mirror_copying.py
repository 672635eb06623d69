"""Many topics at once: each is mirrored once the target has it, whatever becomes of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from flow_world import FlowScene, flow_of, play

from kdist.cli.mirror.operating import print_status
from kdist.client.admin.outcomes import SomeFailed
from kdist.client.admin.settings import Settings, describe_topic_configs
from kdist.client.admin.topics import NewTopic, create_partitions, create_topics
from kdist.client.cluster import Address, Cluster, Outcome
from kdist.client.offsets import OffsetAndTimestamp
from kdist.errors import ApiError, Error
from kdist.mirror import copying
from kdist.mirror.mirror import Mirror
from kdist.mirror.status import FlowStatus, flow_status
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.protocol.list_offsets import ListOffsetsRequest
from kdist.testing.simulated_transport import Conditions
from tests.simulator.cluster import PORT, create, produce
from tests.unit.broker.broker_configs import replace

pytestmark = pytest.mark.played(by=play)

TOPICS = 120
PARTITIONS = 100
DELAY_MS = 50.0
LOOK_S = 620.0  # by then a mirror has looked at the settings again


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


async def test_a_target_that_adds_no_partitions_for_now_holds_up_no_other_topic(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def add_none(*_: object, **__: object) -> None:
        raise ApiError(Error.NOT_CONTROLLER, "the cluster has no controller at the moment")

    monkeypatch.setattr(copying, "create_partitions", add_none)
    await create(scene.client, "t.grown", 2)
    await create(scene.client, "copy.t.grown", 1)
    for topic in ("t.other", "copy.t.other"):
        await create(scene.client, topic)
    await produce(scene.client, "t.other", b"1")
    scene.start()
    await scene.until_copied("t.other", b"1")
    await scene.stop()


async def test_partitions_that_another_mirror_adds_first_are_not_refused(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def add_twice(cluster: Cluster, wanted: Mapping[str, int], **given: Any) -> None:
        await create_partitions(cluster, wanted, **given)
        await create_partitions(cluster, wanted, **given)

    monkeypatch.setattr(copying, "create_partitions", add_twice)
    await create(scene.client, "t", 2)
    await create(scene.client, "copy.t", 1)
    mirror = scene.start()
    await scene.cluster.until(lambda: len(flow_of(mirror).streams) == 2)
    assert "mirrored in part" not in caplog.text
    assert mirror._health_page().status == 200
    await scene.stop()


def differing(mirror: Mirror) -> dict[str, str]:
    """What `/health` says of copies that are not like their topics, which is no trouble."""
    page = mirror._health_page()
    assert page.status == 200
    found: dict[str, str] = json.loads(page.body)["flows"]["f"]["differing"]
    return found


async def status(scene: FlowScene) -> FlowStatus:
    network = scene.cluster.network.host("asking")
    cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("c"))
    found = await flow_status(flow_of(scene.mirror).flow, cluster, cluster, 0)
    cluster.close()
    return found


async def test_a_copy_with_more_partitions_is_told(
    scene: FlowScene, /, capsys: pytest.CaptureFixture[str]
) -> None:
    await create(scene.client, "t", 2)
    await create(scene.client, "copy.t", 5)
    await create(scene.client, "t.like")
    await produce(scene.client, "t", b"1")
    mirror = scene.start()
    await scene.until_copied("t", b"1")
    told = {"t": "it has 2 partitions in the source and 5 in the target"}
    await scene.cluster.until(lambda: differing(mirror) == told)
    assert (await status(scene)).differing == told
    print_status([await status(scene)])
    assert f"f: topic t differs from its copy: {told['t']}\n" in capsys.readouterr().out
    await scene.stop()


async def test_settings_that_were_changed_since_a_topic_was_copied_are_told_until_they_agree(
    scene: FlowScene, /
) -> None:
    await create(scene.client, "t", retention_ms="60000", cleanup_policy="compact,delete")
    await create(scene.client, "t.defaults")
    mirror = scene.start()
    await scene.cluster.until(lambda: len(flow_of(mirror).streams) == 2)
    changed = {"retention.ms": "90000", "cleanup.policy": "delete,compact"}
    await replace(scene.client, {**changed, "min.insync.replicas": "1"}, "t")
    told = {"t": "retention.ms is 90000 in the source and 60000 in the target"}
    assert (await status(scene)).differing == told
    await asyncio.sleep(LOOK_S)
    assert differing(mirror) == told
    await replace(scene.client, changed, "copy.t")
    assert (await status(scene)).differing == {}
    await asyncio.sleep(LOOK_S)
    assert differing(mirror) == {}
    await scene.stop()


async def test_the_positions_of_many_partitions_are_looked_up_in_a_few_requests(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("t", "copy.t"):
        await create(scene.client, topic, PARTITIONS)
    flow, asked = flow_of(scene.start()), []
    ask = flow.target.cluster.ask

    async def note(request: Any, *given: Any) -> Any:
        asked.append(request)
        return await ask(request, *given)

    monkeypatch.setattr(flow.target.cluster, "ask", note)
    await scene.cluster.until(lambda: len(flow.streams) == PARTITIONS)
    await scene.cluster.until(lambda: all(each.is_idle for each in flow.streams.values()))
    assert 0 < sum(isinstance(each, ListOffsetsRequest) for each in asked) < 20
    await scene.stop()


async def test_a_leader_that_hangs_delays_no_position_in_another_ones_partitions(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = flow_of(scene.start()).target
    hanging, well = TopicPartition("x", 0), TopicPartition("x", 1)

    async def ask(
        _: Cluster, wanted: Mapping[TopicPartition, int], **__: object
    ) -> dict[TopicPartition, Outcome]:
        if hanging in wanted:
            await asyncio.Event().wait()
        return dict.fromkeys(wanted, Outcome(0, OffsetAndTimestamp(7)))

    monkeypatch.setattr("kdist.mirror.lag.list_offsets_once", ask)
    target.cluster.leaders.update({hanging: 8, well: 9})
    waiting = asyncio.ensure_future(target.offsets(hanging))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(target.offsets(well), 1) == (7, 7)
    waiting.cancel()


async def test_hundreds_of_topics_are_mirrored_within_seconds_over_a_slow_link(
    scene: FlowScene, /
) -> None:
    await create_many(scene)
    scene.cluster.network.conditions = Conditions(delay_ms_max=DELAY_MS, cut_share=0.0)
    flow, begun_s = flow_of(scene.start()), scene.cluster.loop.time()
    await scene.cluster.until(lambda: len(flow.streams) == TOPICS)
    assert scene.cluster.loop.time() - begun_s < 6
    await scene.stop()
