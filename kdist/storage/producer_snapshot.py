"""The file `<offset>.snapshot`: the producer states of a partition, as of that offset.

    at  bytes  field                     an entry, 46 bytes
     0      2  version, 1                 0  8  producer id
     2      4  CRC-32C of all from 6      8  2  producer epoch
     6      4  number of entries         10  4  last sequence, -1 none
    10     46  an entry, and so on       14  8  last offset, -1 none
                                         22  4  offset delta of its batch's last record
                                         26  8  timestamp, ms
                                         34  4  coordinator epoch, -1 none
                                         38  8  first offset of its open transaction, -1 none

Big endian. A producer has an entry for each of the batches whose retries are known, the newest
last. Kafka writes that one alone, and of several it takes the last. Format:
docs/formats/producer-snapshot.md. Source: Kafka's ProducerStateManager.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kdist.model import NO_OFFSET, NO_SEQUENCE
from kdist.runtime.files import Files
from kdist.storage.faults import CorruptFile
from kdist.storage.producers import BATCHES_KEPT, Batch, Producer, ProducerStates
from kdist.wire.crc32c import crc32c

_VERSION = 1
_HEADER = struct.Struct(">hI")  # version, CRC
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_ENTRIES_POSITION = _HEADER.size + _COUNT.size


def encode_snapshot(states: ProducerStates) -> bytes:
    """The file's content, entries by producer id.

    It takes 0.3 s for 100,000 producers, in many small steps: so a thread lets the loop go on.
    """
    producers = states.producers
    body = bytearray(_COUNT.size)
    for producer_id in sorted(producers):  # they mostly are: so ids are handed out
        for entry in _encode_entries(producer_id, producers[producer_id]):
            body += entry
    _COUNT.pack_into(body, 0, len(body) // _ENTRY.size)
    return _HEADER.pack(_VERSION, crc32c(body)) + body


def _encode_entries(producer_id: int, producer: Producer) -> Iterator[bytes]:
    *older, newest = producer.batches or (Batch(NO_SEQUENCE, NO_OFFSET, 0, 0),)
    last_timestamp = producer.last_timestamp
    # Kafka leaves out entries that have expired, each by itself: an older one must not outlive.
    states = [(each, min(each.timestamp, last_timestamp), NO_OFFSET) for each in older]
    states.append((newest, last_timestamp, producer.transaction_start))
    for batch, timestamp, transaction_start in states:
        yield _ENTRY.pack(
            producer_id,
            producer.epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.offset_delta,
            timestamp,
            producer.coordinator_epoch,
            transaction_start,
        )


def decode_snapshot(content: bytes, path: str) -> ProducerStates:
    """The producer states of a snapshot; `CorruptFile` if any byte of it is damaged."""
    if len(content) < _ENTRIES_POSITION:
        raise CorruptFile(path, None, f"{len(content)} bytes are too few for a producer snapshot")
    version, crc = _HEADER.unpack_from(content)
    if version != _VERSION:
        raise CorruptFile(path, None, f"producer snapshot version {version} is not {_VERSION}")
    if crc != crc32c(memoryview(content)[_HEADER.size :]):
        raise CorruptFile(path, None, "the producer snapshot's CRC does not match")
    (count,) = _COUNT.unpack_from(content, _HEADER.size)
    # The CRC also fits a file that was written wrong: believe the count only if the size does.
    if count * _ENTRY.size != len(content) - _ENTRIES_POSITION:
        raise CorruptFile(path, None, f"{count} entries do not take {len(content)} bytes")
    states = ProducerStates()
    for entry in _ENTRY.iter_unpack(memoryview(content)[_ENTRIES_POSITION:]):
        producer, older = _producer_of(entry), states.producer(entry[0])
        if older is not None and older.epoch == producer.epoch:
            batches = (*older.batches, *producer.batches)[-BATCHES_KEPT:]
            producer = producer._replace(batches=batches)
        states.restore(entry[0], producer)
    return states


def _producer_of(entry: tuple[int, ...]) -> Producer:
    _, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction_start = entry
    batches = (Batch(sequence, offset, delta, timestamp),) if offset >= 0 else ()
    return Producer(epoch, batches, timestamp, coordinator_epoch, transaction_start)


def load_snapshot(files: Files, path: str) -> ProducerStates:
    """Read a snapshot; `FileNotFoundError` if there is none."""
    return decode_snapshot(files.read(path), path)
