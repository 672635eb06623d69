"""The producer on a real broker, left unclosed too; a client that nobody here wrote reads it."""

from __future__ import annotations

import asyncio
import doctest
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from cutting_proxy import CuttingProxy
from peer.kafka_broker import KafkaBroker
from peer.kafka_queries import watermarks
from standalone_process import Standalone, free_ports, standalone

from kdist.classic import producer as classic
from kdist.client.cluster import NoBroker
from kdist.client.producer import asynchronous, at_exit, faults, message, results, sync
from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.faults import BufferFull, ProducerClosed
from kdist.client.producer.message import CallbackHandler, Message
from kdist.client.producer.results import Sent
from kdist.client.producer.sync import Producer
from kdist.errors import ApiError, Error, UserError, WrongType
from kdist.model import OffsetRange
from kdist.records import _reference_keys
from tests.refusals import refused

WAIT_S = 60


def address(cluster: Standalone) -> str:
    return f"127.0.0.1:{cluster.port}"


def read(where: str, topic: str, partitions: int = 1) -> list[list[confluent_kafka.Message]]:
    """Everything in the topic, by partition."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": where, "group.id": "read", "auto.offset.reset": "earliest"}
    )
    places = [confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)]
    left = sum(watermarks(consumer, place, WAIT_S)[1] for place in places)
    consumer.assign(places)
    found: list[list[confluent_kafka.Message]] = [[] for _ in places]
    deadline_s = time.monotonic() + WAIT_S
    while left > 0:
        assert time.monotonic() < deadline_s, "records are missing"
        for each in consumer.consume(min(left, 10_000), 0.2):
            found[each.partition()].append(each)
            left -= 1
    consumer.close()
    return found


def values(where: str, topic: str) -> list[bytes]:
    (messages,) = read(where, topic)
    return [each.value() for each in messages]


def numbers(count: int, size: int = 20) -> list[bytes]:
    return [(b"%d " % number).ljust(size, b"x") for number in range(count)]


PROGRAM = """
import os, sys, threading
from kdist import Producer
producer = Producer(bootstrap_servers="localhost:{port}", {settings})
for number in range({count}):
    producer.send({topic!r}, b"%d" % number)
{last}
"""
FORK = """
if not (child := os.fork()):
    sys.exit()  # as the parent ends: by way of all that is registered for it
