"""Reads what Kafka's DumpLogSegments prints, and refuses any line it does not expect.

    Dumping /data/clicks-0/00000000000000000000.log
    Log starting offset: 0
    baseOffset: 0 lastOffset: 19 count: 20 ... compresscodec: gzip crc: 1205642366 isvalid: true
    | offset: 0 CreateTime: 1700000000000 keySize: 1 valueSize: 2 sequence: -1 headerKeys: [trace]

So `read_dump` also tests that Kafka finds no fault: it reports a mismatch, gap or invalid batch as
a line of another shape, or as `false`, and both fail.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Batch(NamedTuple):
    """A batch's header and its place. `size` is in bytes, the header's included."""

    base_offset: int
    last_offset: int
    record_count: int
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    position: int
    timestamp_type: str  # CreateTime or LogAppendTime
    max_timestamp_ms: int
    size: int
    magic: int
    codec: str
    crc: int


class Record(NamedTuple):
    """A record as --deep-iteration prints it, with key and payload if --print-data-log is given.

    A null key or value has the size -1, and is not printed.
    """

    offset: int
    timestamp_ms: int
    key_bytes: int
    value_bytes: int
    sequence: int
    header_keys: str
    key: str | None
    payload: str | None


class OffsetEntry(NamedTuple):
    """An entry of `.index`, its offset absolute."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """An entry of `.timeindex`, its offset absolute."""

    timestamp_ms: int
    offset: int


class ProducerEntry(NamedTuple):
    """A producer in a `.snapshot`, with its last batch."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    transaction_start: int | None
    last_timestamp_ms: int
    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int


class AbortedTransaction(NamedTuple):
    """An entry of `.txnindex`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


Entry = Batch | Record | OffsetEntry | TimeEntry | ProducerEntry | AbortedTransaction

# Lines that a file without a fault may have beside its entries.
_PLAIN = re.compile(r"Log starting offset: \d+|.* (is empty|passed sanity check)\.")
_BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: (-?\d+)"
    r" producerId: (-?\d+) producerEpoch: (-?\d+) partitionLeaderEpoch: (-?\d+)"
    r" isTransactional: (true|false) isControl: (true|false)"
    r" deleteHorizonMs: OptionalLong(?:\.empty|\[(\d+)\]) position: (\d+)"
    r" (CreateTime|LogAppendTime): (-?\d+) size: (\d+) magic: (\d) compresscodec: (\w+)"
    r" crc: (\d+) isvalid: true"
)
_RECORD = re.compile(
    r"\| offset: (\d+) (?:CreateTime|LogAppendTime): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+)"
    r" sequence: (-?\d+) headerKeys: \[(.*?)\](?: key: (.*?))?(?: payload: (.*))?"
)
_OFFSET_ENTRY = re.compile(r"offset: (\d+) position: (\d+)")
_TIME_ENTRY = re.compile(r"timestamp: (-?\d+) offset: (\d+)")
_PRODUCER = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+)"
    r" currentTxnFirstOffset: OptionalLong(?:\.empty|\[(\d+)\]) lastTimestamp: (-?\d+)"
    r"(?: firstSequence: (-?\d+) lastSequence: (-?\d+) lastOffset: (-?\d+) offsetDelta: (\d+)"
    r" timestamp: -?\d+)?"
)
_ABORTED = re.compile(
    r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
)


def read_dump(text: str) -> dict[Path, list[Entry]]:
    """Each dumped file with its entries in order; fails at the first line that is none."""
    files: dict[Path, list[Entry]] = {}
    entries: list[Entry] = []
    for line in text.splitlines():
        if line.startswith("Dumping "):
            entries = files.setdefault(Path(line.removeprefix("Dumping ")), [])
        elif not _PLAIN.fullmatch(line):
            entry = _read_entry(line)
            assert entry is not None, f"Kafka complains: {line}"
            entries.append(entry)
    return files


def _read_entry(line: str) -> Entry | None:
    for pattern, read in _READERS:
        if found := pattern.fullmatch(line):
            return read(*found.groups())
    return None


def _read_batch(*fields: str | None) -> Batch:
    return Batch(*map(_value, fields))  # type: ignore[arg-type]


def _read_record(*fields: str) -> Record:
    numbers, texts = fields[:-3], fields[-3:]
    return Record(*map(int, numbers), *texts)  # type: ignore[arg-type]


def _read_producer(*fields: str | None) -> ProducerEntry:
    # A producer whose last batch was only a marker has none of the fields from the sequence on.
    values = [None if field is None else int(field) for field in fields]
    return ProducerEntry(*values)  # type: ignore[arg-type]


def _value(field: str | None) -> object:
    if field in ("true", "false"):
        return field == "true"
    if field is None or not field.lstrip("-").isdigit():
        return field
    return int(field)


_READERS = (
    (_BATCH, _read_batch),
    (_RECORD, _read_record),
    (_OFFSET_ENTRY, lambda *fields: OffsetEntry(*map(int, fields))),
    (_TIME_ENTRY, lambda *fields: TimeEntry(*map(int, fields))),
    (_PRODUCER, _read_producer),
    (_ABORTED, lambda *fields: AbortedTransaction(*map(int, fields))),
)
