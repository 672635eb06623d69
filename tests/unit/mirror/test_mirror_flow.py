"""A whole mirror in virtual time: a fault in a partition stops that one alone, and is reported."""

from __future__ import annotations

import asyncio

import pytest
from flow_world import FlowScene, flow_of, is_stopped, play, stream_of

from kdist.client.cluster import Address, Cluster
from kdist.client.consumer.rebalancing import Partitions
from kdist.errors import ApiError, Error, UserError
from kdist.mirror.loss import Loss
from kdist.mirror.seeking import seek
from kdist.mirror.selection import Selection
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.batch import HEADER_SIZE, seal
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from tests.simulator.cluster import PORT, create, produce
from tests.unit.broker.test_broker_delete_records import trim

LABELS = ("f", "t", "0")


async def lose(scene: FlowScene) -> None:
    """Two records of `t` are mirrored; two of the next three are deleted before they can be."""
    await create(scene.client, "t")
    scene.start()
    await produce(scene.client, "t", b"1", b"2")
    await scene.until_copied("t", b"1", b"2")
    await scene.stop()
    for value in (b"3", b"4", b"5"):
        await produce(scene.client, "t", value)
    assert (await trim(scene.client, 4, topic="t")).error_code == 0


def test_a_partition_that_lost_records_is_shown_as_stopped_and_the_others_continue() -> None:
    async def work(scene: FlowScene) -> None:
        await lose(scene)
        await create(scene.client, "t2")
        mirror = scene.start()
        await scene.cluster.until(lambda: is_stopped(mirror))
        await produce(scene.client, "t2", b"other")
        await scene.until_copied("t2", b"other")
        flow = flow_of(mirror)
        assert flow.measures.streams[LABELS].is_stopped == 1
        await scene.cluster.until(lambda: flow.measures.streams[LABELS].lag_records == 1)
        await scene.stop()

    play(work)


def test_a_session_timeout_that_the_source_refuses_ends_the_mirror() -> None:
    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t")
        scene.start(mirror_session_timeout_ms="2000")
        await scene.cluster.until(lambda: scene.has_ended)
        with pytest.raises(UserError, match=r"refuses mirror\.session\.timeout\.ms"):
            await scene.stop()

    play(work)


def test_a_seek_reports_where_it_resumes_which_is_never_backwards() -> None:
    async def work(scene: FlowScene) -> None:
        await lose(scene)
        flow = flow_of(scene.mirror).flow
        network = scene.cluster.network.host("seeker")
        cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("seeker"))
        partition = TopicPartition("t", 0)
        assert await seek(flow, cluster, cluster, {partition: 1}, 0) == {partition: 2}
        assert await seek(flow, cluster, cluster, {partition: 4}, 0) == {partition: 4}
        scene.start()
        await scene.until_copied("t", b"1", b"2", b"5")
        await scene.stop()

    play(work)


def test_a_loss_that_cannot_be_measured_yet_is_measured_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(scene: FlowScene) -> None:
        await lose(scene)
        mirror = scene.start()
        flow = flow_of(mirror)
        measure, refusals = flow._offset, iter([Error.LEADER_NOT_AVAILABLE] * 2)

        async def refuse_first(partition: TopicPartition, which: str) -> int:
            if error := next(refusals, None):
                raise ApiError(error)
            return await measure(partition, which)

        monkeypatch.setattr(flow, "_offset", refuse_first)
        await scene.cluster.until(lambda: is_stopped(mirror))
        assert next(refusals, None) is None
        stream = stream_of(mirror)
        assert stream is not None
        assert "offsets 2 to 4 were not mirrored" in str(stream.failure)
        await scene.stop()

    play(work)


def test_a_mirror_that_is_to_stop_at_a_loss_ends_with_it() -> None:
    async def work(scene: FlowScene) -> None:
        await lose(scene)
        scene.start(mirror_on_loss="stop-mirror")
        await scene.cluster.until(lambda: scene.has_ended)
        with pytest.raises(Loss, match="offsets 2 to 4 were not mirrored"):
            await scene.stop()

    play(work)


def rotten() -> bytes:
    """A batch whose checksum is good, and whose records nobody can decompress."""
    data = build_batch([b"x" * 1000], timestamp_ms=0, codec=Codec.GZIP)
    data[HEADER_SIZE:] = bytes(len(data) - HEADER_SIZE)
    seal(data, 0, len(data))
    return bytes(data)


def test_a_batch_that_cannot_be_rebuilt_stops_its_partition_and_no_other() -> None:
    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t", message_timestamp_type="LogAppendTime")
        await create(scene.client, "t2")
        mirror = scene.start()
        await produce(scene.client, "t", b"1")
        await scene.until_copied("t", b"1")
        part = ProducePartition(index=0, records=rotten())
        topics = [ProduceTopic(name="t", partition_data=[part])]
        request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topics)
        answer = await scene.client.send(request, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        await scene.cluster.until(lambda: scene.has_ended or is_stopped(mirror))
        await produce(scene.client, "t2", b"other")
        await scene.until_copied("t2", b"other")
        stream = stream_of(mirror)
        assert stream is not None
        assert stream.position == 1
        assert "t-0, at offset 1: " in str(stream.failure)
        await scene.stop()

    play(work)


def test_a_mirror_whose_topics_are_deleted_during_a_rebalance_leaves_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t")
        await create(scene.client, "t2")
        flow = flow_of(scene.start())
        await scene.cluster.until(lambda: len(flow.streams) == 2)
        selections = [Selection({"t2": "copy.t2"}, {})]
        waits_s, revoke = [5], flow.on_revoked

        async def find_fewer(_: int) -> Selection:
            return selections.pop() if selections else Selection({}, {})

        async def revoke_slowly(partitions: Partitions) -> None:
            await asyncio.sleep(waits_s.pop() if waits_s else 0)
            await revoke(partitions)

        monkeypatch.setattr(flow.topics, "refresh", find_fewer)
        monkeypatch.setattr(flow, "on_revoked", revoke_slowly)
        await asyncio.sleep(30)
        assert flow.streams == {}
        membership = flow._consumer._core.membership
        assert membership is not None
        assert not membership.is_member
        await scene.stop()

    play(work)
