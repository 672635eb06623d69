"""Batches against three other codecs, kafka-python's, aiokafka's (compiled) and kio's, both ways.

And the compiled codec against the reference on damaged input: the same value or the same error.
"""

from __future__ import annotations

import datetime
import io
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kio.records import readers as kio_readers
from kio.records import schema as kio
from kio.records import writers as kio_writers

from kdist.errors import CorruptRecords
from kdist.records import _compiled, _reference, build
from kdist.records.batch import BatchHeader, read_header, stamp_append_time
from kdist.records.build import build_batch, read_batch
from kdist.records.compression import Codec
from kdist.records.control import ControlType, EndTransactionMarker
from kdist.records.record import Record
from tests.examples import examples, first_of
from tests.written_records import write_marker

NOW_MS = 1_700_000_000_000
IMPLEMENTATIONS = {"reference": _reference, "compiled": _compiled}
BUILDERS = [
    pytest.param(KafkaPythonBuilder, 0, id="kafka-python"),
    pytest.param(AiokafkaBuilder, -1, id="aiokafka"),
]
READERS = [
    pytest.param(KafkaPythonBatch, id="kafka-python"),
    pytest.param(AiokafkaBatch, id="aiokafka"),
]

buffers = st.none() | st.binary(max_size=100)
header_lists = st.lists(st.tuples(st.text(max_size=10), buffers), max_size=3)
timestamps = st.integers(NOW_MS - 100_000, NOW_MS + 100_000)  # deltas of both signs
tables = st.lists(st.tuples(buffers, buffers, header_lists, timestamps), min_size=1, max_size=20)
codecs = st.sampled_from(Codec)


@pytest.fixture(params=IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys(), autouse=True)
def implementation(request: pytest.FixtureRequest) -> Any:
    """Runs each test with `build` on one codec, then on the other."""
    chosen = build.encode_records, build.decode_records
    build.encode_records = request.param.encode_records
    build.decode_records = request.param.decode_records
    yield request.param
    build.encode_records, build.decode_records = chosen


def ours(table: list[tuple[Any, ...]], **fields: Any) -> bytes:
    values, keys, headers, stamps = ([row[i] for row in table] for i in range(4))
    return bytes(build_batch(values, keys, headers, stamps, timestamp_ms=0, **fields))


def theirs(builder: Any, table: list[tuple[Any, ...]], codec: int, **fields: Any) -> bytes:
    made = builder(
        magic=2,
        compression_type=codec,
        is_transactional=fields.get("is_transactional", False),
        producer_id=fields.get("producer_id", -1),
        producer_epoch=fields.get("producer_epoch", -1),
        base_sequence=fields.get("base_sequence", -1),
        batch_size=1 << 20,
    )
    for i, (value, key, headers, timestamp) in enumerate(table):
        assert made.append(i, timestamp, key, value, headers)
    return bytes(made.build())


def expected(table: list[tuple[Any, ...]], base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + i, timestamp, key, value, tuple(headers))
        for i, (value, key, headers, timestamp) in enumerate(table)
    ]


def as_records(batch: Any) -> list[Record]:
    return [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]


@pytest.mark.parametrize(("builder", "leader_epoch"), BUILDERS)
@given(
    table=tables,
    producer=st.tuples(
        st.integers(0, 1 << 60), st.integers(0, 32_767), st.integers(0, (1 << 31) - 1)
    ),
    is_transactional=st.booleans(),
)
@examples(60)
def test_uncompressed_batches_are_equal_byte_for_byte(
    builder: Any,
    leader_epoch: int,
    table: list[tuple[Any, ...]],
    producer: tuple[int, int, int],
    is_transactional: bool,
) -> None:
    fields = dict(zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True))
    fields["is_transactional"] = is_transactional
    assert ours(table, leader_epoch=leader_epoch, **fields) == theirs(builder, table, 0, **fields)


@pytest.mark.parametrize("reader", READERS)
@given(codec=codecs, table=tables, base_offset=st.integers(0, 1 << 60))
@examples(150)
def test_others_read_our_batches(
    reader: Any, codec: Codec, table: list[tuple[Any, ...]], base_offset: int
) -> None:
    batch = reader(ours(table, codec=codec, base_offset=base_offset))
    assert batch.validate_crc()
    assert batch.compression_type == codec
    assert batch.next_offset == base_offset + len(table)
    assert as_records(batch) == expected(table, base_offset)


@pytest.mark.parametrize(("builder", "leader_epoch"), BUILDERS)
@given(codec=codecs, table=tables)
@examples(150)
def test_we_read_the_batches_of_others(
    builder: Any, leader_epoch: int, codec: Codec, table: list[tuple[Any, ...]]
) -> None:
    data = theirs(builder, table + table, codec)
    assert read_header(data).partition_leader_epoch == leader_epoch
    assert read_batch(data) == expected(table + table)


