"""kdist's producer beside confluent-kafka, kafka-python and aiokafka, to one `kdist standalone`.

Contenders run in turn, in the order A B C C B A, each with a producer and a topic of its own, the
same linger and settings. What is counted is from the first call until all is acknowledged, after
one message that came through. CPU is what this process had of the cores meanwhile, all threads: on
a busy machine the better measure. Ratios above 1 are kdist's lead over confluent-kafka; losses are
printed like everything else.

`.venv/bin/python benchmarks/bench_producer.py [--quick] [--only WORDS] [--json]`
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests/integration")]

import aiokafka
import confluent_kafka
import kafka
from confluent_kafka.admin import AdminClient, NewTopic
from standalone_process import standalone

from kdist.client.producer.asynchronous import AsyncProducer
from kdist.client.producer.sync import Producer

WAIT_S = 120
LINGER_MS = 5
PARTITIONS = 4
YARDSTICK = "confluent-kafka produce+poll"

_numbers = itertools.count(1)


class Load(NamedTuple):
    """What is sent."""

    values: Sequence[bytes]
    acks: str
    codec: str


class Sample(NamedTuple):
    """One run: messages a second, and nanoseconds of the processor for each."""

    per_second: float
    cpu_ns: float


Begin = Callable[[], None]
Send = Callable[[str, str, Load, Begin], None]


# The contenders: each sends all values to the topic, and returns when all are acknowledged


def _kdist(address: str, load: Load) -> Producer:
    return Producer(
        bootstrap_servers=address, acks=load.acks, compression_type=load.codec, linger_ms=LINGER_MS
    )


def kdist_send_many(address: str, topic: str, load: Load, begin: Begin) -> None:
    """Everything in one call."""
    with _kdist(address, load) as producer:
        producer.send(topic, b"first").result(WAIT_S)
        begin()
        producer.send_many(topic, load.values).result(WAIT_S)


def kdist_send(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each."""
    with _kdist(address, load) as producer:
        send = producer.send
        send(topic, b"first").result(WAIT_S)
        begin()
        for value in load.values:
            send(topic, value)
        producer.flush(WAIT_S)


def kdist_send_keyed(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each, with a key of a thousand."""
    keys = [b"user-%03d" % number for number in range(1000)]
    with _kdist(address, load) as producer:
        send = producer.send
        send(topic, b"first").result(WAIT_S)
        begin()
        for value, key in zip(load.values, itertools.cycle(keys)):
            send(topic, value, key)
        producer.flush(WAIT_S)


def kdist_aio_send(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each, awaited until it is in a batch."""

    async def run() -> None:
        async with AsyncProducer(
            bootstrap_servers=address,
            acks=load.acks,
            compression_type=load.codec,
            linger_ms=LINGER_MS,
        ) as producer:
            await producer.send_and_wait(topic, b"first")
            begin()
            for value in load.values:
                await producer.send(topic, value)
            await producer.flush()

    asyncio.run(run())


def _confluent(address: str, load: Load) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "acks": load.acks,
            "enable.idempotence": load.acks == "all",
            "compression.type": load.codec,
            "linger.ms": LINGER_MS,
        }
    )


def confluent_produce(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each, and a poll, as its documentation has it."""
    producer = _confluent(address, load)
    producer.produce(topic, b"first")
    producer.flush(WAIT_S)
    begin()
    produce, poll = producer.produce, producer.poll
    for value in load.values:
        while True:
            try:
                produce(topic, value)
                break
            except BufferError:
                poll(0.01)
        poll(0)
    assert producer.flush(WAIT_S) == 0, "not all were acknowledged"


def confluent_produce_only(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each, and a poll only when its queue is full: as fast as it can be used."""
    producer = _confluent(address, load)
    producer.produce(topic, b"first")
    producer.flush(WAIT_S)
    begin()
    produce = producer.produce
    for value in load.values:
        while True:
            try:
                produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(WAIT_S) == 0, "not all were acknowledged"


def kafka_python_send(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=address,
        acks=1 if load.acks == "1" else "all",
        enable_idempotence=load.acks == "all",
        compression_type=None if load.codec == "none" else load.codec,
        linger_ms=LINGER_MS,
    )
    producer.send(topic, b"first").get(WAIT_S)
    begin()
    for value in load.values:
        producer.send(topic, value)
    producer.flush(WAIT_S)
    producer.close()


def aiokafka_send(address: str, topic: str, load: Load, begin: Begin) -> None:
    """A call for each, awaited until it is in a batch."""

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address,
            acks=1 if load.acks == "1" else "all",
            enable_idempotence=load.acks == "all",
            compression_type=None if load.codec == "none" else load.codec,
            linger_ms=LINGER_MS,
        )
        async with producer:
            await producer.send_and_wait(topic, b"first")
            begin()
            for value in load.values:
                await producer.send(topic, value)
            await producer.flush()

    asyncio.run(run())


