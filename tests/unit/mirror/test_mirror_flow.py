"""A whole mirror in virtual time: which topics, from where, how many; faults; the end."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from flow_world import FlowScene, flow_of, is_stopped, play, stream_of

from kdist.client.admin.groups import delete_groups
from kdist.client.admin.topics import create_partitions
from kdist.client.cluster import Address, Cluster
from kdist.client.consumer.rebalancing import Partitions
from kdist.config.mirror import Flow, FlowSettings, load_mirror
from kdist.errors import ApiError, Error, UserError
from kdist.mirror.flow import MirrorFlow
from kdist.mirror.joined import Joined
from kdist.mirror.mirror import Mirror, run_mirror
from kdist.mirror.seeking import seek
from kdist.mirror.selection import Origin, Selection, select, without
from kdist.mirror.status import flow_status
from kdist.mirror.stream import State
from kdist.mirror.trouble import Loss
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.batch import HEADER_SIZE, seal
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.testing.simulated_transport import Conditions
from tests.simulator.cluster import PORT, create, produce, records
from tests.simulator.cluster import Cluster as SimulatedCluster
from tests.unit.broker.test_broker_delete_records import trim
from tests.unit.client.client_group_world import consumer_on

pytestmark = pytest.mark.played(by=play)

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


DELAY_MS = 50.0
PATIENCE_S = 30  # one after the other, the first commits alone take 200 s at 2,000 partitions

PLAIN = Flow("f", FlowSettings(source="a:1", target="b:1"))
TOPICS = ["flights", "flights-2", "ops.host", "opsXhost", "__consumer_offsets", "dc1.flights"]


def flow(**changes: object) -> Flow:
    settings = dataclasses.replace(PLAIN.settings, **changes)  # type: ignore[arg-type]
    return Flow("f", settings)


LATEST = {"flow_f_start": "latest"}


async def begin(scene: FlowScene) -> None:
    """`t` has a record, and is mirrored from the next one on."""
    await create(scene.client, "t")
    await produce(scene.client, "t", b"old")
    mirror = scene.start(**LATEST)
    await scene.cluster.until(lambda: (stream := stream_of(mirror)) and stream.position == 1)


async def produce_to_second(scene: FlowScene, value: bytes) -> None:
    topic = ProduceTopic(
        name="t", partition_data=[ProducePartition(index=1, records=records(value))]
    )
    await scene.client.send(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[topic]), 9)


async def grow(scene: FlowScene) -> Cluster:
    network = scene.cluster.network.host("grows")
    cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("grows"))
    await create_partitions(cluster, {"t": 2})
    await produce_to_second(scene, b"before it was seen")
    return cluster


TO_SECOND = {"flow_f_target": f"m2:{PORT}"}


async def produce_to_both(scene: FlowScene, value: bytes) -> None:
    await produce(scene.client, "t", value)
    await produce_to_second(scene, value)


def play_silent(work: Callable[[FlowScene, Mirror], Awaitable[Any]]) -> None:
    """Run `work` on a mirror whose target was cut off after it had answered: both partitions then
    have requests in flight on open connections. A flow that had none to it would start anew.
    """
    cluster = SimulatedCluster()

    async def scenario() -> None:
        await cluster.started(1)
        await SimulatedCluster(beside=cluster).started(2)
        client = await cluster.client()
        await client.negotiate()
        await create(client, "t", 2)
        scene = FlowScene(cluster, client)
        mirror = scene.start(**TO_SECOND)
        streams = flow_of(mirror).streams
        await cluster.until(lambda: len(streams) == 2 and all(s.is_idle for s in streams.values()))
        await produce_to_both(scene, b"before")
        await cluster.until(lambda: all(s.position == 1 for s in streams.values()))
        cluster.network.partition(["m1", "client", "mirror"], ["m2"])
        await produce_to_both(scene, b"after")
        await cluster.until(lambda: not any(s.is_idle for s in streams.values()))
        await work(scene, mirror)

    cluster.run(scenario())


TEXT = "flow.f.source=h1:1\nflow.f.target=h2:1\n"


def run_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Run a mirror, and stop it a moment after a callback has raised `error`."""

    async def run(_: MirrorFlow, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(raise_it)
        loop.call_later(0.1, stop.set)
        await stop.wait()

    def raise_it() -> None:
        raise error

    monkeypatch.setattr(MirrorFlow, "run", run)
    run_mirror(load_mirror(TEXT, "file"), {})


async def test_a_partition_that_lost_records_is_shown_as_stopped_and_the_others_continue(
    scene: FlowScene, /
) -> None:
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


async def test_a_session_timeout_that_the_source_refuses_ends_the_mirror(
    scene: FlowScene, /
) -> None:
    await create(scene.client, "t")
    scene.start(mirror_session_timeout_ms="2000")
    await scene.cluster.until(lambda: scene.has_ended)
    with pytest.raises(UserError, match=r"refuses mirror\.session\.timeout\.ms"):
        await scene.stop()


async def test_a_seek_reports_where_it_resumes_which_is_never_backwards(
    scene: FlowScene, /
) -> None:
    await lose(scene)
    flow = flow_of(scene.mirror).flow
    network = scene.cluster.network.host("seeker")
    cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("seeker"))
    partition = TopicPartition("t", 0)
    assert await seek(flow, cluster, cluster, {partition: 1}, 0) == ({partition: 2}, set())
    assert await seek(flow, cluster, cluster, {partition: 4}, 0) == ({partition: 4}, set())
    scene.start()
    await scene.until_copied("t", b"1", b"2", b"5")
    await scene.stop()


