"""What clients tell of themselves: counts that are true after faults, as numbers and as text."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kdist.client.admin.clients import AsyncAdmin
from kdist.client.consumer.aio import Consumer
from kdist.client.consumer.settings import read_config as read_consumer
from kdist.client.metrics import ClientMeter
from kdist.client.producer.faults import BufferFull
from kdist.client.producer.settings import read_settings as read_producer
from kdist.errors import Error, UserError
from kdist.model import TopicPartition
from kdist.network.client import Client, ClientSettings
from kdist.protocol.metadata import MetadataRequest
from tests.refusals import refused
from tests.simulator.cluster import PORT, Cluster
from tests.unit.client.client_group_world import TOPIC, Group, consumer_on, with_topic
from tests.unit.client.producer_world import FINE, Fault, Scene, play

ZERO = TopicPartition(TOPIC, 0)
OF_T = '{topic="t"}'
OF_CLICKS = f'{{topic="{TOPIC}"}}'
BATCH_BYTES = 69  # of a record with one byte


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What Prometheus's own parser reads."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# A producer


@pytest.mark.played(by=play)
async def test_a_producer_counts_what_it_sends_and_what_fails(scene: Scene, /) -> None:
    faults = [Fault(is_written=False, error=Error.NOT_ENOUGH_REPLICAS)]
    scene.brokers.fault = lambda *_: faults.pop() if faults else FINE
    async with scene.producer(linger_ms=50) as producer:
        sent = [await producer.send("t", b"x" * 100, key=b"k") for _ in range(3)]
        during = producer.metrics()
        assert [(await each).offset for each in sent] == [0, 1, 2]
        scene.brokers.topic_errors["t"] = Error.TOPIC_AUTHORIZATION_FAILED
        faults.append(Fault(is_written=False, error=Error.TOPIC_AUTHORIZATION_FAILED))
        with refused(Error.TOPIC_AUTHORIZATION_FAILED):
            await producer.send_and_wait("t", b"y")
    found = producer.metrics()
    assert during["kdist_producer_buffer_available_bytes"] < 32 << 20
    assert found["kdist_producer_buffer_available_bytes"] == 32 << 20
    assert found[f"kdist_producer_records_sent_total{OF_T}"] == 3
    assert found[f"kdist_producer_batches_sent_total{OF_T}"] == 1
    (header,) = scene.brokers.kept[TopicPartition("t", 0)].batches
    assert found[f"kdist_producer_bytes_sent_total{OF_T}"] == header.size
    assert found[f"kdist_producer_record_retries_total{OF_T}"] == 3
    assert found[f"kdist_producer_record_errors_total{OF_T}"] == 1
    assert found["kdist_producer_delivery_seconds_count"] == 1
    assert 0.1 < found["kdist_producer_delivery_seconds_sum"] < 0.5  # with the backoff


@pytest.mark.played(by=play)
async def test_the_parts_of_a_batch_that_was_cut_in_two_count_once(scene: Scene, /) -> None:
    scene.brokers.batch_bytes_max = 800
    async with scene.producer() as producer:
        await producer.send_many("t", [b"x" * 100 for _ in range(16)])
    found = producer.metrics()
    assert found[f"kdist_producer_records_sent_total{OF_T}"] == 16
    batches = scene.brokers.kept[TopicPartition("t", 0)].batches
    assert found[f"kdist_producer_batches_sent_total{OF_T}"] == len(batches) > 1
    assert found[f"kdist_producer_bytes_sent_total{OF_T}"] == sum(each.size for each in batches)


@pytest.mark.played(by=play)
async def test_records_that_were_never_encoded_count_as_failed(scene: Scene, /) -> None:
    async with scene.producer(delivery_timeout_ms=500, linger_ms=1) as producer:
        await producer.send_and_wait("t", b"x")
        scene.network.block("client", "b0")
        lost = await producer.send_many("t", [b"x"] * 5)
        with pytest.raises(Exception, match="acknowledge"):
            await lost
        found = producer.metrics()
    assert found[f"kdist_producer_record_errors_total{OF_T}"] == 5
    assert found[f"kdist_producer_records_sent_total{OF_T}"] == 1


@pytest.mark.played(by=play)
async def test_a_send_that_found_no_room_is_counted(scene: Scene, /) -> None:
    scene.brokers.fault = lambda *_: Fault(delay_s=5)
    async with scene.producer(buffer_memory=20_000, max_block_ms=100) as producer:
        await producer.send("t", b"x" * 15_000)
        with pytest.raises(BufferFull):
            await producer.send("t", b"x" * 15_000)
        assert producer.metrics()["kdist_producer_buffer_exhausted_total"] == 1


# Connections


@pytest.mark.played(by=play)
async def test_requests_count_by_broker_and_api_with_their_latency(scene: Scene, /) -> None:
    scene.brokers.fault = lambda *_: Fault(delay_s=2)
    async with scene.producer(linger_ms=0) as producer:
        sent = await producer.send("t", b"x")
        await asyncio.sleep(1)
        during = producer.metrics()
        await sent
        after = producer.metrics()
    closed = producer.metrics()
    of_broker, of_produce = f'{{broker="b0:{PORT}"}}', f'{{broker="b0:{PORT}",api="Produce"}}'
    assert during[f"kdist_client_requests_in_flight{of_broker}"] == 1
    assert after[f"kdist_client_requests_in_flight{of_broker}"] == 0
    assert after[f"kdist_client_request_seconds_count{of_produce}"] == 1
    assert 2 <= after[f"kdist_client_request_seconds_sum{of_produce}"] < 2.1
    assert after[f"kdist_client_open_connections{of_broker}"] == 2  # one for all but batches
    assert closed[f"kdist_client_open_connections{of_broker}"] == 0
    assert closed[f"kdist_client_lost_connections_total{of_broker}"] == 0


@pytest.mark.played(by=play)
async def test_lost_and_refused_connections_are_told_from_closed_ones(scene: Scene, /) -> None:
    meter, host = ClientMeter("c"), scene.network.host("client")
    settings = ClientSettings("c", metrics=meter.connections)

    async def opened() -> Client:
        return await Client.connect_negotiated(host, "b0", PORT, settings)

    (await opened()).close()
    lost = await opened()
    asked = [lost.ask(MetadataRequest(topics=[]), 9) for _ in range(3)]
    scene.network.crash("b0")
    await asyncio.wait(asked)
    for each in asked:
        with refused(Error.NETWORK_EXCEPTION):
            await each
    with refused(Error.NETWORK_EXCEPTION):
        await opened()
    broker = meter.connections.brokers[f"b0:{PORT}",]
    assert (broker.open_connections, broker.requests_in_flight) == (0, 0)
    assert (broker.lost_connections, broker.failed_connections) == (1, 1)
    requests = meter.connections.requests
    assert requests[f"b0:{PORT}", "Metadata"].failed == 3
    assert requests[f"b0:{PORT}", "ApiVersions"].seconds.count == 2


# A consumer


async def read(consumer: Consumer, count: int) -> None:
    while count > 0:
        count -= len(await consumer.poll(10))


@pytest.mark.played(by=with_topic, partitions=2)
async def test_a_consumer_counts_what_it_reads_and_shows_its_lag(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(10)
    consumer = consumer_on(cluster, "reader", auto_offset_reset="earliest")
    consumer.assign([ZERO, TopicPartition(TOPIC, 1)])
    unread = consumer.metrics()
    await read(consumer, 10)
    consumer.assign([ZERO])
    consumer.seek(ZERO, 2)
    assert len(await consumer.poll(10, max_records=2)) == 2
    found = consumer.metrics()
    await read(consumer, 1)
    last = consumer.metrics()
    await consumer.close()
    assert math.isnan(unread[f'kdist_consumer_lag_records{{topic="{TOPIC}",partition="1"}}'])
    assert unread["kdist_consumer_assigned_partitions"] == 2
    assert found["kdist_consumer_assigned_partitions"] == 1
    lags = {name: value for name, value in found.items() if "lag" in name}
    assert lags == {f'kdist_consumer_lag_records{{topic="{TOPIC}",partition="0"}}': 1}
    consumed = [each[f"kdist_consumer_records_consumed_total{OF_CLICKS}"] for each in (found, last)]
    assert consumed == [10, 13]  # counted with the last record of their batch
    assert last[f"kdist_consumer_bytes_consumed_total{OF_CLICKS}"] == 13 * BATCH_BYTES
    assert math.isnan(found["kdist_consumer_last_poll_seconds"])
    fetches = {name: value for name, value in found.items() if 'api="Fetch"' in name}
    assert fetches[f'kdist_client_request_seconds_count{{broker="m1:{PORT}",api="Fetch"}}'] >= 2
    assert consumer.metrics()["kdist_consumer_assigned_partitions"] == 0  # also once it is closed


@pytest.mark.played(by=with_topic, partitions=2)
async def test_a_member_counts_rebalances_heartbeats_and_commits(
    cluster: Cluster, group: Group, /
) -> None:
    await group.produce(4)
    member = group.join()
    await cluster.until(lambda: group.is_all_found)
    other = group.join()
    await cluster.until(lambda: group.shares == [1, 1])
    await asyncio.sleep(5)
    found = member.consumer.metrics()
    await other.leave()
    await member.leave()
    assert found["kdist_consumer_rebalances_total"] == 2
    assert found["kdist_consumer_lost_partitions_total"] == 0
    assert found["kdist_consumer_last_poll_seconds"] <= 1
    assert found["kdist_consumer_assigned_partitions"] == 1
    of = {
        api: found[f'kdist_client_request_seconds_count{{broker="m1:{PORT}",api="{api}"}}']
        for api in ("Heartbeat", "OffsetCommit", "JoinGroup")
    }
    assert of["Heartbeat"] >= 9
    assert of["OffsetCommit"] >= 4
    assert of["JoinGroup"] >= 2


@pytest.mark.played(by=with_topic)
async def test_a_member_that_was_thrown_out_counts_what_it_lost(
    cluster: Cluster, group: Group, /
) -> None:
    consumer = consumer_on(
        cluster, "slow", group_id="slow", max_poll_interval_ms=1000, session_timeout_ms=6000
    )
    consumer.subscribe([TOPIC])
    while not consumer.assignment():
        await consumer.poll(0.2)
    await asyncio.sleep(3)
    assert consumer.metrics()["kdist_consumer_last_poll_seconds"] > 2.5
    await consumer.poll(0.2)
    assert consumer.metrics()["kdist_consumer_lost_partitions_total"] == 1
    await consumer.close()


@pytest.mark.played(by=with_topic)
async def test_an_admin_client_counts_its_requests(cluster: Cluster, group: Group, /) -> None:
    network = cluster.network.host("operator")
    async with AsyncAdmin(f"m1:{PORT}", network=network) as admin:
        await admin.describe_cluster()
        found = admin.metrics()
    assert found[f'kdist_client_open_connections{{broker="m1:{PORT}"}}'] == 1
    assert admin.metrics()[f'kdist_client_open_connections{{broker="m1:{PORT}"}}'] == 0


# As text, and to a callback


@pytest.mark.played(by=play)
async def test_the_text_has_the_same_values_as_the_numbers(scene: Scene, /) -> None:
    async with scene.producer(client_id="orders") as producer:
        await producer.send_and_wait("t", b"x")
    found = samples(producer.metrics_text())
    assert (
        found[
            "kdist_producer_records_sent_total",
            frozenset({("client_id", "orders"), ("topic", "t")}),
        ]
        == 1
    )
    numbers = producer.metrics()
    own = frozenset({("client_id", "orders")})
    for (name, labels), value in found.items():
        if labels == own:
            assert numbers[name] == value
    shown = {name for name, _ in found} - {name.partition("{")[0] for name in numbers}
    assert all(name.endswith("_bucket") for name in shown)


@pytest.mark.played(by=play)
async def test_the_text_of_several_clients_has_each_metric_once(scene: Scene, /) -> None:
    async with (
        scene.producer(client_id="a") as first,
        scene.producer(client_id="b") as second,
    ):
        await first.send_and_wait("t", b"x")
        text = first.metrics_text(second)
    kinds = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds)) > 5
    name = "kdist_producer_buffer_available_bytes"
    assert {labels for found, labels in samples(text) if found == name} == {
        frozenset({("client_id", "a")}),
        frozenset({("client_id", "b")}),
    }


@pytest.mark.parametrize("label", ['b"', "b\\", "b\n"])
def test_a_name_escapes_its_labels_as_the_text_does(label: str) -> None:
    meter = ClientMeter("c")
    meter.connections.brokers[label,].lost_connections += 1
    (name,) = (each for each in meter.exposition.values() if "lost" in each)
    ((_, labels),) = samples(f"{name} 1.0\n")
    own = ("client_id", "c")
    found = samples(meter.exposition.render().decode())
    assert found["kdist_client_lost_connections_total", labels | {own}] == 1


@pytest.mark.played(by=play)
async def test_a_callback_gets_the_metrics_every_so_often_until_the_end(scene: Scene, /) -> None:
    told: list[dict[str, float]] = []
    async with scene.producer(on_statistics=told.append, statistics_interval_ms=10_000) as producer:
        await producer.send_and_wait("t", b"x")
        await asyncio.sleep(35)
    await asyncio.sleep(60)
    assert [each[f"kdist_producer_records_sent_total{OF_T}"] for each in told] == [1, 1, 1]


@pytest.mark.played(by=with_topic)
async def test_a_consumers_callback_that_raises_is_logged_once_a_minute_and_called_again(
    cluster: Cluster, group: Group, /, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[dict[str, float]] = []

    def store(metrics: dict[str, float]) -> None:
        told.append(metrics)
        raise OSError("the disk is full")

    consumer = consumer_on(cluster, "r", on_statistics=store, statistics_interval_ms=10_000)
    with caplog.at_level(logging.ERROR, "kdist.client.guard"):
        await asyncio.sleep(95)
        await consumer.close()
        await asyncio.sleep(60)
    assert len(told) == 9
    assert len([each for each in caplog.records if each.name == "kdist.client.guard"]) == 2


@pytest.mark.parametrize("read_any", [read_producer, read_consumer])
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"on_statistics": 5}, "on_statistics is 5, and must be a callable"),
        ({"statistics_interval_ms": 0}, "statistics_interval_ms is 0, and must be an integer"),
        ({"interceptors": "x"}, "interceptors is 'x', and must be a list"),
        ({"interceptors": [5]}, "interceptors has 5, which is no"),
    ],
)
def test_a_wrong_hook_is_refused_in_a_sentence(
    read_any: Any, wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        read_any({"bootstrap_servers": "b:1", **wrong})