assert os.waitpid(child, 0)[1] == 0
"""
STOPPED = """
import signal
producer.flush()
os.kill({broker}, signal.SIGSTOP)
producer.send("left-held", b"not taken")
producer.send("left-held", b"nor this")
"""


def run(port: int, topic: str, count: int, settings: str = "", last: str = "") -> tuple[str, float]:
    """What the program says, and how long it takes."""
    program = PROGRAM.format(port=port, topic=topic, count=count, settings=settings, last=last)
    begin_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, time.monotonic() - begin_s


def test_every_part_of_a_record_arrives(cluster: Standalone) -> None:
    with Producer(bootstrap_servers=address(cluster)) as producer:
        sent = producer.send("parts", b"v", b"k", [("h", b"1"), ("h", None)], 0, 1234567890123)
        assert sent.result(WAIT_S) == ("parts", 0, 0, 1234567890123)
        assert producer.send("parts", None, b"k").result(WAIT_S).offset == 1
    one, two = read(address(cluster), "parts")[0]
    assert (one.key(), one.value(), one.timestamp()[1]) == (b"k", b"v", 1234567890123)
    assert one.headers() == [("h", b"1"), ("h", None)]
    assert (two.key(), two.value()) == (b"k", None)
    assert abs(two.timestamp()[1] / 1000 - time.time()) < 60


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_many_records_arrive_in_order(cluster: Standalone, codec: str, acks: str) -> None:
    topic = f"many-{codec}-{acks}"
    where = address(cluster)
    with Producer(
        bootstrap_servers=where, acks=acks, compression_type=codec, batch_size=50_000
    ) as producer:
        producer.send(topic, b"0 ".ljust(20, b"x")).result(WAIT_S)
        for each in numbers(5_000)[1:2_000]:
            producer.send(topic, each)
        producer.send_many(topic, numbers(5_000)[2_000:])
        producer.flush(WAIT_S)
        last = producer.send(topic, b"last", partition=0)
        assert last.result(WAIT_S).offset == (-1 if acks == "0" else 5_000)
    found = values(where, topic) if acks != "0" else wait_for_values(where, topic, 5_001)
    assert found == [*numbers(5_000), b"last"]


def wait_for_values(where: str, topic: str, count: int) -> list[bytes]:
    """Of a topic that was written without acknowledgements."""
    while len(found := values(where, topic)) < count:
        pass
    return found


def test_keys_land_where_other_clients_put_them(cluster: Standalone) -> None:
    where = address(cluster)
    for topic in ("keys-ours", "keys-many", "keys-theirs"):
        cluster.run("topics", "create", topic, "--partitions", 7)
    keys = [b"user-%d" % (number * 37) for number in range(300)]
    theirs = confluent_kafka.Producer({"bootstrap.servers": where, "partitioner": "murmur2_random"})
    with Producer(bootstrap_servers=where) as ours:
        for key in keys:
            ours.send("keys-ours", b"v", key)
            theirs.produce("keys-theirs", b"v", key)
        ours.send_many("keys-many", [b"v"] * 300, keys).result(WAIT_S)
    assert theirs.flush(WAIT_S) == 0
    places = [
        [[each.key() for each in found] for found in read(where, topic, 7)]
        for topic in ("keys-ours", "keys-many", "keys-theirs")
    ]
    assert places[0] == places[1] == places[2]


def test_an_own_partitioner_and_encoders_are_asked(cluster: Standalone) -> None:
    cluster.run("topics", "create", "own", "--partitions", 3)
    with Producer(
        bootstrap_servers=[address(cluster)],
        partitioner=lambda key, count: count - 1 if key else 0,
        key_encoder=str.encode,
        value_encoder=lambda value: repr(value).encode(),
    ) as producer:
        assert producer.send("own", {"a": 1}, "k").result(WAIT_S).partition == 2
        assert producer.send("own", [1]).result(WAIT_S).partition == 0
        assert set(producer.send_many("own", [1, 2], ["k", None]).result(WAIT_S)) == {0, 2}
    found = read(address(cluster), "own", 3)
    assert [each.value() for each in found[2]] == [b"{'a': 1}", b"1"]


def test_records_without_a_key_go_to_all_partitions(cluster: Standalone) -> None:
    cluster.run("topics", "create", "spread", "--partitions", 4)
    with Producer(bootstrap_servers=address(cluster), batch_size=10_000) as producer:
        sent = producer.send_many("spread", numbers(20_000)).result(WAIT_S)
        assert sorted(sent) == [0, 1, 2, 3]
        assert sum(each.end - each.start for found in sent.values() for each in found) == 20_000


def test_threads_share_a_producer(cluster: Standalone) -> None:
    with Producer(bootstrap_servers=address(cluster), batch_size=20_000) as producer:
        offsets: list[list[int]] = [[] for _ in range(4)]

        def work(thread: int) -> None:
            sent = [producer.send("shared", b"%d %d" % (thread, n)) for n in range(3_000)]
            offsets[thread] += [each.result(WAIT_S).offset for each in sent]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = values(address(cluster), "shared")
    assert len(found) == 12_000
    for thread, mine in enumerate(offsets):
        assert [found[offset] for offset in mine] == [b"%d %d" % (thread, n) for n in range(3_000)]
        assert mine == sorted(mine)


@pytest.fixture
def behind_a_proxy(tmp_path: Path) -> Iterator[tuple[str, CuttingProxy]]:
    """A broker that calls itself by its proxy's address."""
    port = free_ports(5)
    proxy = CuttingProxy(port + 4, port)
    advertised = f"advertised.listeners=PLAINTEXT://127.0.0.1:{port + 4}"
    with standalone(tmp_path, "--config", advertised, port=port):
        yield f"127.0.0.1:{port + 4}", proxy
    proxy.close()