# Name, and how many of the messages it is given: slow ones would take all day.
CONTENDERS: Mapping[str, tuple[Send, int]] = {
    "kdist send_many": (kdist_send_many, 1),
    "kdist send": (kdist_send, 1),
    "kdist send with keys": (kdist_send_keyed, 2),
    "kdist.aio send": (kdist_aio_send, 4),
    YARDSTICK: (confluent_produce, 1),
    "confluent-kafka produce": (confluent_produce_only, 1),
    "kafka-python send": (kafka_python_send, 20),
    "aiokafka send": (aiokafka_send, 20),
}


# The run


def measure(address: str, send: Send, load: Load) -> Sample:
    """One run on a new topic."""
    topic = f"bench-{os.getpid()}-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        made.result(WAIT_S)
    started: list[float] = []
    send(address, topic, load, lambda: started.extend((time.perf_counter(), time.process_time())))
    taken_s, used_s = time.perf_counter() - started[0], time.process_time() - started[1]
    for gone in admin.delete_topics([topic]).values():
        gone.result(WAIT_S)
    count = len(load.values)
    return Sample(count / taken_s, used_s / count * 1e9)


def run_task(
    address: str, size: int, acks: str, codec: str, messages: int, rounds: int, only: str
) -> dict[str, Sample]:
    """Medians of each contender."""
    values = [
        (b"%d user clicked page %d " % (n, n * 7919)).ljust(size, b"x") for n in range(messages)
    ]
    samples: dict[str, list[Sample]] = {}
    chosen = {name: each for name, each in CONTENDERS.items() if only in name or name == YARDSTICK}
    for number in range(rounds):
        order = list(chosen.items())
        for name, (send, fraction) in order if number % 2 else reversed(order):
            load = Load(values[: len(values) // fraction], acks, codec)
            samples.setdefault(name, []).append(measure(address, send, load))
            print(".", end="", file=sys.stderr, flush=True)
    return {
        name: Sample(
            statistics.median(each.per_second for each in found),
            statistics.median(each.cpu_ns for each in found),
        )
        for name, found in samples.items()
    }


def show(task: str, results: Mapping[str, Sample]) -> None:
    """A task's lines."""
    yardstick = results[YARDSTICK]
    print(f"\n{task}")
    for name in CONTENDERS:
        if name in results:
            rate, cpu_ns = results[name]
            print(
                f"  {name:30}  {rate / 1e3:8,.0f} k messages/s  "
                f"{rate / yardstick.per_second:5.2f} x   "
                f"{cpu_ns:6,.0f} ns of CPU  {yardstick.cpu_ns / cpu_ns:5.2f} x"
            )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="contenders whose name has this in it")
    parser.add_argument("--task", default="", help="tasks whose name has this in it")
    parser.add_argument("--quick", action="store_true", help="does it run?")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    messages, rounds = (2_000, 2) if options.quick else (400_000, 4)
    everything = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-producer-") as directory,
        standalone(Path(directory)) as run,
    ):
        for size, codec, acks in itertools.product((100, 1024), ("none", "lz4"), ("1", "all")):
            task = f"{size} B, acks={acks}, {codec}"
            if options.task in task:
                count = messages if size == 100 else messages // 2
                address = f"127.0.0.1:{run.port}"
                results = run_task(address, size, acks, codec, count, rounds, options.only)
                everything[task] = {name: each._asdict() for name, each in results.items()}
                if not options.json:
                    show(task, results)
    print(file=sys.stderr)
    if options.json:
        print(json.dumps(everything))


if __name__ == "__main__":
    main()
