"""`kdist log dump` of the small files: indexes, snapshots, epochs, checkpoints, identity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import click

from kdist.cli.shared.options import print_json
from kdist.cli.shared.show import show_time
from kdist.cli.shared.table import Column, Row, print_table
from kdist.inspection.indexes import read_index
from kdist.inspection.place import Kind
from kdist.model import format_uuid
from kdist.runtime.files import Files
from kdist.storage.checkpoints import decode_offsets
from kdist.storage.epochs import decode_epochs
from kdist.storage.index import OffsetIndex, TimeIndex
from kdist.storage.meta import decode_meta, decode_partition_metadata
from kdist.storage.names import parse_segment_name
from kdist.storage.producers import decode_snapshot

Entry = Sequence[object]

_TITLES = {
    Kind.INDEX: ("offset", "position"),
    Kind.TIME_INDEX: ("timestamp", "offset"),
    Kind.SNAPSHOT: (
        "producer_id",
        "producer_epoch",
        "last_sequence",
        "last_offset",
        "last_timestamp",
        "coordinator_epoch",
        "transaction_start",
    ),
    Kind.EPOCHS: ("leader_epoch", "start_offset"),
    Kind.CHECKPOINT: ("topic", "partition", "offset"),
    Kind.META: ("field", "value"),
    Kind.PARTITION_METADATA: ("field", "value"),
}
_TEXT = {"timestamp", "last_timestamp", "topic", "field", "value"}  # aligned to the left


def show_file(files: Files, kind: Kind, path: str, *, as_json: bool) -> None:
    """Print one file's entries. `CorruptFile` if it is not what its name says."""
    titles, entries = _TITLES[kind], _entries(files, kind, path)
    if as_json:
        for entry in entries:
            print_json({"file": path, "type": kind, **dict(zip(titles, entry, strict=True))})
        return
    click.echo(f"{path}  {kind}")
    columns = [Column(each.replace("_", " ").upper(), each not in _TEXT) for each in titles]
    rows = (Row(list(map(_cell, titles, entry))) for entry in entries)
    if not print_table(columns, rows, indent=2):
        click.echo("  no entries")
    click.echo()


def _cell(title: str, value: object) -> str:
    if isinstance(value, int) and "timestamp" in title:
        return show_time(value)
    return "-" if value is None or value == -1 else str(value)


def _entries(files: Files, kind: Kind, path: str) -> Iterable[Entry]:
    if kind is Kind.INDEX or kind is Kind.TIME_INDEX:
        return _index_entries(files, kind, path)
    content = files.read(path)
    if kind is Kind.SNAPSHOT:
        return _snapshot_entries(content, path)
    if kind is Kind.EPOCHS:
        return decode_epochs(content, path).entries
    if kind is Kind.CHECKPOINT:
        offsets = decode_offsets(content, path)
        return [(*partition, at) for partition, at in sorted(offsets.items())]
    if kind is Kind.META:
        return decode_meta(content, path)._asdict().items()
    return [("topic_id", format_uuid(decode_partition_metadata(content, path)))]


def _index_entries(files: Files, kind: Kind, path: str) -> Iterator[Entry]:
    name = parse_segment_name(path.rpartition("/")[2])
    base_offset = name.base_offset if name else 0
    is_by_offset = kind is Kind.INDEX
    content = read_index(files, path, OffsetIndex.ENTRY if is_by_offset else TimeIndex.ENTRY)
    for key, value in content.entries if content else ():
        yield (base_offset + key, value) if is_by_offset else (key, base_offset + value)


def _snapshot_entries(content: bytes, path: str) -> Iterator[Entry]:
    for producer_id, producer in decode_snapshot(content, path).producers.items():
        yield (
            producer_id,
            producer.epoch,
            producer.last_sequence,
            producer.batches[-1].last_offset if producer.batches else -1,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.transaction_start,
        )