def test_connections_that_are_cut_neither_lose_nor_repeat_a_record(
    behind_a_proxy: tuple[str, CuttingProxy],
) -> None:
    where, proxy = behind_a_proxy
    with Producer(bootstrap_servers=where, batch_size=3_000, retry_backoff_ms=1) as producer:
        producer.send("cut", b"first").result(WAIT_S)
        proxy.bytes_between_cuts = 100_000
        sent = [producer.send("cut", each) for each in numbers(20_000, 100)]
        assert [each.result(WAIT_S).offset for each in sent] == list(range(1, 20_001))
        proxy.bytes_between_cuts = 0
    assert proxy.cuts > 5
    assert values(where, "cut") == [b"first", *numbers(20_000, 100)]


def test_a_broker_that_hangs_fills_the_buffer_and_that_is_an_error(
    behind_a_proxy: tuple[str, CuttingProxy],
) -> None:
    where, proxy = behind_a_proxy
    with Producer(bootstrap_servers=where) as creator:  # to create a topic may take over 300 ms
        creator.send("held", b"first").result(WAIT_S)
    with Producer(bootstrap_servers=where, buffer_memory=500_000, max_block_ms=300) as producer:
        producer.send("held", b"second").result(WAIT_S)
        proxy.may_pass.clear()
        sent: list[Sent] = []
        with pytest.raises(BufferFull):
            sent.extend(producer.send("held", each) for each in numbers(100_000, 100))
        assert 1_000 < len(sent) < 10_000
        proxy.may_pass.set()
        assert sent[-1].result(WAIT_S).offset == len(sent) + 1


def test_a_broker_that_restarts_is_waited_for(tmp_path: Path) -> None:
    port = free_ports(3)
    with standalone(tmp_path, port=port) as first:
        producer = Producer(bootstrap_servers=f"127.0.0.1:{port}", batch_size=5_000)
        sent = [producer.send("again", each) for each in numbers(5_000, 100)]
        os.kill(
            first.pids[next(name for name in first.pids if name != "zookeeper")], signal.SIGKILL
        )
        sent += [producer.send("again", each) for each in numbers(10_000, 100)[5_000:]]
    with standalone(tmp_path, port=port):
        assert [each.result(WAIT_S).offset for each in sent] == list(range(10_000))
        producer.close()
        assert values(f"127.0.0.1:{port}", "again") == numbers(10_000, 100)


def test_a_batch_larger_than_the_topic_takes_is_cut(cluster: Standalone) -> None:
    cluster.run("topics", "create", "narrow", "--config", "max.message.bytes=2000")
    with Producer(bootstrap_servers=address(cluster)) as producer:
        many = producer.send_many("narrow", numbers(1_000))
        assert many.result(WAIT_S) == {0: [OffsetRange(0, 1_000)]}
        with refused(Error.MESSAGE_TOO_LARGE):
            producer.send("narrow", b"x" * 3_000).result(WAIT_S)
        assert producer.send("narrow", b"after").result(WAIT_S).offset == 1_000
    assert values(address(cluster), "narrow") == [*numbers(1_000), b"after"]


