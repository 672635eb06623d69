"""A mirror that a cluster does not answer for a while goes on where it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from flow_world import FlowScene, flow_of, play

from kdist.errors import ApiError, Error
from kdist.mirror.target import ProduceConnection
from tests.simulator.cluster import PORT, Cluster, create, produce

CUT_S = 35.0
OUTAGE_S = 120.0
LATEST = {"flow_f_start": "latest"}


async def refuse(*_: object) -> None:
    raise ApiError(Error.LEADER_NOT_AVAILABLE)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.played(by=play)
async def test_a_mirror_from_the_latest_begins_where_it_was_though_the_target_answers_later(
    scene: FlowScene, /, restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(scene.client, "t")
    await produce(scene.client, "t", b"old")
    monkeypatch.setattr("kdist.mirror.stream.look_up_position", refuse)
    flow = flow_of(scene.start(**LATEST))
    await scene.cluster.until(lambda: len(flow.streams) == 1)
    await asyncio.sleep(5)
    await produce(scene.client, "t", b"new")
    await asyncio.sleep(5)
    if restarts:
        await scene.stop()
        scene.start(**LATEST)
    monkeypatch.undo()
    await scene.until_copied("t", b"new")
    await scene.stop()


@pytest.mark.parametrize("silent", ["m1", "m2"])
def test_while_either_cluster_is_silent_what_is_behind_gets_older(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(1)
        await Cluster(beside=cluster).started(2)
        client = await cluster.client()
        await client.negotiate()
        await create(client, "t")
        scene = FlowScene(cluster, client)
        flow = flow_of(scene.start(flow_f_target=f"m2:{PORT}"))
        await cluster.until(lambda: [each.is_idle for each in flow.streams.values()] == [True])
        monkeypatch.setattr(ProduceConnection, "post", never_answered)
        await produce(client, "t", b"1")
        shown = flow.measures.streams["f", "t", "0"]
        await cluster.until(lambda: shown.lag_records == 1)
        cluster.network.partition([silent], [{"m1": "m2", "m2": "m1"}[silent], "client", "mirror"])
        before_s = shown.lag_seconds
        await asyncio.sleep(OUTAGE_S)
        assert flow.measures.streams["f", "t", "0"].lag_seconds > before_s + OUTAGE_S / 2
        await scene.end()

    cluster.run(scenario())


def never_answered(*_: object) -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def test_a_link_that_is_cut_for_half_a_minute_costs_no_partition_its_position() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        await cluster.started(1)
        await Cluster(beside=cluster).started(2)
        client = await cluster.client()
        await client.negotiate()
        await create(client, "t", 2)
        scene = FlowScene(cluster, client)
        flow = flow_of(scene.start(flow_f_target=f"m2:{PORT}"))
        streams = flow.streams
        await cluster.until(
            lambda: len(streams) == 2 and all(each.is_idle for each in streams.values())
        )
        before = dict(streams)
        cluster.network.partition(["m1", "client"], ["m2", "mirror"])
        await produce(client, "t", b"1")
        await asyncio.sleep(CUT_S)
        cluster.network.heal()
        await cluster.until(lambda: [each.position for each in before.values()] == [1, 0])
        await asyncio.sleep(CUT_S)  # by then the source has told who is a member no longer
        assert streams == before
        assert flow.metrics.doubts == 0
        await scene.stop()

    cluster.run(scenario())
