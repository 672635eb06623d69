"""Topics recreated at either end, or refused: no records are skipped, and all tell which, why."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from flow_world import FlowScene, flow_of, is_stopped, play, stream_of

from kdist.cli.mirror.operating import passed_over
from kdist.client.admin.topics import delete_topics
from kdist.client.cluster import Address, Cluster
from kdist.config.mirror import Flow, FlowSettings
from kdist.errors import ApiError, Error, UserError
from kdist.mirror import copying
from kdist.mirror.origins import read_origins, write_origins
from kdist.mirror.seeking import seek
from kdist.mirror.selection import Origin, Selection, select
from kdist.mirror.status import FlowStatus, flow_status
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from tests.simulator.cluster import PORT, create, produce, produce_request

pytestmark = pytest.mark.played(by=play)

OLD, NEW = (b"old 1", b"old 2"), (b"new 1", b"new 2", b"new 3")
PARTITION = TopicPartition("t", 0)


def asking(scene: FlowScene) -> Cluster:
    network = scene.cluster.network.host("asks")
    return Cluster(network, [Address("m1", PORT)], ClientSettings("asks"))


async def make_anew(scene: FlowScene, partitions: int = 1) -> None:
    """Recreate the topic, with more records than it had."""
    await delete_topics(asking(scene), ["t"])
    await create(scene.client, "t", partitions)
    await produce(scene.client, "t", *NEW)


async def mirrored(scene: FlowScene) -> None:
    await create(scene.client, "t")
    scene.start()
    await produce(scene.client, "t", *OLD)
    await scene.until_copied("t", *OLD)


async def status(scene: FlowScene) -> FlowStatus:
    network = scene.cluster.network.host("asking")
    cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("c"))
    flow = flow_of(scene.mirror).flow
    found = await flow_status(flow, cluster, cluster, scene.cluster.clock.now_ms())
    cluster.close()
    return found


async def test_a_recreated_topic_stops_and_says_so_also_after_a_restart(
    scene: FlowScene, /
) -> None:
    await mirrored(scene)
    await scene.stop()
    await make_anew(scene)
    for _ in range(2):
        mirror = scene.start()
        await scene.cluster.until(lambda each=mirror: is_stopped(each))
        await scene.stop()
    assert await scene.values("copy.t") == list(OLD)
    cluster = asking(scene)
    found = await flow_status(flow_of(mirror).flow, cluster, cluster, 0)
    (row,) = found.partitions
    assert "was deleted and recreated" in (row.stopped or "")


async def test_a_topic_recreated_while_it_is_mirrored_stops(scene: FlowScene, /) -> None:
    await mirrored(scene)
    await make_anew(scene)
    await scene.cluster.until(lambda: is_stopped(scene.mirror))
    await scene.stop()


async def test_once_the_copy_is_deleted_too_all_of_the_new_topic_is_mirrored(
    scene: FlowScene, /
) -> None:
    await mirrored(scene)
    await scene.stop()
    await make_anew(scene)
    await delete_topics(asking(scene), ["copy.t"])
    for _ in range(2):
        scene.start()
        await scene.until_copied("t", *NEW)
        await scene.stop()


async def test_a_seek_in_all_partitions_resumes_with_the_new_topic(scene: FlowScene, /) -> None:
    await mirrored(scene)
    await scene.stop()
    await make_anew(scene, 2)
    flow, cluster = flow_of(scene.mirror).flow, asking(scene)
    with pytest.raises(UserError, match="seek in all of its partitions"):
        await seek(flow, cluster, cluster, {PARTITION: 0}, 0)
    sought = {PARTITION: 0, TopicPartition("t", 1): 0}
    found = await seek(flow, cluster, cluster, sought, 0)
    assert (found.offsets[PARTITION], found.recreated) == (2, {"t"})
    assert "To mirror them, too" in passed_over(PARTITION, 0, found)
    for _ in range(2):
        scene.start()
        await scene.until_copied("t", *OLD, NEW[2])
        await scene.stop()
    assert len((await read_origins(cluster))["copy.t"].id) > 0


async def test_a_copy_deleted_while_its_source_is_idle_stops_its_topic(scene: FlowScene, /) -> None:
    await mirrored(scene)
    await asyncio.sleep(5)  # its position is committed
    await delete_topics(asking(scene), ["copy.t"])
    await scene.cluster.until(lambda: is_stopped(scene.mirror))
    await produce(scene.client, "t", *NEW)
    await asyncio.sleep(5)
    assert await scene.values("copy.t") == []
    stream = stream_of(scene.mirror)
    assert stream is not None
    assert "was it deleted and recreated?" in str(stream.failure)
    await scene.stop()


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


async def test_a_topic_that_the_source_no_longer_has_is_seen_everywhere_until_its_copy_is_released(
    scene: FlowScene, /
) -> None:
    await create(scene.client, "t.a")
    await create(scene.client, "t.b")
    await produce(scene.client, "t.a", b"1")
    mirror = scene.start()
    await scene.until_copied("t.a", b"1")
    assert mirror._health_page().status == 200
    network = scene.cluster.network.host("asks")
    asking = Cluster(network, [Address("m1", PORT)], ClientSettings("asks"))
    await delete_topics(asking, ["t.a"])
    await scene.cluster.until(lambda: mirror._health_page().status == 503)
    await scene.stop()
    mirror = scene.start()  # a mirror that has never seen it says so, too
    await scene.cluster.until(lambda: mirror._health_page().status == 503)
    refused = json.loads(mirror._health_page().body)["flows"]["f"]["refused"]
    assert [*refused] == ["t.a"]
    assert (await status(scene)).held == refused
    assert flow_of(mirror).metrics.held_topics == 1
    assert [labels[1] for labels in mirror.measures.refused] == ["t.a"]
    origins = await read_origins(asking)
    released = origins["copy.t.a"]._replace(is_released=True)
    await write_origins(asking, {"copy.t.a": released}, 1)
    await scene.cluster.until(lambda: mirror._health_page().status == 200)
    await scene.cluster.until(lambda: not [*mirror.measures.refused])  # one request later
    asking.close()
    await scene.stop()


async def test_a_topic_whose_copy_was_deleted_with_it_is_forgotten(scene: FlowScene, /) -> None:
    await create(scene.client, "t.a")
    await produce(scene.client, "t.a", b"1")
    mirror = scene.start()
    await scene.until_copied("t.a", b"1")
    network = scene.cluster.network.host("asks")
    asking = Cluster(network, [Address("m1", PORT)], ClientSettings("asks"))
    await delete_topics(asking, ["t.a"])
    await scene.cluster.until(lambda: mirror._health_page().status == 503)
    await delete_topics(asking, ["copy.t.a"])
    await scene.cluster.until(lambda: mirror._health_page().status == 200)
    assert (await status(scene)).held == {}
    asking.close()
    await scene.stop()
