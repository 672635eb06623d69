"""Topics that the target refuses: the flow's health, metrics, status and log say which, and why."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from flow_world import FlowScene, flow_of, play

from kdist.client.admin.topics import delete_topics
from kdist.client.cluster import Address, Cluster
from kdist.config.mirror import Flow, FlowSettings
from kdist.errors import ApiError, Error
from kdist.mirror import copying
from kdist.mirror.selection import Origin, Selection, select
from kdist.mirror.status import FlowStatus, flow_status
from kdist.network.client import ClientSettings
from tests.simulator.cluster import PORT, create, produce, produce_request


async def status(scene: FlowScene) -> FlowStatus:
    network = scene.cluster.network.host("asking")
    cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("c"))
    flow = flow_of(scene.mirror).flow
    found = await flow_status(flow, cluster, cluster, scene.cluster.clock.now_ms())
    cluster.close()
    return found


def test_a_topic_that_the_target_refuses_is_seen_everywhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(scene: FlowScene) -> None:
        await create(scene.client, "copy.t_a")  # beside which there may be no copy.t.a
        await create(scene.client, "t.a")
        await create(scene.client, "t.b")
        await produce(scene.client, "t.a", b"1")
        await produce(scene.client, "t.b", b"1")
        mirror = scene.start()
        await scene.until_copied("t.b", b"1")

        page = mirror._health_page()
        found = json.loads(page.body)["flows"]["f"]
        assert (page.status, found["status"]) == (503, "trouble")
        assert [*found["refused"]] == ["t.a"]
        reason = found["refused"]["t.a"]
        assert reason.startswith("the target refuses to create it: ")
        assert "t_a" in reason
        text = mirror._metrics_page().body.decode()
        (line,) = [line for line in text.splitlines() if line.startswith("kdist_mirror_refused{")]
        assert 'flow="f"' in line
        assert 'topic="t.a"' in line
        assert reason in line
        shown = await status(scene)
        assert shown.held == {"t.a": reason}
        behind = {each.source.topic: each.lag.records for each in shown.partitions}
        assert behind["t.a"] == 1
        warned = [each for each in caplog.messages if "topic t.a is not mirrored" in each]
        assert warned == [f"flow f: topic t.a is not mirrored: {reason}"]

        network = scene.cluster.network.host("deletes")
        cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("c"))
        await delete_topics(cluster, ["copy.t_a"])
        await scene.until_copied("t.a", b"1")
        await asyncio.sleep(2)
        assert mirror._health_page().status == 200
        assert "kdist_mirror_refused{" not in mirror._metrics_page().body.decode()
        assert (await status(scene)).held == {}
        await scene.stop()

    with caplog.at_level(logging.WARNING):
        play(work)


def test_a_target_that_refuses_only_more_partitions_gets_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(*_: object, **__: object) -> None:
        raise ApiError(Error.POLICY_VIOLATION, "topic copy.t: one partition is enough")

    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t", 3)
        await create(scene.client, "copy.t", 1)
        for partition in range(3):
            request = produce_request("t", b"%d" % partition, partition=partition)
            await scene.client.send(request, 9)
        mirror = scene.start()
        await scene.until_copied("t", b"0")
        reason = (
            "partitions 1 to 2 are not mirrored: the target refuses to add them:"
            " topic copy.t: one partition is enough"
        )
        await asyncio.sleep(5)
        page = mirror._health_page()
        assert page.status == 503
        assert json.loads(page.body)["flows"]["f"]["refused"] == {"t": reason}
        assert f'reason="{reason}"' in mirror._metrics_page().body.decode()
        found = await status(scene)
        assert (found.held, found.in_part) == ({"t": reason}, {"t"})
        assert {each.source.partition: each.lag.records for each in found.partitions} == {
            0: 0,
            1: 1,
            2: 1,
        }
        await produce(scene.client, "t", b"more")
        await scene.until_copied("t", b"0", b"more")
        monkeypatch.undo()  # the target has been mended
        for partition in (1, 2):
            await scene.until_copied("t", b"%d" % partition, partition=partition)
        await asyncio.sleep(5)
        assert mirror._health_page().status == 200
        assert (await status(scene)).held == {}
        await scene.stop()

    monkeypatch.setattr(copying, "create_partitions", refuses)
    with caplog.at_level(logging.WARNING):
        play(work)
    said = [each for each in caplog.messages if "is mirrored in part" in each]
    assert len(said) == 1


def test_a_pattern_that_matches_no_topic_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: FlowScene) -> None:
        await create(scene.client, "t")
        await produce(scene.client, "t", b"1")
        mirror = scene.start(flow_f_topics=r"t,never\\d{1,2}")
        await scene.until_copied("t", b"1")
        await asyncio.sleep(5)
        page = mirror._health_page()
        assert page.status == 200
        assert json.loads(page.body)["flows"]["f"]["unmatched"] == [r"never\d{1,2}"]
        assert (await status(scene)).unmatched == (r"never\d{1,2}",)
        await scene.stop()

    with caplog.at_level(logging.WARNING):
        play(work)
    said = [each for each in caplog.messages if "matches no topic" in each]
    assert said == [r"flow f: the pattern never\d{1,2} matches no topic of the source"]


def test_only_what_somebody_must_mend_is_refused() -> None:
    flow = Flow("f", FlowSettings(source="a:1", target="b:1", prefix="copy."))
    long = "t" * 249
    origins = {"back": Origin("back", ("target",))}
    found = select(flow, ["t", "copy.t", "back", long], origins, "target")
    assert [*found.mirrored] == ["t"]
    assert {*found.held} == {"copy.t", "back", long}
    assert found.refused == {long}
    assert Selection({}, {}).refused == frozenset()
