"""A client's faults raise the errors that the guides name, and nothing hangs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kdist import (
    BufferFull,
    Consumer,
    ConsumerClosed,
    DeliveryTimedOut,
    Error,
    NoBroker,
    NotDecoded,
    Producer,
    ProducerClosed,
    RecordTooLarge,
    TopicPartition,
    UserError,
    aio,
)
from tests.integration.consumer_members import create
from tests.integration.standalone_process import Standalone, standalone
from tests.refusals import refused

WAIT_S = 30
HASTY = {"request_timeout_ms": 500, "max_block_ms": 1_000}


@pytest.fixture(scope="module")
def broker(cluster: Standalone) -> str:
    address = f"127.0.0.1:{cluster.port}"
    create(address, "clicks", 1)
    return address


@pytest.fixture
def wrong(cluster: Standalone, request: pytest.FixtureRequest) -> Iterator[str]:
    """An address without a broker, in every possible way."""
    with ExitStack() as kept:
        silent = kept.enter_context(socket.create_server(("127.0.0.1", 0)))
        yield {
            "no such host": "no-such-host.invalid:9092",
            "nobody listens": "127.0.0.1:1",
            "somebody else listens": cluster.addresses["zookeeper"],
            "it takes connections and is silent": f"127.0.0.1:{silent.getsockname()[1]}",
        }[request.param]


WRONG = ["no such host", "nobody listens", "somebody else listens"]
SILENT = "it takes connections and is silent"


@pytest.mark.parametrize("wrong", [*WRONG, SILENT], indirect=True)
def test_a_producer_says_that_no_broker_answers_at_a_wrong_address(wrong: str) -> None:
    with Producer(bootstrap_servers=wrong, **HASTY) as producer:
        started_s = time.monotonic()
        with pytest.raises(NoBroker, match=f"no broker answers at {wrong}"):
            producer.send("clicks", b"v")
        assert time.monotonic() - started_s < WAIT_S


@pytest.mark.parametrize("wrong", [*WRONG, SILENT], indirect=True)
def test_a_consumer_says_that_no_broker_answers_at_a_wrong_address(wrong: str) -> None:
    with Consumer(wrong, request_timeout_ms=500, fetch_max_wait_ms=100) as consumer:
        consumer.assign([TopicPartition("clicks", 0)])
        with pytest.raises(NoBroker, match=f"no broker answers at {wrong}"):
            consumer.poll(WAIT_S)


def test_one_good_address_is_enough(broker: str) -> None:
    both = ["127.0.0.1:1", broker]
    with Producer(bootstrap_servers=both) as producer:
        offset = producer.send("clicks", b"found").result(WAIT_S).offset
    with Consumer(both) as consumer:
        consumer.assign([TopicPartition("clicks", 0)])
        consumer.seek(TopicPartition("clicks", 0), offset)
        assert consumer.poll(WAIT_S)[0].value == b"found"


def test_a_broker_that_is_lost_fails_what_is_not_acknowledged_and_nothing_hangs(
    tmp_path: Path,
) -> None:
    with standalone(tmp_path) as run, ExitStack() as clients:
        where = f"127.0.0.1:{run.port}"
        short = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 500}
        patient = clients.enter_context(Producer(bootstrap_servers=where, **short))
        small = clients.enter_context(
            Producer(
                bootstrap_servers=where, max_block_ms=5_000, buffer_memory=20_000, batch_size=5_000
            )
        )
        for producer in (patient, small):
            assert producer.send("clicks", b"there").result(WAIT_S).offset >= 0
        consumer = clients.enter_context(Consumer(where, auto_offset_reset="earliest"))
        consumer.assign([TopicPartition("clicks", 0)])
        assert len(consumer.poll(WAIT_S)) == 2
        broker = next(pid for name, pid in run.pids.items() if name != "zookeeper")
        os.kill(run.process.pid, signal.SIGSTOP)  # else it would start the broker again
        clients.callback(os.kill, run.process.pid, signal.SIGCONT)
        os.kill(broker, signal.SIGKILL)
        with pytest.raises(DeliveryTimedOut):
            patient.send("clicks", b"lost").result(WAIT_S)
        with pytest.raises(BufferFull):
            small.send_many("clicks", [b"x" * 1_000] * 100)
        assert consumer.poll(1.0) == []
        small.close(0.1)


def test_oversized_records_are_refused_and_others_sent(cluster: Standalone, broker: str) -> None:
    cluster.run("topics", "create", "narrowed", "--config", "max.message.bytes=2000")
    with Producer(bootstrap_servers=broker, max_request_size=10_000) as producer:
        with pytest.raises(RecordTooLarge):
            producer.send("narrowed", b"x" * 10_000)
        oversized = producer.send("narrowed", b"x" * 3_000)
        assert producer.send("narrowed", b"small").result(WAIT_S).offset == 0
        with refused(Error.MESSAGE_TOO_LARGE):
            oversized.result(WAIT_S)


def test_a_record_larger_than_a_fetch_is_read_all_the_same(
    cluster: Standalone, broker: str
) -> None:
    cluster.run("topics", "create", "large")
    with Producer(bootstrap_servers=broker) as producer:
        producer.send_many("large", [b"a" * 500_000, b"b" * 300_000, b"c"]).result(WAIT_S)
    small = {"max_partition_fetch_bytes": 100, "fetch_max_bytes": 100}
    with Consumer(broker, auto_offset_reset="earliest", **small) as consumer:
        consumer.assign([TopicPartition("large", 0)])
        sizes: list[int] = []
        while len(sizes) < 3:
            sizes += [len(record.value) for record in consumer.poll(WAIT_S)]
        assert sizes == [500_000, 300_000, 1]


def test_values_that_cannot_be_encoded_or_decoded_are_named_with_their_offset(
    cluster: Standalone, broker: str
) -> None:
    cluster.run("topics", "create", "json")
    with Producer(bootstrap_servers=broker, value_encoder=lambda v: json.dumps(v).encode()) as ours:
        with pytest.raises(TypeError, match="not JSON serializable"):
            ours.send("json", {1, 2})
        with pytest.raises(TypeError, match="not JSON serializable"):
            ours.send_many("json", [1, {1, 2}])
        ours.send("json", {"a": 1}).result(WAIT_S)
    with Producer(bootstrap_servers=broker) as plain:
        with pytest.raises(TypeError, match="value_encoder"):
            plain.send("json", {"a": 1})
        plain.send("json", b"no JSON {").result(WAIT_S)
    with Consumer(broker, auto_offset_reset="earliest", value_decoder=json.loads) as consumer:
        consumer.assign([TopicPartition("json", 0)])
        assert consumer.poll(WAIT_S)[0].value == {"a": 1}
        with pytest.raises(NotDecoded) as refused:
            consumer.poll(WAIT_S)
        assert (refused.value.partition, refused.value.offset) == (TopicPartition("json", 0), 1)


CLOSED: dict[str, Callable[[Consumer], object]] = {
    "poll": lambda consumer: consumer.poll(1),
    "poll_batches": lambda consumer: consumer.poll_batches(1),
    "iteration": lambda consumer: next(iter(consumer)),
    "commit": lambda consumer: consumer.commit(),
    "seek": lambda consumer: consumer.seek(TopicPartition("clicks", 0), 0),
    "assign": lambda consumer: consumer.assign([TopicPartition("clicks", 0)]),
    "subscribe": lambda consumer: consumer.subscribe(["clicks"]),
    "end_offsets": lambda consumer: consumer.end_offsets([TopicPartition("clicks", 0)]),
}


@pytest.mark.parametrize("call", CLOSED)
def test_a_closed_consumer_refuses_calls(broker: str, call: str) -> None:
    consumer = Consumer(broker, group_id="closed")
    consumer.close()
    with pytest.raises(ConsumerClosed, match="the consumer is closed"):
        CLOSED[call](consumer)
    consumer.wakeup()  # a signal's handler may come late
    consumer.close()  # again: nothing


def test_a_closed_asyncio_consumer_refuses_calls(broker: str) -> None:
    async def scenario() -> None:
        consumer = aio.Consumer(broker, group_id="closed")
        await consumer.close()
        with pytest.raises(ConsumerClosed):
            await consumer.poll(1)
        with pytest.raises(ConsumerClosed):
            consumer.subscribe(["clicks"])
        await consumer.close()

    asyncio.run(scenario())


def test_a_closed_producer_refuses_calls(broker: str) -> None:
    producer = Producer(bootstrap_servers=broker)
    producer.close()
    with pytest.raises(ProducerClosed):
        producer.send("clicks", b"late")
    with pytest.raises(ProducerClosed):
        producer.send("clicks", b"late", key=b"k", partition=0)
    with pytest.raises(ProducerClosed):
        producer.send_many("clicks", [b"late"])
    producer.flush(WAIT_S)  # nothing is under way
    producer.close()

    async def scenario() -> None:
        awaited = aio.Producer(bootstrap_servers=broker)
        await awaited.start()
        await awaited.close()
        with pytest.raises(ProducerClosed):
            await awaited.send("clicks", b"late")
        await awaited.flush()
        await awaited.close()

    asyncio.run(scenario())


def test_wrong_settings_are_refused_before_anything_connects() -> None:
    with pytest.raises(UserError, match="did you mean acks"):
        Producer(bootstrap_servers="localhost:9092", ack="all")
    with pytest.raises(UserError, match="give host:port"):
        Producer(bootstrap_servers="localhost")
    with pytest.raises(UserError, match="give host:port"):
        Consumer("localhost:99999")
    with pytest.raises(UserError, match="did you mean group_id"):
        Consumer("localhost:9092", grup_id="reports")
