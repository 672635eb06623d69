"""SimpleConsumer on real brokers: kdist's, and Apache Kafka's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from peer.kafka_broker import KafkaBroker

from kdist.classic.simple import (
    EARLIEST_TIME,
    LATEST_TIME,
    FetchRequest,
    OutOfRange,
    SimpleConsumer,
)
from kdist.errors import Error, UserError
from tests.integration.consumer_members import create, produce
from tests.integration.standalone_process import Standalone, standalone
from tests.integration.zookeeper_server import free_port
from tests.refusals import refused

TOPIC = "clicks"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("simple"), "--brokers", 2) as run:
        create(f"127.0.0.1:{run.port}", TOPIC, 2)
        for partition in (0, 1):
            produce(f"127.0.0.1:{run.port}", TOPIC, 50, partition, start=100 * partition)
        yield run


def leaders_of(cluster: Standalone) -> tuple[int, int]:
    """The ports of the brokers that lead partitions 0 and 1."""
    ports = (cluster.port, cluster.port + 1)
    first = next(port for port in ports if leads(port, 0))
    return first, next(port for port in ports if port != first)


def leads(port: int, partition: int) -> bool:
    with SimpleConsumer("127.0.0.1", port) as simple:
        (found,) = simple.multifetch([FetchRequest(TOPIC, partition, 0)])
        return found.error is None


@pytest.fixture
def simple(cluster: Standalone) -> Iterator[SimpleConsumer]:
    with SimpleConsumer("127.0.0.1", leaders_of(cluster)[0]) as consumer:
        yield consumer


def test_a_fetch_gives_messages_from_an_offset_on(simple: SimpleConsumer) -> None:
    found = simple.fetch(FetchRequest(TOPIC, 0, offset=10))
    messages = list(found)
    assert [offset for _, offset in messages] == list(range(10, 50))
    assert messages[0].message.payload() == messages[0].message.key == b"10"
    assert messages[0].next_offset == 11
    assert (found.next_offset, found.high_watermark) == (50, 50)
    assert list(simple.fetch(FetchRequest(TOPIC, 0, offset=50))) == []


def test_a_small_fetch_returns_a_whole_batch_and_reading_continues(simple: SimpleConsumer) -> None:
    offset, found = 0, []
    while messages := list(simple.fetch(FetchRequest(TOPIC, 0, offset, fetch_size=1))):
        found += messages
        offset = messages[-1].next_offset
    assert [each.offset for each in found] == list(range(50))


def test_an_offset_out_of_range_is_refused_with_the_valid_range(simple: SimpleConsumer) -> None:
    with pytest.raises(OutOfRange, match="no offset 51: its offsets go from 0 up to 50") as gone:
        simple.fetch(FetchRequest(TOPIC, 0, offset=51))
    assert (gone.value.error, gone.value.start, gone.value.end) == (
        Error.OFFSET_OUT_OF_RANGE,
        0,
        50,
    )


def test_several_are_fetched_in_order_and_one_that_is_refused_raises_when_read(
    simple: SimpleConsumer,
) -> None:
    requests = [
        FetchRequest(TOPIC, 0, 45),
        FetchRequest(TOPIC, 1, 0),  # the other broker's
        FetchRequest(TOPIC, 0, 48),
        FetchRequest("nobody-made-it", 0, 0),
    ]
    first, others, again, unknown = simple.multifetch(requests)
    assert [offset for _, offset in first] == [45, 46, 47, 48, 49]
    assert [offset for _, offset in again] == [48, 49]
    with refused(Error.NOT_LEADER_OR_FOLLOWER, "clicks-1"):
        list(others)
    with refused(Error.UNKNOWN_TOPIC_OR_PARTITION, "nobody-made-it-0"):
        assert unknown.next_offset
    assert simple.multifetch([]) == []


def test_offsets_are_found_by_time(simple: SimpleConsumer) -> None:
    assert simple.get_offsets_before(TOPIC, 0, EARLIEST_TIME, 1) == [0]
    assert simple.get_offsets_before(TOPIC, 0, LATEST_TIME, 1) == [50]
    assert simple.get_offsets_before(TOPIC, 0, LATEST_TIME, 10) == [50, 0]
    assert simple.get_offsets_before(TOPIC, 0, 1_000, 10) == [], "nothing is as old as that"
    with refused(Error.NOT_LEADER_OR_FOLLOWER):
        simple.get_offsets_before(TOPIC, 1, LATEST_TIME)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_messages_are_given_one_by_one(cluster: Standalone, codec: str) -> None:
    address, name = f"127.0.0.1:{cluster.port}", f"compressed-{codec}"
    create(address, name, 1)
    producer = Producer({"bootstrap.servers": address, "compression.type": codec, "linger.ms": 50})
    for number in range(100):
        producer.produce(name, b"%d" % number, headers=[("codec", codec.encode())])
    assert producer.flush(20) == 0
    for port in (cluster.port, cluster.port + 1):
        with SimpleConsumer("127.0.0.1", port) as simple:
            (found,) = simple.multifetch([FetchRequest(name, 0, 30)])
            if found.error is None:
                messages = [message for message, _ in found]
                assert [each.payload() for each in messages] == [b"%d" % n for n in range(30, 100)]
                assert messages[0].headers == (("codec", codec.encode()),)
                return
    raise AssertionError("nobody leads it")


def test_a_fetch_waits_for_new_messages(cluster: Standalone) -> None:
    address = f"127.0.0.1:{cluster.port}"
    port = leaders_of(cluster)[1]
    with SimpleConsumer("127.0.0.1", port, client_id="patient") as simple:
        (end,) = simple.get_offsets_before(TOPIC, 1, LATEST_TIME)
        assert list(simple.fetch(FetchRequest(TOPIC, 1, end), max_wait_ms=50, min_bytes=1)) == []
        produce(address, TOPIC, 1, partition=1, start=9)
        ((message, offset),) = simple.fetch(FetchRequest(TOPIC, 1, end), 10_000, 1)
        assert (message.payload(), offset) == (b"9", end)


def test_a_missing_broker_and_a_closed_consumer_are_errors() -> None:
    with closing(SimpleConsumer("127.0.0.1", free_port(), socket_timeout_ms=2_000)) as simple:
        with refused(Error.NETWORK_EXCEPTION):
            simple.fetch(FetchRequest(TOPIC, 0, 0))
        simple.close()
        with pytest.raises(UserError, match="is closed"):
            simple.get_offsets_before(TOPIC, 0, LATEST_TIME)


def test_a_broker_that_was_restarted_is_asked_again(tmp_path: Path) -> None:
    with standalone(tmp_path) as run:
        create(f"127.0.0.1:{run.port}", TOPIC, 1)
        produce(f"127.0.0.1:{run.port}", TOPIC, 5)
        simple = SimpleConsumer("127.0.0.1", run.port)
        assert len(list(simple.fetch(FetchRequest(TOPIC, 0, 0)))) == 5
        port = run.port
    with closing(simple), standalone(tmp_path, port=port):
        assert len(list(simple.fetch(FetchRequest(TOPIC, 0, 0)))) == 5


@pytest.mark.peer
@pytest.mark.xdist_group("kafka")
def test_apache_kafka_can_be_read_too(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "broker") as broker:
        create(broker.address, TOPIC, 1)
        produce(broker.address, TOPIC, 20, 0)
        host, _, port = broker.address.rpartition(":")
        with SimpleConsumer(host, int(port)) as simple:
            found = simple.fetch(FetchRequest(TOPIC, 0, 5))
            assert [offset for _, offset in found] == list(range(5, 20))
            assert simple.get_offsets_before(TOPIC, 0, LATEST_TIME, 2) == [20, 0]
            with pytest.raises(OutOfRange, match="from 0 up to 20"):
                simple.fetch(FetchRequest(TOPIC, 0, 21))
