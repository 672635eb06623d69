"""Two clusters in virtual time: a topic fails over, is released, and is mirrored back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from flow_world import FlowScene, flow_of, is_stopped

from kdist.client.admin.topics import delete_topics
from kdist.client.cluster import Address
from kdist.client.cluster import Cluster as Asking
from kdist.client.consumer.batch import Batch
from kdist.config.mirror import Flow, FlowSettings
from kdist.mirror.origins import read_origins, write_origins
from kdist.mirror.position_marker import mark_of, run_for
from kdist.mirror.rewritten_batch import RewrittenBatch
from kdist.mirror.selection import Origin, begin_at, select
from kdist.mirror.status import flow_status
from kdist.mirror.trouble import Loss
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.records.batch import read_header
from kdist.records.build import build_batch
from tests.simulator.cluster import PATIENCE_S, PORT, Cluster, create, produce, produce_request

HOSTS = {"a": "m1", "b": "m4"}


class Pair:
    """Clusters a and b, of one broker each, and the mirror that runs between them."""

    def __init__(self, a: Cluster, b: Cluster) -> None:
        self.clusters = {"a": a, "b": b}
        self.scenes: dict[str, FlowScene] = {}
        self.asking: dict[str, Asking] = {}

    async def begin(self) -> None:
        for (name, cluster), number in zip(self.clusters.items(), (1, 4), strict=True):
            await cluster.started(number)
            client = await cluster.client(number)
            await client.negotiate()
            self.scenes[name] = FlowScene(cluster, client)
            network = cluster.network.host("operator")
            self.asking[name] = Asking(
                network, [Address(HOSTS[name], PORT)], ClientSettings("operator"), 5_000
            )

    async def produce(self, name: str, *values: bytes) -> None:
        """Produce each as a batch of its own."""
        for each in values:
            await produce(self.scenes[name].client, "t", each)

    def start(self, name: str, **settings: str) -> None:
        """Start the mirror from a cluster to the other one."""
        source, target = f"{HOSTS[name]}:{PORT}", f"{HOSTS['b' if name == 'a' else 'a']}:{PORT}"
        flow = f"from-{name}"
        given = {f"flow_{flow}_source": source, f"flow_{flow}_target": target}
        self.scenes[name].start({"mirror.refresh.interval.ms": "1000"}, **given, **settings)

    async def stop(self, name: str) -> None:
        await self.scenes[name].stop()

    async def until(self, name: str, *values: bytes) -> None:
        """Wait until the topic in a cluster holds exactly these values, and still does later."""
        end_s = self.scenes[name].cluster.loop.time() + PATIENCE_S
        while len(found := await self.scenes[name].values("t")) < len(values):
            assert self.scenes[name].cluster.loop.time() < end_s, found
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        assert await self.scenes[name].values("t") == list(values)

    async def release(self, name: str) -> None:
        origins = await read_origins(self.asking[name])
        released = origins["t"]._replace(is_released=True)
        await write_origins(self.asking[name], {"t": released}, 1)


def play(work: Callable[[Pair], Awaitable[None]]) -> None:
    a = Cluster()
    pair = Pair(a, Cluster(beside=a))

    async def scenario() -> None:
        await pair.begin()
        try:
            await work(pair)
        finally:
            for each in pair.scenes.values():
                await each.end()

    a.run(scenario())


pytestmark = pytest.mark.played(by=play)


async def failed_over(pair: Pair) -> None:
    """a has 1 and 2, which b has too, and b has a 3 before the 2 and a 4 behind it."""
    await create(pair.scenes["a"].client, "t")
    pair.start("a")
    await pair.produce("a", b"1")
    await pair.until("b", b"1")
    await pair.produce("b", b"3")
    await pair.produce("a", b"2")
    await pair.until("b", b"1", b"3", b"2")
    await pair.stop("a")
    await pair.produce("b", b"4")
    await pair.release("b")


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_mirror_back_sends_what_the_target_lacks_and_nothing_else(
    pair: Pair, /, start: str
) -> None:
    await failed_over(pair)
    settings = FlowSettings(source="b:1", target="a:1", start=start)
    asked = (pair.asking["b"], pair.asking["a"], 0)
    (row,) = (await flow_status(Flow("from-b", settings), *asked)).partitions
    assert (row.lag.records, row.stopped) == (4, None)
    pair.start("b", **{"flow_from-b_start": start})
    await pair.until("a", b"1", b"2", b"3", b"4")
    await pair.produce("b", b"5")
    await pair.until("a", b"1", b"2", b"3", b"4", b"5")


async def test_a_topic_that_went_forth_and_back_and_forth_again_has_each_record_once(
    pair: Pair, /
) -> None:
    await failed_over(pair)
    await pair.produce("a", b"tail")  # what a took before it failed, and b never had
    pair.start("b")
    await pair.until("a", b"1", b"2", b"tail", b"3", b"4")
    await pair.stop("b")
    await pair.release("a")
    await pair.produce("a", b"5")
    pair.start("a")
    await pair.until("b", b"1", b"3", b"2", b"4", b"tail", b"5")
    await pair.stop("a")
    pair.start("a")
    await pair.produce("a", b"6")
    await pair.until("b", b"1", b"3", b"2", b"4", b"tail", b"5", b"6")


async def test_a_mirror_back_that_only_skipped_goes_on_after_that_when_it_starts_again(
    pair: Pair, /
) -> None:
    await failed_over(pair)
    pair.start("b")
    await pair.until("a", b"1", b"2", b"3", b"4")
    await pair.stop("b")
    pair.start("b")
    await pair.produce("b", b"5")
    await pair.until("a", b"1", b"2", b"3", b"4", b"5")
    stream = flow_of(pair.scenes["b"].mirror).streams[TopicPartition("t", 0)]
    assert (stream.position, stream.is_idle) == (5, True)


async def test_a_topic_that_was_deleted_at_home_gets_all_of_its_records_back(pair: Pair, /) -> None:
    await failed_over(pair)
    await delete_topics(pair.asking["a"], ["t"])
    pair.start("b")
    await pair.until("a", b"1", b"3", b"2", b"4")


async def test_a_mirror_back_stops_if_the_target_has_lost_what_came_from_it(pair: Pair, /) -> None:
    await failed_over(pair)
    partition = TopicPartition("t", 0)
    data = build_batch([b"was 9 in a"], timestamp_ms=1)
    lost = RewrittenBatch(Batch(partition, read_header(data), bytes(data), 0, 0))
    cluster_id = (await pair.asking["a"].metadata()).cluster_id or ""
    lost.stamp(run_for(mark_of(cluster_id, partition), None, 9, 10))
    request = produce_request("t", b"")
    request.topic_data[0].partition_data[0].records = lost.data
    await pair.scenes["b"].client.send(request, 9)
    pair.start("b")
    scene = pair.scenes["b"]
    await scene.cluster.until(lambda: is_stopped(scene.mirror))
    stream = flow_of(scene.mirror).streams[partition]
    assert isinstance(stream.failure, Loss)
    assert await pair.scenes["a"].values("t") == [b"1", b"2", b"3", b"4"]


def test_a_released_topic_returns_only_the_way_it_came_and_only_to_the_same_topic() -> None:
    flow = Flow("f", FlowSettings(source="b:1", target="a:1"))
    there = Origin("t", ("x", "a"), "id", None, is_released=True)
    found = select(flow, ["t"], {"t": there}, "a", {"t": "id"})
    assert (found.mirrored, found.returning) == ({"t": "t"}, {"t"})
    assert not select(flow, ["t"], {"t": there}, "a", {"t": "other"}).returning
    assert not select(flow, ["t"], {"t": there._replace(id="")}, "a", {"t": ""}).returning
    assert "t" in select(flow, ["t"], {"t": there}, "x", {"t": "id"}).held
    assert "t" in select(flow, ["t"], {"t": there._replace(is_released=False)}, "a", {}).held


async def test_a_topic_that_is_mirrored_from_two_clusters_keeps_both_origins(pair: Pair, /) -> None:
    other = Origin("t", ("y", "x"), "id in x", 3)
    await write_origins(pair.asking["b"], {"t": other}, 1)
    await create(pair.scenes["a"].client, "t")
    pair.start("a")
    await pair.produce("a", b"1")
    await pair.until("b", b"1")
    await pair.stop("a")
    found = (await read_origins(pair.asking["b"]))["t"]
    cluster_id = (await pair.asking["a"].metadata()).cluster_id or ""
    assert found.from_topic("t", "x") == other
    assert found.from_topic("t", cluster_id) is not None
    flow = Flow("f", FlowSettings(source="b:1", target="x:1"))
    for target in ("x", "y", cluster_id):
        assert "t" in select(flow, ["t"], {"t": found}, target).held
    assert not select(flow, ["t"], {"t": found}, "z").held
    assert found.is_recreated(other._replace(id="another"))
    assert found.seen_again(other) == found  # whoever starts last writes nothing new
    assert begin_at(flow, TopicPartition("t", 3), {"t": found}, "x", ()) == "earliest"


def test_what_came_from_either_of_two_clusters_is_left_out_on_the_way_back_there() -> None:
    flow = Flow("f", FlowSettings(source="b:1", target="a:1"))
    both = Origin("t", ("a",), "1").seen_again(Origin("t", ("x",), "2"))._replace(is_released=True)
    for target, id_ in (("a", "1"), ("x", "2")):
        assert select(flow, ["t"], {"t": both}, target, {"t": id_}).returning == {"t"}
    assert both.seen_again(Origin("t", ("a",), "1")) == Origin("t", ("a",), "1")