async def test_a_loss_that_cannot_be_measured_yet_is_measured_later(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_a_mirror_that_is_to_stop_at_a_loss_ends_with_it(scene: FlowScene, /) -> None:
    await lose(scene)
    scene.start(mirror_on_loss="stop-mirror")
    await scene.cluster.until(lambda: scene.has_ended)
    with pytest.raises(Loss, match="offsets 2 to 4 were not mirrored"):
        await scene.stop()


def rotten() -> bytes:
    """A batch whose checksum is good, and whose records nobody can decompress."""
    data = build_batch([b"x" * 1000], timestamp_ms=0, codec=Codec.GZIP)
    data[HEADER_SIZE:] = bytes(len(data) - HEADER_SIZE)
    seal(data, 0, len(data))
    return bytes(data)


async def test_a_batch_that_cannot_be_rebuilt_stops_its_partition_and_no_other(
    scene: FlowScene, /
) -> None:
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


async def test_a_mirror_whose_topics_are_deleted_during_a_rebalance_leaves_its_group(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize(
    "count", [300, pytest.param(2_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
@pytest.mark.played(by=play)
async def test_many_partitions_begin_and_show_their_lag_over_a_slow_link(
    scene: FlowScene, /, count: int
) -> None:
    loop = scene.cluster.loop
    await create(scene.client, "t", partitions=count)
    parts = [ProducePartition(index=n, records=records(b"1")) for n in range(count)]
    topics = [ProduceTopic(name="t", partition_data=parts)]
    await scene.client.send(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topics), 9)
    scene.cluster.network.conditions = Conditions(delay_ms_max=DELAY_MS, cut_share=0.0)
    mirror = scene.start()
    flow = flow_of(mirror)
    begun_s = loop.time()
    await scene.cluster.until(lambda: len(flow.streams) == count)
    while not all(each.state is State.FLOWING for each in flow.streams.values()):
        assert loop.time() - begun_s < PATIENCE_S
        await asyncio.sleep(0.1)
    assert flow.metrics.doubts == 0
    await asyncio.sleep(5)
    assert mirror._health_page().status == 200
    await scene.stop()

    network = scene.cluster.network.host("asking")
    cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("c"))
    asked_s = loop.time()
    unknown = Flow("unknown", flow.flow.settings)
    found = await flow_status(unknown, cluster, cluster, scene.cluster.clock.now_ms())
    assert [each.lag.records for each in found.partitions] == [1] * count
    assert loop.time() - asked_s < PATIENCE_S
    cluster.close()


def test_calls_that_come_meanwhile_are_one_call() -> None:
    calls: list[dict[str, int]] = []

    async def call(items: dict[str, int]) -> dict[str, int]:
        calls.append(items)
        await asyncio.sleep(0)
        if "bad" in items:
            raise ApiError(Error.NOT_COORDINATOR)
        return items

    async def work() -> None:
        joined = Joined(call)
        first = asyncio.create_task(joined({"a": 1}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = [asyncio.create_task(joined({name: 2})) for name in ("b", "c", "b")]
        others[0].cancel()
        assert await first == {"a": 1}
        assert await others[1] == await others[2] == {"b": 2, "c": 2}
        failed = await asyncio.gather(joined({"bad": 1}), joined({"d": 1}), return_exceptions=True)
        assert [type(each) for each in failed] == [ApiError, ApiError]
        assert await joined({"e": 1}) == {"e": 1}

    asyncio.run(work())
    assert calls == [{"a": 1}, {"b": 2, "c": 2}, {"bad": 1, "d": 1}, {"e": 1}]


@pytest.mark.parametrize(
    ("changes", "mirrored"),
    [
        ({}, ["dc1.flights", "flights", "flights-2", "ops.host", "opsXhost"]),
        ({"topics": ("flights",)}, ["flights"]),
        ({"topics": ("flights", r"ops\..*")}, ["flights", "ops.host"]),
        ({"topics_exclude": (".*flights.*",)}, ["ops.host", "opsXhost"]),
        ({"topics": ("ops.host",), "topics_exclude": ("opsXhost",)}, ["ops.host"]),
        ({"topics": ("__.*",)}, []),
    ],
)
def test_patterns_match_whole_names_and_never_internal_ones(
    changes: dict[str, object], mirrored: list[str]
) -> None:
    found = select(flow(**changes), TOPICS, {}, "B")
    assert list(found.mirrored) == mirrored
    assert found.held == {}


def test_with_a_prefix_topics_are_renamed_and_those_that_have_it_are_held_back() -> None:
    found = select(flow(prefix="dc1."), TOPICS, {}, "B")
    assert found.mirrored["ops.host"] == "dc1.ops.host"
    assert found.held == {"dc1.flights": "it already has the prefix dc1."}


def test_a_topic_whose_name_gets_too_long_is_held_back() -> None:
    long = "x" * 249
    found = select(flow(prefix="dc1."), [long], {}, "B")
    assert found.held[long].endswith("its name is longer than 249 characters")


def test_a_topic_that_came_from_the_target_is_held_back_over_any_number_of_hops() -> None:
    origins = {
        "flights": Origin("flights", ("B",)),
        "ops.host": Origin("ops", ("C", "B", "D")),
        "opsXhost": Origin("ops", ("C", "D")),
    }
    found = select(PLAIN, TOPICS, origins, "B")
    assert set(found.held) == {"flights", "ops.host"}
    assert "opsXhost" in found.mirrored


def test_a_topic_that_the_target_refuses_does_not_hold_up_the_others() -> None:
    found = without(Selection({"a": "x.a", "b": "x.b"}, {"c": "why"}), {"b": "too many"})
    assert found == Selection({"a": "x.a"}, {"c": "why", "b": "too many"})


async def test_records_from_before_the_start_are_left_out(scene: FlowScene, /) -> None:
    await begin(scene)
    await produce(scene.client, "t", b"new")
    await scene.until_copied("t", b"new")
    await scene.stop()


async def test_a_topic_created_while_it_runs_is_mirrored_from_its_first_record(
    scene: FlowScene, /
) -> None:
    await begin(scene)
    await create(scene.client, "t2")
    await produce(scene.client, "t2", b"before it was seen")
    await scene.until_copied("t2", b"before it was seen")
    await scene.stop()


async def test_an_added_partition_is_mirrored_from_its_first_record(scene: FlowScene, /) -> None:
    await begin(scene)
    await grow(scene)
    await scene.until_copied("t", b"before it was seen", partition=1)
    await scene.stop()


async def test_a_partition_added_while_it_is_down_is_mirrored_from_its_first_record(
    scene: FlowScene, /
) -> None:
    await begin(scene)
    await scene.stop()
    cluster = await grow(scene)
    status = await flow_status(flow_of(scene.mirror).flow, cluster, cluster, 0)
    assert [each.lag.records for each in status.partitions] == [0, 1]
    scene.start(**LATEST)
    await scene.until_copied("t", b"before it was seen", partition=1)
    assert await scene.values("copy.t") == []
    await scene.stop()


def test_requests_in_flight_are_waited_for_once_and_the_group_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(scene: FlowScene, _mirror: Mirror) -> None:
        stopped_s = scene.cluster.loop.time()
        await scene.stop()
        assert scene.cluster.loop.time() - stopped_s < 15
        assert "the group was not left" not in caplog.text

    play_silent(work)


def test_partitions_being_revoked_at_the_stop_may_still_fail() -> None:
    async def work(scene: FlowScene, mirror: Mirror) -> None:
        await asyncio.sleep(12)
        strategy = "cooperative-sticky"
        group = flow_of(mirror).flow.group
        other = consumer_on(
            scene.cluster, "client", group_id=group, partition_assignment_strategy=strategy
        )
        other.subscribe(["t"])
        _asking = scene.cluster.loop.create_task(other.poll(60))
        partitions = flow_of(mirror)._consumer._core.partitions

        def one_is_being_revoked() -> bool:
            return any(each.is_revoked for each in partitions.values())

        await scene.cluster.until(one_is_being_revoked)
        await asyncio.sleep(
            9
        )  # a request in flight is given up 30 s after it was sent: before the mirror has ended
        assert one_is_being_revoked()
        await scene.stop()

    play_silent(work)


def test_a_bug_in_a_callback_ends_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run_with(monkeypatch, ZeroDivisionError())


def test_a_connection_error_does_not_end_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(monkeypatch, ConnectionResetError())


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_mirror_whose_position_is_nowhere_stops_instead_of_beginning_anew(
    scene: FlowScene, /, start: str
) -> None:
    await create(scene.client, "t")
    scene.start(flow_f_start="earliest")
    await produce(scene.client, "t", b"1", b"2")
    await scene.until_copied("t", b"1", b"2")
    await scene.stop()
    network = scene.cluster.network.host("asks")
    asking = Cluster(network, [Address("m1", PORT)], ClientSettings("asks"))
    await delete_groups(asking, ["kdist-mirror-f"])  # as if the commit had expired
    assert (await trim(scene.client, 2, topic="copy.t")).error_code == 0
    await produce(scene.client, "t", b"3")
    for _ in range(2):
        mirror = scene.start(flow_f_start=start)
        await scene.cluster.until(lambda each=mirror: is_stopped(each))
        await scene.stop()
    flow = flow_of(scene.mirror).flow
    (row,) = (await flow_status(flow, asking, asking, 0)).partitions
    assert "nobody knows up to where t-0 was mirrored" in (row.stopped or "")
    await seek(flow, asking, asking, {TopicPartition("t", 0): 2}, 0)
    scene.start(flow_f_start=start)
    await scene.cluster.until(lambda: stream_of(scene.mirror) is not None)
    await asyncio.sleep(5)
    stream = stream_of(scene.mirror)
    assert stream is not None
    assert (stream.position, stream.target_end) == (3, 3)
    asking.close()
    await scene.stop()


HOURS_S = 3 * 3600.0


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.played(by=play, connections_max_idle_ms="1000000000")
async def test_a_mirror_whose_commit_has_expired_before_anything_came_skips_nothing_in_silence(
    scene: FlowScene, /, start: str
) -> None:
    """Its copy is empty, so the target's log does not tell either where it was."""
    await create(scene.client, "t")
    mirror = scene.start(flow_f_start=start)
    await scene.cluster.until(lambda: (stream := stream_of(mirror)) and stream.position == 0)
    await scene.stop()
    await asyncio.sleep(HOURS_S)
    network = scene.cluster.network.host("asks")
    asking = Cluster(network, [Address("m1", PORT)], ClientSettings("asks"))
    await delete_groups(asking, ["kdist-mirror-f"])  # as if the commit had expired
    for value in (b"lost", b"while it was down"):
        await produce(scene.client, "t", value)
    assert (await trim(scene.client, 1, topic="t")).error_code == 0
    mirror = scene.start(flow_f_start=start)
    await scene.cluster.until(lambda: stream_of(mirror) is not None)
    await asyncio.sleep(5)
    stream = stream_of(mirror)
    assert stream is not None
    failure = str(stream.failure)
    assert "nobody knows up to where t-0 was mirrored" in failure
    await scene.stop()
    flow = flow_of(mirror).flow
    (row,) = (await flow_status(flow, asking, asking, scene.cluster.clock.now_ms())).partitions
    assert row.stopped == failure
    await seek(flow, asking, asking, {TopicPartition("t", 0): 1}, 0)
    scene.start(flow_f_start=start)
    await scene.until_copied("t", b"while it was down")
    asking.close()
    await scene.stop()


async def test_several_mirrors_that_begin_together_all_begin_at_the_latest(
    scene: FlowScene, /
) -> None:
    """Also those that find the origin which another has just written, and no commit."""
    await create(scene.client, "t", 2)
    await produce_to_both(scene, b"old")
    mirror = scene.start(**LATEST)
    await scene.cluster.until(lambda: len(flow_of(mirror).streams) == 2)
    await scene.stop()
    network = scene.cluster.network.host("asks")
    asking = Cluster(network, [Address("m1", PORT)], ClientSettings("asks"))
    await delete_groups(asking, ["kdist-mirror-f"])  # as if nothing had been committed yet
    mirror = scene.start(**LATEST)
    streams = flow_of(mirror).streams
    await scene.cluster.until(
        lambda: len(streams) == 2 and all(s.is_idle for s in streams.values())
    )
    assert [each.position for each in streams.values()] == [1, 1]
    asking.close()
    await scene.stop()


async def test_a_first_mirror_into_a_partition_that_others_have_emptied_begins(
    scene: FlowScene, /
) -> None:
    await create(scene.client, "t")
    await create(scene.client, "copy.t")
    await produce(scene.client, "copy.t", b"other")
    assert (await trim(scene.client, 1, topic="copy.t")).error_code == 0
    await produce(scene.client, "t", b"1")
    scene.start()
    await scene.cluster.until(lambda: stream_of(scene.mirror) is not None)
    await asyncio.sleep(5)
    stream = stream_of(scene.mirror)
    assert stream is not None
    assert (stream.position, stream.target_end) == (1, 2)
    await scene.stop()
