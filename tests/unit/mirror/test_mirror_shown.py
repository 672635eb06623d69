"""A mirror's status and metrics, in virtual time, also while it cannot read or cannot begin."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import pytest
from flow_world import FlowScene, flow_of, is_stopped, play, stream_of

from kdist.cli.mirror.operating import print_status, verdict
from kdist.client.cluster import Address, Cluster, NoBroker, Outcome
from kdist.client.offsets import list_offsets_once
from kdist.errors import ApiError, Error
from kdist.mirror.flow import MirrorFlow
from kdist.mirror.lag import Lag, LagMeter, Ranges, ask_ranges
from kdist.mirror.status import FlowStatus, PartitionStatus, flow_status
from kdist.mirror.target import ProduceConnection
from kdist.mirror.topic_settings import TopicSettings
from kdist.model import TopicPartition
from kdist.network.client import ClientSettings
from kdist.protocol.delete_topics import DeleteTopicsRequest
from kdist.protocol.fetch import FetchRequest
from kdist.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from kdist.records.build import build_batch
from kdist.storage.producers import ProducerStates
from tests.simulator.cluster import PORT, create, produce
from tests.unit.broker.broker_configs import replace
from tests.unit.broker.test_broker_delete_records import trim

pytestmark = pytest.mark.played(by=play)

LABELS = ("f", "t", "0")
STARTS = {"earliest": 3, "latest": 0}


async def refuse(*_: object) -> None:
    raise ApiError(Error.INCONSISTENT_GROUP_PROTOCOL, "others have this group")


async def status(scene: FlowScene) -> PartitionStatus:
    """The status of the one mirrored partition."""
    network = scene.cluster.network.host("asking")
    cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("c"))
    flow = flow_of(scene.mirror).flow
    (found,) = (await flow_status(flow, cluster, cluster, scene.cluster.clock.now_ms())).partitions
    cluster.close()
    return found


async def limit(scene: FlowScene, size_bytes: int) -> None:
    """Limit the copy to batches of this size."""
    await replace(scene.client, {"max.message.bytes": str(size_bytes)}, "copy.t")
    log = scene.cluster.brokers[1].service.directory.logs[TopicPartition("copy.t", 0)]
    await scene.cluster.until(lambda: log.settings.max_message_bytes == size_bytes)


async def test_a_flow_that_cannot_read_its_source_is_silent_and_unhealthy(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("start", STARTS)
async def test_a_partition_whose_target_has_never_answered_is_behind(
    scene: FlowScene, /, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(scene.client, "t")
    await produce(scene.client, "t", b"1", b"2", b"3")
    monkeypatch.setattr("kdist.mirror.stream.look_up_position", refuse_for_now)
    flow = flow_of(scene.start(flow_f_start=start))
    await asyncio.sleep(10)
    assert flow.measures.streams[LABELS].lag_records == STARTS[start]
    assert (flow.measures.streams[LABELS].lag_seconds > 0) == (start == "earliest")
    await scene.stop()


async def test_a_partition_shows_for_how_long_the_source_keeps_its_records(
    scene: FlowScene, /
) -> None:
    kept_s = {"brief": 60.0, "t": 604_800.0, "endless": math.inf, "compacted": math.inf}
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


async def test_a_topic_whose_retention_cannot_be_told_hides_no_other_and_keeps_what_was_known(
    scene: FlowScene, /
) -> None:
    await create(scene.client, "t", retention_ms="60000")
    await create(scene.client, "brief", retention_ms="30000")
    flow = flow_of(scene.start())
    settings = TopicSettings(flow.source, flow.target.cluster)
    await settings.look({"t": "copy.t", "brief": "copy.brief"}, 0)
    deleted = DeleteTopicsRequest(topic_names=["brief"], timeout_ms=10_000)
    await scene.client.send(deleted, 1)
    await create(scene.client, "new", retention_ms="90000")
    names = {each: f"copy.{each}" for each in ("t", "brief", "new", "unheard")}
    await settings.look(names, 1)
    told = {topic: settings.retention_s(topic) for topic in names}
    assert told == {"t": 60, "brief": 30, "new": 90, "unheard": math.inf}
    await scene.stop()


async def not_reached(*_: object) -> None:
    raise NoBroker("no broker answers")


@pytest.mark.parametrize("answer", [refuse, not_reached])
async def test_a_source_that_does_not_tell_its_retention_is_mirrored_all_the_same(
    scene: FlowScene, /, answer: Callable[..., Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdist.mirror.topic_settings.describe_topic_configs", answer)
    await create(scene.client, "t")
    flow = flow_of(scene.start())
    await produce(scene.client, "t", b"1")
    await scene.until_copied("t", b"1")
    await asyncio.sleep(20)
    assert flow.measures.streams[LABELS].retention_seconds == math.inf
    assert flow.trouble.said == ""
    await scene.stop()


async def test_a_record_without_a_timestamp_is_not_behind_since_1970(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_records_deleted_at_the_source_are_not_behind(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while the mirror holds the first of them, which the target does not answer."""
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