def test_what_is_wrong_is_said(cluster: Standalone) -> None:
    with Producer(bootstrap_servers=address(cluster)) as producer:
        with refused(Error.INVALID_TOPIC_EXCEPTION):
            producer.send("not a name", b"v")
        with pytest.raises(ApiError, match="wrong has partitions 0 to 0, and no 5"):
            producer.send("wrong", b"v", partition=5)
        with pytest.raises(TypeError, match="value_encoder"):
            producer.send("wrong", "text")
        with pytest.raises(ValueError, match="2 keys for 1 values"):
            producer.send_many("wrong", [b"v"], [b"a", b"b"])
    with pytest.raises(ProducerClosed):
        producer.send("wrong", b"v")
    with (
        Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=300) as producer,
        pytest.raises(NoBroker, match=r"127.0.0.1:1 \(connection refused"),
    ):
        producer.send("wrong", b"v")


def test_brokers_are_found_by_each_of_the_names(cluster: Standalone) -> None:
    zookeeper = cluster.addresses["zookeeper"]
    for given in ({"broker_list": address(cluster)}, {"zk_connect": zookeeper}):
        with Producer(**given) as producer:
            producer.send("found", b"v").result(WAIT_S)
    with pytest.raises(UserError, match="bootstrap_servers, or zk_connect"):
        Producer()
    with pytest.raises(UserError, match="give one"):
        Producer(broker_list=address(cluster), zk_connect=zookeeper)


class Watching(CallbackHandler):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def before_enqueue(self, topic: str, message: Message) -> Message:
        return message._replace(value=message.value.upper())

    def after_enqueue(self, topic: str, message: Message, *, was_added: bool) -> None:
        self.told.append(("enqueued", message.value, was_added))

    def after_dequeue(self, topic: str, partition: int, messages: Sequence[Message]) -> None:
        self.told.append(("dequeued", partition, [each.value for each in messages]))

    def last_batch_before_close(self) -> list[tuple[str, Message]]:
        return [("stages", Message(b"last"))]


def test_a_callback_handler_sees_the_stages_of_the_queue(cluster: Standalone) -> None:
    cluster.run("topics", "create", "stages")  # that it is created by itself may take longer
    handler = Watching()
    with classic.Producer(
        bootstrap_servers=address(cluster), callback_handler=handler, max_block_ms=300
    ) as producer:
        several = classic.MessageSet([b"a", Message(b"b", key=b"k")])
        producer.send("stages", several).result(WAIT_S)
        with pytest.raises(ApiError):
            producer.send("stages", b"c", partition=3)
    assert handler.told == [
        ("enqueued", b"A", True),
        ("enqueued", b"B", True),
        ("dequeued", 0, [b"A", b"B"]),
        ("enqueued", b"C", False),
        ("dequeued", 0, [b"last"]),
    ]
    assert values(address(cluster), "stages") == [b"A", b"B", b"last"]


def test_done_callbacks_are_called_and_one_that_raises_stops_no_other(cluster: Standalone) -> None:
    called: list[int] = []
    all_called = threading.Event()
    with Producer(bootstrap_servers=address(cluster)) as producer:
        sent = producer.send("called", b"v")
        sent.add_done_callback(lambda each: called.append(each.result().offset))
        sent.add_done_callback(lambda each: 1 // 0)
        sent.add_done_callback(lambda each: all_called.set())
        assert all_called.wait(WAIT_S)
        assert called == [0]
        assert producer.send("called", b"v").result(WAIT_S).offset == 1


def test_the_asyncio_front_sends_as_the_other_does(cluster: Standalone) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=address(cluster)) as producer:
            sent = [await producer.send("aio", each) for each in numbers(1_000)]
            assert [each.offset for each in await asyncio.gather(*map(wait, sent))] == list(
                range(1_000)
            )
            many = await producer.send_many("aio", numbers(2_000)[1_000:])
            assert await many == {0: [OffsetRange(1_000, 2_000)]}
            assert (await producer.send_and_wait("aio", b"v", key=b"k")).offset == 2_000

    async def wait(sent: Any) -> Any:
        return await sent

    asyncio.run(main())
    assert values(address(cluster), "aio") == [*numbers(2_000), b"v"]


