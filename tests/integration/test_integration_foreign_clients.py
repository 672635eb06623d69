"""kdist's producer and consumer against servers that nobody here wrote."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from cutting_proxy import CuttingProxy
from foreign_servers import ADMINISTERED, SERVERS, WAIT_S, Server
from peer.kafka_broker import KafkaBroker

from kdist.cli.main import kdist
from kdist.client.admin.clients import Admin
from kdist.client.consumer.aio import Consumer as AsyncConsumer
from kdist.client.consumer.batch import ConsumedRecord
from kdist.client.consumer.consumer import Consumer
from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.sync import Producer
from kdist.model import TopicPartition
from kdist.runtime.clock import SystemClock
from tests.integration.consumer_members import Member, until
from tests.integration.zookeeper_server import free_port

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("foreign-clients")]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT = 300
NOW_MS = SystemClock().now_ms()


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp("foreign")) as running:
        yield running


def partitions(consumer: Consumer, server: Server, topic: str) -> list[TopicPartition]:
    with Admin(server.address) as admin:
        found = admin.describe_topics([topic])[topic].partitions
    return [TopicPartition(topic, each.number) for each in found]


def read(server: Server, topic: str) -> list[ConsumedRecord]:
    """All there is in a topic, partition by partition."""
    found: list[ConsumedRecord] = []
    with Consumer(server.address) as consumer:
        every = partitions(consumer, server, topic)
        consumer.assign(every)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(every)
        while any(consumer.position(each) < ends[each] for each in every):
            found += consumer.poll(1)
    return sorted(found, key=lambda record: (record.partition, record.offset))


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed_with_all_its_parts(server: Server, codec: str) -> None:
    topic = f"parts-{codec}"
    server.make_topic(topic, 1)
    with Producer(bootstrap_servers=server.address, compression_type=codec) as producer:
        sent = [
            producer.send(topic, b"v%d" % n, b"k%d" % n, [("h", b"%d" % n)], 0, NOW_MS + n)
            for n in range(COUNT)
        ]
        sent.append(producer.send(topic, None, b"gone", partition=0, timestamp=NOW_MS))
        assert [each.result(WAIT_S).offset for each in sent] == list(range(COUNT + 1))
    *records, last = read(server, topic)
    assert [(each.key, each.value, each.headers) for each in records] == [
        (b"k%d" % n, b"v%d" % n, (("h", b"%d" % n),)) for n in range(COUNT)
    ]
    assert (last.key, last.value) == (b"gone", None)
    if server.is_administered:  # the other has a clock of its own
        assert [each.timestamp for each in records] == [NOW_MS + n for n in range(COUNT)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_many_records_go_with_one_call(server: Server, acks: str) -> None:
    topic = f"many-{acks}"
    server.make_topic(topic, 3)
    values = [b"%d" % n for n in range(5_000)]
    with Producer(bootstrap_servers=server.address, acks="1") as producer:
        # Where nothing is acknowledged, what comes before there is a leader is lost.
        for partition in range(3):
            producer.send(topic, b"first", partition=partition).result(WAIT_S)
    with Producer(bootstrap_servers=server.address, acks=acks) as producer:
        producer.send_many(topic, values).result(WAIT_S)
    wanted = Counter([*values, *[b"first"] * 3])
    until(lambda: Counter(record.value for record in read(server, topic)) == wanted)


def test_keys_land_where_the_servers_own_clients_put_them(server: Server) -> None:
    from confluent_kafka import Producer as Foreigner

    keys = [b"key-%d" % n for n in range(200)]
    server.make_topic("placed", 4)
    foreigner = Foreigner(
        {"bootstrap.servers": server.address, "partitioner": "murmur2_random", "log_level": 0}
    )
    for key in keys:
        foreigner.produce("placed", b"theirs", key)
    assert foreigner.flush(WAIT_S) == 0
    with Producer(bootstrap_servers=server.address) as producer:
        for key in keys:
            producer.send("placed", b"ours", key)
    places: dict[bytes, set[int]] = {}
    for record in read(server, "placed"):
        places.setdefault(record.key, set()).add(record.partition)
    assert len(places) == len(keys)
    assert {len(each) for each in places.values()} == {1}


def test_a_group_resumes_where_it_stopped(server: Server) -> None:
    server.make_topic("resumed", 2)
    found: Counter[bytes] = Counter()
    with Producer(bootstrap_servers=server.address) as producer:
        for run in (b"early", b"late"):
            producer.send_many("resumed", [run] * 100).result(WAIT_S)
            member = Member(server.address, "resumed", found)
            until(lambda run=run: found[run] == 100, "it read what was new")
            member.stop()
    assert found == {b"early": 100, b"late": 100}


@pytest.mark.parametrize("server", ADMINISTERED, indirect=True)  # the other takes 3 s to rebalance
def test_a_group_shares_a_topic(server: Server) -> None:
    server.make_topic("shared", 4)
    found: Counter[bytes] = Counter()
    first = Member(server.address, "shared", found)
    until(lambda: first.share == 4, "the first member has all")
    second = Member(server.address, "shared", found)
    until(lambda: (first.share, second.share) == (2, 2), "the second has its half")
    with Producer(bootstrap_servers=server.address) as producer:
        for n in range(COUNT):
            producer.send("shared", b"%d" % n, b"%d" % n)
    until(lambda: len(found) == COUNT, "everything was read")
    first.stop()
    until(lambda: second.share == 4, "the second has all")
    second.stop()
    assert set(found.values()) == {1}


@pytest.mark.parametrize("server", ADMINISTERED, indirect=True)  # the other's clock stands still
def test_offsets_are_found_by_time(server: Server) -> None:
    server.make_topic("timed", 1)
    here = TopicPartition("timed", 0)
    with Producer(bootstrap_servers=server.address) as producer:
        for n in range(10):
            producer.send("timed", b"%d" % n, timestamp=NOW_MS + 1000 * n).result(WAIT_S)
    with Consumer(server.address) as consumer:
        consumer.assign([here])
        found = consumer.offsets_for_times({here: NOW_MS + 4500})[here]
        assert found is not None
        assert found.offset == 5
        assert consumer.offsets_for_times({here: NOW_MS + 100_000}) == {here: None}
        consumer.seek_to_time(NOW_MS + 7000, here)
        assert consumer.poll(WAIT_S)[0].value == b"7"


def test_the_asyncio_fronts_do_the_same(server: Server) -> None:
    server.make_topic("awaited", 1)

    async def work() -> list[bytes]:
        async with AsyncProducer(bootstrap_servers=server.address) as producer:
            for n in range(20):
                await producer.send_and_wait("awaited", b"%d" % n, partition=0)
        async with AsyncConsumer(server.address) as consumer:
            here = TopicPartition("awaited", 0)
            consumer.assign([here])
            consumer.seek_to_beginning(here)
            found: list[bytes] = []
            while len(found) < 20:
                found += [record.value for record in await consumer.poll(1)]
            return found

    assert asyncio.run(work()) == [b"%d" % n for n in range(20)]


def test_the_command_line_shows_what_the_server_can_tell(server: Server) -> None:
    server.make_topic("shown", 2)
    with Producer(bootstrap_servers=server.address) as producer:
        producer.send("shown", b"x").result(WAIT_S)
    environment = {"KDIST_BROKER": server.address}
    done = CliRunner().invoke(kdist, ["topics", "describe", "shown", "--json"], env=environment)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert sum(each["end_offset"] for each in found["partitions"]) == 1
    assert ("settings" in found) is server.is_administered
    words = ["consume", "shown", "--from-beginning", "--until-end"]
    assert CliRunner().invoke(kdist, words, env=environment).stdout == "x\n"


@pytest.mark.parametrize("release", ["3.9", "4.1"])
def test_no_record_is_duplicated_or_reordered_however_often_connections_are_cut(
    tmp_path: Path, release: str
) -> None:
    port = free_port()
    advertised = f"PLAINTEXT://127.0.0.1:{port}"
    settings = {"advertised_listeners": advertised}
    with KafkaBroker(tmp_path / "broker", release=release, **settings) as kafka:
        proxy = CuttingProxy(port, int(kafka.address.rpartition(":")[2]))
        cut = Server(f"kafka-{release}", f"127.0.0.1:{port}", True)
        try:
            cut.make_topic("cut", 1)
            with Producer(bootstrap_servers=cut.address, batch_size=2_000) as producer:
                proxy.bytes_between_cuts = 30_000
                sent = [producer.send("cut", b"%d" % n) for n in range(20_000)]
                assert [each.result(WAIT_S).offset for each in sent] == list(range(20_000))
                proxy.bytes_between_cuts = 0
            assert proxy.cuts > 5
            assert [each.value for each in read(cut, "cut")] == [b"%d" % n for n in range(20_000)]
        finally:
            proxy.close()
