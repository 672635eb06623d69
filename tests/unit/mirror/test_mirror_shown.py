"""A mirror's status and metrics, in virtual time, while it cannot read or cannot begin."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from flow_world import FlowScene, flow_of, play, stream_of

from kdist.client.cluster import NoBroker
from kdist.errors import ApiError, Error
from kdist.mirror.retention import SourceRetention
from kdist.mirror.target import ProduceConnection
from kdist.protocol.delete_topics import DeleteTopicsRequest
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.build import build_batch
from tests.simulator.cluster import create, produce
from tests.unit.broker.test_broker_delete_records import trim

LABELS = ("f", "t", "0")
STARTS = {"earliest": 3, "latest": 0}


async def refuse(*_: object) -> None:
    raise ApiError(Error.INCONSISTENT_GROUP_PROTOCOL, "others have this group")


def test_a_flow_that_cannot_read_its_source_is_silent_and_unhealthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t")
        mirror = scene.start()
        flow = flow_of(mirror)
        await produce(scene.client, "t", b"1")
        await scene.until_copied("t", b"1")
        read = flow._consumer.poll_batches
        monkeypatch.setattr(flow._consumer, "poll_batches", refuse)
        await asyncio.sleep(70)
        page = mirror._health_page()
        assert page.status == 503
        assert "others have this group" in json.loads(page.body)["flows"]["f"]["trouble"]
        mirror._metrics_page()
        assert flow.metrics.silent_seconds > 60
        monkeypatch.setattr(flow._consumer, "poll_batches", read)
        await asyncio.sleep(5)
        assert mirror._health_page().status == 200
        await scene.stop()

    play(work)


@pytest.mark.parametrize("start", STARTS)
def test_a_partition_whose_target_has_never_answered_is_behind(
    start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t")
        await produce(scene.client, "t", b"1", b"2", b"3")
        monkeypatch.setattr("kdist.mirror.stream.look_up_position", refuse_for_now)
        flow = flow_of(scene.start(flow_f_start=start))
        await asyncio.sleep(10)
        assert flow.measures.streams[LABELS].lag_records == STARTS[start]
        assert (flow.measures.streams[LABELS].lag_seconds > 0) == (start == "earliest")
        await scene.stop()

    play(work)


def test_a_partition_shows_for_how_long_the_source_keeps_its_records() -> None:
    kept_s = {"brief": 60.0, "t": 604_800.0, "endless": math.inf, "compacted": math.inf}

    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t")
        await create(scene.client, "brief", retention_ms="60000")
        await create(scene.client, "endless", retention_ms="-1")
        await create(scene.client, "compacted", cleanup_policy="compact")
        flow = flow_of(scene.start(flow_f_topics=".*"))

        def shown() -> dict[str, float]:
            streams = flow.measures.streams
            return {topic: streams["f", topic, "0"].retention_seconds for topic in kept_s}

        await scene.cluster.until(lambda: shown() == kept_s)
        await scene.stop()

    play(work)


def test_a_topic_whose_retention_cannot_be_told_hides_no_other_and_keeps_what_was_known() -> None:
    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t", retention_ms="60000")
        await create(scene.client, "brief", retention_ms="30000")
        source = flow_of(scene.start()).source
        retention = SourceRetention(source)
        await retention.look({"t", "brief"}, 0)
        deleted = DeleteTopicsRequest(topic_names=["brief"], timeout_ms=10_000)
        await scene.client.send(deleted, 1)
        await create(scene.client, "new", retention_ms="90000")
        await retention.look({"t", "brief", "new", "unheard"}, 1)
        told = {topic: retention.seconds(topic) for topic in ("t", "brief", "new", "unheard")}
        assert told == {"t": 60, "brief": 30, "new": 90, "unheard": math.inf}
        await scene.stop()

    play(work)


async def not_reached(*_: object) -> None:
    raise NoBroker("no broker answers")


@pytest.mark.parametrize("answer", [refuse, not_reached])
def test_a_source_that_does_not_tell_its_retention_is_mirrored_all_the_same(
    answer: Callable[..., Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdist.mirror.retention.describe_topic_configs", answer)

    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t")
        flow = flow_of(scene.start())
        await produce(scene.client, "t", b"1")
        await scene.until_copied("t", b"1")
        await asyncio.sleep(20)
        assert flow.measures.streams[LABELS].retention_seconds == math.inf
        assert flow.trouble.said == ""
        await scene.stop()

    play(work)


def test_a_record_without_a_timestamp_is_not_behind_since_1970(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t")
        part = ProducePartition(index=0, records=build_batch([b"old"], timestamp_ms=-1))
        topics = [ProduceTopic(name="t", partition_data=[part])]
        await scene.client.send(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics))
        monkeypatch.setattr("kdist.mirror.stream.look_up_position", refuse_for_now)
        flow = flow_of(scene.start(flow_f_start="earliest"))
        await asyncio.sleep(10)
        assert flow.measures.streams[LABELS].lag_records == 1
        assert flow.measures.streams[LABELS].lag_seconds == 0
        await scene.stop()

    play(work)


def test_records_deleted_at_the_source_are_not_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even while the mirror holds the first of them, which the target does not answer."""

    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t")
        mirror = scene.start()
        await produce(scene.client, "t", b"1", b"2")
        await scene.until_copied("t", b"1", b"2")
        flow, stream = flow_of(mirror), stream_of(mirror)
        monkeypatch.setattr(ProduceConnection, "post", never_answered)
        for value in (b"3", b"4", b"5"):
            await produce(scene.client, "t", value)
        await scene.cluster.until(lambda: flow.measures.streams[LABELS].lag_records == 3)
        assert stream.oldest is not None
        assert (await trim(scene.client, 4, topic="t")).error_code == 0
        await scene.cluster.until(lambda: flow.measures.streams[LABELS].lag_records < 3)
        assert flow.measures.streams[LABELS].lag_records == 1

    play(work)


def never_answered(*_: object) -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


async def refuse_for_now(*_: object) -> None:
    raise ApiError(Error.LEADER_NOT_AVAILABLE)