def never_answered(*_: object) -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


async def refuse_for_now(*_: object) -> None:
    raise ApiError(Error.LEADER_NOT_AVAILABLE)


@pytest.mark.played(by=play)
async def test_the_reason_of_a_stopped_partition_is_shown_until_it_resumes(
    scene: FlowScene, /
) -> None:
    await create(scene.client, "t")
    scene.start()
    await produce(scene.client, "t", b"1")
    await scene.until_copied("t", b"1")
    assert (await status(scene)).stopped is None
    await limit(scene, 100)
    await produce(scene.client, "t", b"2" * 100)
    await scene.cluster.until(lambda: is_stopped(scene.mirror))
    await scene.stop()
    found = await status(scene)
    assert (found.position, found.lag.records) == (1, 1)
    assert found.stopped is not None
    assert "raise max.message.bytes of topic copy.t in the target" in found.stopped
    await limit(scene, 1000)
    scene.start()
    await scene.until_copied("t", b"1", b"2" * 100)
    await scene.stop()
    found = await status(scene)
    assert (found.position, found.stopped) == (2, None)


def hold(scene: FlowScene, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """Have an open transaction begin at an offset of `t`."""
    log = scene.cluster.brokers[1].service.directory.logs[TopicPartition("t", 0)]
    unstable = property(lambda states: offset if states is log.producers else None)
    monkeypatch.setattr(ProducerStates, "first_unstable_offset", unstable)


async def test_what_an_open_transaction_holds_back_is_behind(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(scene.client, "t")
    mirror = scene.start()
    await produce(scene.client, "t", b"1")
    await scene.until_copied("t", b"1")
    hold(scene, monkeypatch, 1)
    for value in (b"2", b"3"):
        await produce(scene.client, "t", value)
    shown = flow_of(mirror).measures.streams[LABELS]
    await scene.cluster.until(lambda: shown.lag_records == 2)
    assert shown.lag_seconds > 0
    assert await scene.values("copy.t") == [b"1"]
    monkeypatch.undo()
    await scene.until_copied("t", b"1", b"2", b"3")
    await scene.cluster.until(lambda: shown.lag_records == 0)


def fetched(flow: MirrorFlow, monkeypatch: pytest.MonkeyPatch) -> list[FetchRequest]:
    """The fetches by which the flow measures its lag, from now on."""
    found: list[FetchRequest] = []
    ask = flow.source.ask

    async def note(request: Any, *given: Any) -> Any:
        if isinstance(request, FetchRequest) and request.topics[0].topic == "t":
            found.append(request)
        return await ask(request, *given)

    monkeypatch.setattr(flow.source, "ask", note)
    return found


async def test_a_batch_that_stays_behind_comes_over_the_link_once_to_be_measured(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(scene.client, "t")
    flow = flow_of(scene.start())
    await produce(scene.client, "t", b"1")
    await scene.until_copied("t", b"1")
    asked = fetched(flow, monkeypatch)
    hold(scene, monkeypatch, 1)
    await produce(scene.client, "t", b"2")
    shown = flow.measures.streams[LABELS]
    await scene.cluster.until(lambda: shown.lag_records == 1)
    before_s = shown.lag_seconds
    await asyncio.sleep(30)
    assert shown.lag_seconds > before_s + 28
    await produce(scene.client, "t", b"3")
    await scene.cluster.until(lambda: shown.lag_records == 2)
    assert len(asked) == 1
    await scene.stop()


async def test_what_is_mirrored_while_the_lag_is_measured_is_not_fetched_again(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(scene.client, "t")
    flow = flow_of(scene.start())
    await scene.cluster.until(lambda: len(flow.streams) == 1)
    asked = fetched(flow, monkeypatch)
    sent: list[bytes] = []

    async def ask_slowly(cluster: Cluster, partitions: Collection[TopicPartition]) -> Ranges:
        sent.append(b"%d" % len(sent))
        await produce(scene.client, "t", sent[-1])
        await scene.until_copied("t", *sent)
        return await ask_ranges(cluster, partitions)

    monkeypatch.setattr("kdist.mirror.flow.ask_ranges", ask_slowly)
    await asyncio.sleep(10)
    assert len(sent) > 5
    assert flow.measures.streams[LABELS].lag_records == 0
    assert asked == []
    await scene.stop()


async def test_a_leader_that_does_not_say_how_old_its_records_are_makes_them_no_younger(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(scene.client, "t")
    mirror = scene.start()
    flow = flow_of(mirror)
    await produce(scene.client, "t", b"1")
    await scene.until_copied("t", b"1")
    hold(scene, monkeypatch, 1)
    await produce(scene.client, "t", b"2")
    shown = flow.measures.streams[LABELS]
    await scene.cluster.until(lambda: shown.lag_records == 1)
    await asyncio.sleep(10)
    before_s = shown.lag_seconds
    flow._lag_meter = LagMeter(flow.source)  # which has not asked for that batch yet
    monkeypatch.setattr("kdist.mirror.lag.fetch_at", refuse)
    await asyncio.sleep(10)
    assert shown.lag_seconds > before_s + 8
    flows = json.loads(mirror._health_page().body)["flows"]
    assert "others have this group" in flows["f"]["unmeasured"]["t-0"]
    await scene.stop()


async def partly(
    cluster: Cluster, timestamps: dict[TopicPartition, int], *, is_committed_only: bool
) -> dict[TopicPartition, Outcome]:
    """As `list_offsets_once` while `u-0` has no leader."""
    asked = {each: at for each, at in timestamps.items() if each.topic != "u"}
    found = await list_offsets_once(cluster, asked, is_committed_only=is_committed_only)
    lost = Outcome(Error.LEADER_NOT_AVAILABLE.code, "what a broker that was not reached says")
    return {each: found.get(each, lost) for each in timestamps}


async def test_while_one_partition_has_no_leader_the_lag_of_the_others_is_measured(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("t", "u"):
        await create(scene.client, topic)
    mirror = scene.start(flow_f_topics="t,u")
    for topic in ("t", "u"):
        await produce(scene.client, topic, b"1")
        await scene.until_copied(topic, b"1")
    monkeypatch.setattr(ProduceConnection, "post", never_answered)
    shown = flow_of(mirror).measures.streams
    for topic in ("t", "u"):
        await produce(scene.client, topic, b"2")
        labels = ("f", topic, "0")
        await scene.cluster.until(lambda labels=labels: shown[labels].lag_records == 1)
    monkeypatch.setattr("kdist.mirror.lag.list_offsets_once", partly)
    await produce(scene.client, "t", b"3")
    await scene.cluster.until(lambda: shown["f", "t", "0"].lag_records == 2)
    before_s = shown["f", "u", "0"].lag_seconds
    flows = json.loads(mirror._health_page().body)["flows"]
    assert flows["f"]["unmeasured"] == {"u-0": "LEADER_NOT_AVAILABLE"}
    assert mirror._health_page().status == 200  # it may be a new leader's election
    await asyncio.sleep(70)
    assert mirror._health_page().status == 503
    aged_s = shown["f", "u", "0"].lag_seconds - before_s
    assert 60 < aged_s < 75
    monkeypatch.setattr("kdist.mirror.lag.list_offsets_once", list_offsets_once)
    await scene.cluster.until(lambda: mirror._health_page().status == 200)


async def test_while_no_lag_can_be_measured_what_is_behind_gets_older_and_health_says_so(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(scene.client, "t")
    mirror = scene.start()
    await produce(scene.client, "t", b"1")
    await scene.until_copied("t", b"1")
    monkeypatch.setattr(ProduceConnection, "post", never_answered)
    await produce(scene.client, "t", b"2")
    shown = flow_of(mirror).measures.streams[LABELS]
    await scene.cluster.until(lambda: shown.lag_records == 1)
    monkeypatch.setattr("kdist.mirror.flow.ask_ranges", refuse)
    before_s = shown.lag_seconds
    await asyncio.sleep(70)
    assert shown.lag_seconds > before_s + 60
    assert mirror._health_page().status == 503


async def test_a_partition_whose_batches_are_refused_again_and_again_is_seen(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(scene.client, "t")
    mirror = scene.start()
    await produce(scene.client, "t", b"1")
    await scene.until_copied("t", b"1")
    monkeypatch.setattr(ProduceConnection, "post", refused_batch)
    await produce(scene.client, "t", b"2")
    await asyncio.sleep(30)
    page = mirror._health_page()
    (said,) = json.loads(page.body)["flows"]["f"]["troubled"].values()
    assert "out of sequence" in said
    assert page.status == 200
    await asyncio.sleep(40)
    assert mirror._health_page().status == 503
    monkeypatch.undo()
    await scene.until_copied("t", b"1", b"2")
    assert mirror._health_page().status == 200


def refused_batch(*_: object) -> asyncio.Future[Any]:
    raise ApiError(Error.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of sequence")


async def test_status_shows_the_other_partitions_while_one_has_no_leader(
    scene: FlowScene, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("t", "u"):
        await create(scene.client, topic)
        await produce(scene.client, topic, b"1")
    mirror = scene.start(flow_f_topics="t,u")
    await scene.until_copied("t", b"1")
    await scene.until_copied("u", b"1")
    await scene.stop()
    await produce(scene.client, "t", b"2", b"3")
    network = scene.cluster.network.host("asking")
    cluster = Cluster(network, [Address("m1", PORT)], ClientSettings("c"))
    monkeypatch.setattr("kdist.mirror.lag.list_offsets_once", partly)
    now_ms = scene.cluster.clock.now_ms()
    found = await flow_status(flow_of(mirror).flow, cluster, cluster, now_ms)
    cluster.close()
    t, u = found.partitions
    assert t.lag is not None
    assert (t.end, t.lag.records, t.unknown) == (3, 2, None)
    assert (u.position, u.end, u.lag, u.unknown) == (1, None, None, "LEADER_NOT_AVAILABLE")
    assert verdict(found) == "f is 2 records behind and has 1 partition of unknown lag."


def test_a_flow_with_a_stopped_partition_is_not_up_to_date() -> None:
    partition = TopicPartition("t", 0)
    row = PartitionStatus(partition, partition, 1, 1, Lag(0, 0.0, 0.0), 0, None)
    assert verdict(FlowStatus("f", [row], {})) == "f is up to date."
    stopped = row._replace(stopped="gone")
    assert verdict(FlowStatus("f", [row, stopped], {})) == "f has 1 stopped partition."


def test_the_table_shows_a_partition_of_unknown_lag(capsys: pytest.CaptureFixture[str]) -> None:
    partition = TopicPartition("t", 0)
    row = PartitionStatus(partition, partition, 1, None, None, 0, None, "LEADER_NOT_AVAILABLE")
    print_status([FlowStatus("f", [row], {})])
    _, shown, below, _ = capsys.readouterr().out.splitlines()
    assert shown.split() == ["f", "t-0", "t-0", "1", "-", "-", "-", "-"]
    assert below == "    its leader in the source does not answer: LEADER_NOT_AVAILABLE"