@pytest.mark.parametrize("reader", READERS)
@given(table=tables, append_time=timestamps)
@examples(30)
def test_others_read_append_time_from_a_stamped_batch(
    reader: Any, table: list[tuple[Any, ...]], append_time: int
) -> None:
    data = bytearray(ours(table))
    stamp_append_time(data, 0, append_time)
    batch = reader(bytes(data))
    assert batch.validate_crc()
    stamped = [record._replace(timestamp=append_time) for record in expected(table)]
    assert as_records(batch) == read_batch(data) == stamped


@pytest.mark.parametrize("control_type", [ControlType.ABORT, ControlType.COMMIT])
def test_others_read_our_markers(control_type: ControlType) -> None:
    key, value = write_marker(EndTransactionMarker(control_type, 3))
    data = bytes(build_batch([value], [key], timestamp_ms=NOW_MS, producer_id=1, is_control=True))
    (record,) = KafkaPythonBatch(data)
    assert (record.commit, record.abort) == (control_type == 1, control_type == 0)
    batch = AiokafkaBatch(data)
    assert batch.is_control_batch
    assert [(r.key, r.value) for r in batch] == [(key, value)]


def kio_time(timestamp: int) -> Any:
    moment = datetime.datetime.fromtimestamp(timestamp // 1000, datetime.UTC)
    return kio_readers.TZAwareMicros.parse(moment)


def kio_records(table: list[tuple[Any, ...]], base_offset: int) -> tuple[Any, ...]:
    return tuple(
        kio.Record(
            attributes=0,
            timestamp=kio_time(timestamp),
            offset=base_offset + i,
            key=key,
            value=value,
            headers=tuple(kio.RecordHeader(key=k.encode(), value=v) for k, v in headers),
        )
        for i, (value, key, headers, timestamp) in enumerate(table)
    )


@given(table=tables, base_offset=st.integers(0, 1 << 40))
@examples(60)
def test_kio_reads_our_batches_and_writes_the_same_bytes(
    table: list[tuple[Any, ...]], base_offset: int
) -> None:
    whole_seconds = [(*row[:3], row[3] // 1000 * 1000) for row in table]
    data = ours(whole_seconds, base_offset=base_offset, leader_epoch=4, producer_id=8)
    batch, size = kio_readers.read_batch(data, 0)
    assert size == len(data)
    assert batch.records == kio_records(whole_seconds, base_offset)
    header = read_header(data)
    for field in set(BatchHeader._fields) - {"magic", "record_count"}:
        assert getattr(batch, field) == getattr(header, field), field
    out = io.BytesIO()
    made = kio.NewRecordBatch(
        producer_id=8,
        producer_epoch=-1,
        partition_leader_epoch=4,
        base_sequence=-1,
        attributes=0,
        records=batch.records,
    )
    kio_writers.write_new_batch(out, made)
    assert out.getvalue() == data


def outcome(call: Callable[..., object], *arguments: object) -> object:
    try:
        return call(*arguments)
    except CorruptRecords:
        return CorruptRecords


def mutated(body: bytes, rng: random.Random) -> bytes:
    """The body with one to three changes of a kind that hits lengths, counts and varints."""
    data = bytearray(body)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            data[at : at + 1] = bytes([rng.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))])
        elif kind == 1:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 2:
            del data[at : at + rng.randint(1, 3)]
        else:
            data[at:at] = rng.randbytes(rng.randint(1, 6))
    return bytes(data)


DECODERS = "decode_records decode_values decode_keys decode_headers decode_numbers find_null_key"


def agree(body: bytes, count: int) -> bool:
    """Both codecs' outcomes must be equal; whether it was a value."""
    sound = False
    for name in DECODERS.split():
        found = outcome(getattr(_compiled, name), body, count)
        assert found == outcome(getattr(_reference, name), body, count), (name, body, count)
        sound = sound or found is not CorruptRecords
    return sound


@pytest.mark.parametrize("seed", first_of(range(4)))
def test_both_codecs_have_the_same_outcome_for_damaged_bodies(
    seed: int, implementation: ModuleType
) -> None:
    rng = random.Random(f"{seed} {implementation.__name__}")
    sound = 0
    for _ in range(2000):
        count = rng.randint(1, 3)
        values = [rng.choice((None, b"", rng.randbytes(9))) for _ in range(count)]
        headers = [[("k", None), ("é", b"v")][: rng.randrange(3)] for _ in range(count)]
        body = bytes(implementation.encode_records(values, values[::-1], headers))
        sound += agree(mutated(body, rng), count + (rng.random() < 0.05))
    assert 100 < sound < 1900  # the damage is neither always fatal nor without effect


@given(body=st.binary(max_size=60), count=st.integers(-1, 5))
def test_both_codecs_have_the_same_outcome_for_any_bytes(body: bytes, count: int) -> None:
    agree(body, count)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_both_codecs_have_the_same_outcome_for_many_damaged_bodies(
    seed: int, implementation: ModuleType
) -> None:
    rng = random.Random(f"many {seed} {implementation.__name__}")
    body = bytes(implementation.encode_records([b"value", None, b""], [b"k", None, b"kk"]))
    for _ in range(50_000):
        agree(mutated(body, rng), 3)
