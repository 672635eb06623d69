"""A whole mirror in virtual time: what is wrong with a partition stops that one, and is told."""

from __future__ import annotations

import pytest
from flow_world import FlowScene, flow_of, is_stopped, play, stream_of

from kdist.errors import ApiError, Error
from kdist.model import TopicPartition
from tests.unit.broker.broker_cluster import create, produce
from tests.unit.broker.test_broker_delete_records import trim

LABELS = ("f", "t", "0")


async def lose(scene: FlowScene) -> None:
    """Two records of `t` are mirrored, and two of the next three are gone before they were."""
    await create(scene.client, "t")
    scene.start()
    await produce(scene.client, "t", b"1", b"2")
    await scene.until_copied("t", b"1", b"2")
    await scene.stop()
    for value in (b"3", b"4", b"5"):
        await produce(scene.client, "t", value)
    assert (await trim(scene.client, 4, topic="t")).error_code == 0


def test_a_partition_whose_records_are_gone_is_shown_as_stopped_and_the_others_go_on() -> None:
    async def work(scene: FlowScene) -> None:
        await lose(scene)
        await create(scene.client, "t2")
        mirror = scene.start()
        await scene.cluster.until(lambda: is_stopped(mirror))
        await produce(scene.client, "t2", b"other")
        await scene.until_copied("t2", b"other")
        flow = flow_of(mirror)
        before_s = flow.heard_at_s
        await scene.cluster.until(lambda: flow.heard_at_s > before_s)
        assert flow.measures.streams[LABELS].is_stopped == 1
        assert flow.measures.streams[LABELS].lag_records == 1
        await scene.stop()

    play(work)


def test_a_loss_that_nobody_can_measure_for_now_is_measured_later(
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
        assert "offsets 2 to 4 were not mirrored" in stream.reason
        await scene.stop()

    play(work)
