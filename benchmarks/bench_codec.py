"""The record codec: encode and decode of 100-byte records, beside aiokafka and confluent-kafka.

    .venv/bin/python benchmarks/bench_codec.py [--json]

Rates are per second of one thread's CPU time. aiokafka's builder and reader are compiled, as ours
are; each field of its records is read once, as a consumer does. confluent-kafka's encoder cannot be
called alone, so `produce()` into its queue is timed, without a broker: the application thread's
cost per record, before anything is encoded. Without a broker there is nothing for it to consume.
`header` is the broker's work on a produced batch of 64 KiB, apart from its CRC.
"""

from __future__ import annotations

import argparse
import random
import struct
import time

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from confluent_kafka import Producer
from measuring import Contender, Row, quantity, rates, show

from kdist.records import _compiled, _reference, codec
from kdist.records.batch import (
    CHECKED_POSITION,
    HEADER_SIZE,
    crc_fault,
    header_fault,
    producer_fault,
    read_header,
)
from kdist.records.build import build_batch, read_batch
from kdist.wire.crc32c import crc32c

RECORD_BYTES = 100
BATCH_RECORDS = 600  # as many as make 64 KiB
ENCODE_BUDGET = 20e6  # records per second and core
DECODE_BUDGET = 4e6
HEADER_BUDGET_US = 2  # per batch
NOW_MS = 1_700_000_000_000

VALUES = [random.Random(i).randbytes(RECORD_BYTES) for i in range(BATCH_RECORDS)]


def aiokafka_encode() -> bytearray:
    """What aiokafka's producer does for a batch."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for i, value in enumerate(VALUES):
        builder.append(i, NOW_MS, None, value, [])
    batch: bytearray = builder.build()
    return batch


def confluent_producer() -> Producer:
    """A producer with no broker, and a queue large enough for everything the benchmark sends."""
    return Producer(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            "log_level": 0,
            "error_cb": lambda _: None,
        }
    )


def confluent_contender() -> Contender:
    """`produce()` for each record of a batch; the queue is emptied between rounds."""
    producer = confluent_producer()

    def produce_all() -> None:
        produce = producer.produce
        for value in VALUES:
            produce("topic", value)

    def empty_the_queue() -> None:
        producer.purge()
        while len(producer):
            producer.poll(0.1)

    return Contender(produce_all, BATCH_RECORDS, empty_the_queue)


def measure_encode() -> list[Row]:
    """Records per second into a batch's body, and into a whole batch with header and CRC."""
    found = rates(
        {
            "kdist encode_records": Contender(
                lambda: _compiled.encode_records(VALUES), BATCH_RECORDS
            ),
            "kdist build_batch": Contender(
                lambda: build_batch(VALUES, timestamp_ms=NOW_MS), BATCH_RECORDS
            ),
            "kdist reference": Contender(lambda: _reference.encode_records(VALUES), BATCH_RECORDS),
            "aiokafka": Contender(aiokafka_encode, BATCH_RECORDS),
            "confluent-kafka": confluent_contender(),
        },
        time.thread_time_ns,
    )
    return rows("encode", found, ENCODE_BUDGET)


def measure_decode() -> list[Row]:
    """Records per second out of a body, and out of a whole batch with header and CRC."""
    batch = bytes(build_batch(VALUES, timestamp_ms=NOW_MS))
    body = batch[HEADER_SIZE:]

    def aiokafka_decode() -> object:
        found = DefaultRecordBatch(batch)
        assert found.validate_crc()
        return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in found]

    found = rates(
        {
            "kdist decode_records": Contender(
                lambda: _compiled.decode_records(body, BATCH_RECORDS, 0, NOW_MS), BATCH_RECORDS
            ),
            "kdist read_batch": Contender(lambda: read_batch(batch), BATCH_RECORDS),
            "kdist decode_values": Contender(
                lambda: _compiled.decode_values(body, BATCH_RECORDS), BATCH_RECORDS
            ),
            "kdist reference": Contender(
                lambda: _reference.decode_records(body, BATCH_RECORDS, 0, NOW_MS), BATCH_RECORDS
            ),
            "aiokafka": Contender(aiokafka_decode, BATCH_RECORDS),
        },
        time.thread_time_ns,
    )
    return rows("decode", found, DECODE_BUDGET)


def measure_header() -> list[Row]:
    """Batches per second through the broker's checks before an append, and the CRC alone."""
    batch = build_batch(VALUES, timestamp_ms=NOW_MS)

    def check_and_patch() -> None:
        header = read_header(batch)
        assert not header_fault(header, len(batch))
        assert not producer_fault(header)
        assert not crc_fault(batch, 0, header)
        struct.pack_into(
            ">q", batch, 0, 0
        )  # the base offset: a produced batch has 0, and is checked again
        struct.pack_into(">i", batch, 12, 5)  # the leader epoch

    found = rates(
        {
            "kdist check and patch": Contender(check_and_patch, 1),
            "its CRC alone": Contender(lambda: crc32c(memoryview(batch)[CHECKED_POSITION:]), 1),
        },
        time.thread_time_ns,
    )
    checked, crc = (Row("header", name, rate, "batches/s") for name, rate in found.items())
    beyond_us = 1e6 / checked.per_second - 1e6 / crc.per_second
    budget = f"{HEADER_BUDGET_US} us beside the CRC, took {beyond_us:.1f}"
    return [checked._replace(budget=budget, is_met=beyond_us <= HEADER_BUDGET_US), crc]


def rows(task: str, found: dict[str, float], budget: float) -> list[Row]:
    """A row for each contender; the first has the budget, other libraries are yardsticks."""
    yardsticks = [name for name in found if not name.startswith("kdist")]
    made = [
        Row(task, name, rate, "records/s", {other: rate / found[other] for other in yardsticks})
        for name, rate in found.items()
    ]
    budgeted = made[0]._replace(
        budget=quantity(budget, "records/s"), is_met=made[0].per_second >= budget
    )
    return [budgeted, *made[1:]]


def measure() -> list[Row]:
    """All rows of this benchmark; takes about ten seconds."""
    assert codec.IMPLEMENTATION == "compiled", "build the codec first: make setup"
    return measure_encode() + measure_decode() + measure_header()


def main() -> None:
    """Print the rows, for people or as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON array of rows")
    arguments = parser.parse_args()
    show(measure(), as_json=arguments.json)
    if not arguments.json:
        print("\nconfluent-kafka cannot decode without a broker, so it has no row there.")


if __name__ == "__main__":
    main()