def test_a_message_set_is_sent_with_one_call(cluster: Standalone) -> None:
    cluster.run("topics", "create", "sets")
    messages = classic.MessageSet([b"a", Message(b"b", key=b"k", timestamp=9)])
    messages.append(b"value")  # type: ignore[arg-type]  # as many bytes as a message has fields
    with classic.Producer(bootstrap_servers=address(cluster)) as producer:
        for beside in ({"key": b"k"}, {"partition": 0}, {"timestamp": 5}, {"headers": []}):
            with pytest.raises(WrongType, match="are those of each Message"):
                producer.send("sets", messages, **beside)  # type: ignore[call-overload]
        assert producer.send("sets", messages).result(WAIT_S)[0][0].end == 3
        assert producer.send("sets", b"one").result(WAIT_S).offset == 3
    assert values(address(cluster), "sets") == [b"a", b"b", b"value", b"one"]


def test_the_examples_run_as_they_are_written(cluster: Standalone) -> None:
    world = {"broker": address(cluster), "asyncio": asyncio, "Producer": Producer}
    world |= {"Message": Message}
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    modules = (message, sync, asynchronous, results, faults, _reference_keys, classic)
    for module in modules:
        own = {"Producer": classic.Producer} if module is classic else {}
        tests = finder.find(module, extraglobs=world | own)
        for each in sorted(tests, key=lambda test: test.lineno or 0):
            runner.run(each)
    assert runner.summarize(verbose=False).failed == 0
    assert runner.tries > 20


@pytest.mark.peer
def test_apache_kafka_takes_what_is_sent(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", auto_create_topics_enable="true") as kafka:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            with Producer(
                bootstrap_servers=kafka.address, compression_type=codec, batch_size=20_000
            ) as producer:
                many = producer.send_many(f"to-{codec}", numbers(3_000))
                assert many.result(WAIT_S) == {0: [OffsetRange(0, 3_000)]}
            assert values(kafka.address, f"to-{codec}") == numbers(3_000)
        producer = Producer(bootstrap_servers=kafka.address, batch_size=2_000)
        sent = [producer.send("killed", each) for each in numbers(2_000)]
        sent[0].result(WAIT_S)
        pid = kafka.pid
        os.kill(pid, signal.SIGSTOP)
        sent += [producer.send("killed", each) for each in numbers(4_000)[2_000:]]
        os.kill(pid, signal.SIGCONT)
        assert [each.result(WAIT_S).offset for each in sent] == list(range(4_000))
        producer.close()
        assert values(kafka.address, "killed") == numbers(4_000)


@pytest.mark.parametrize(
    ("settings", "count"),
    [("", 1), ("", 50_000), ("linger_ms=60_000", 8), ("acks='0'", 9), ("acks='1'", 10)],
)
def test_what_was_sent_arrives(cluster: Standalone, settings: str, count: int) -> None:
    topic = f"left-{count}"
    assert run(cluster.port, topic, count, settings)[0] == ""
    assert values(address(cluster), topic) == [b"%d" % number for number in range(count)]


def test_a_forked_process_sends_nothing_of_its_parents(cluster: Standalone) -> None:
    assert run(cluster.port, "forked", 9, "linger_ms=60_000", FORK)[0] == ""
    assert values(address(cluster), "forked") == [b"%d" % number for number in range(9)]


def test_what_a_broker_that_hangs_does_not_take_is_told_and_the_program_ends(
    cluster: Standalone,
) -> None:
    broker = next(pid for name, pid in cluster.pids.items() if name != "zookeeper")
    try:
        said, took_s = run(cluster.port, "left-held", 5, last=STOPPED.format(broker=broker))
    finally:
        os.kill(broker, signal.SIGCONT)
    assert said == (
        "kdist-producer was not closed: 2 of its records were not acknowledged, and may be lost; "
        "use `with`, or close it\n"
    )
    assert took_s < at_exit.FLUSH_S + 15
