"""`kdist log dump` of the small files: indexes, snapshots, epochs, checkpoints, identity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from kdist.storage.producer_snapshot import decode_snapshot

Entry = dict[str, object]

_TITLES: dict[Kind, tuple[tuple[str, bool], ...]] = {
    Kind.INDEX: (("offset", True), ("position", True)),
    Kind.TIME_INDEX: (("timestamp", False), ("offset", True)),
    Kind.SNAPSHOT: (
        ("producer_id", True),
        ("producer_epoch", True),
        ("last_sequence", True),
        ("last_offset", True),
        ("last_timestamp", False),
        ("coordinator_epoch", True),
        ("transaction_start", True),
    ),
    Kind.EPOCHS: (("leader_epoch", True), ("start_offset", True)),
    Kind.CHECKPOINT: (("topic", False), ("partition", True), ("offset", True)),
    Kind.META: (("field", False), ("value", False)),
    Kind.PARTITION_METADATA: (("field", False), ("value", False)),
}


def show_file(files: Files, kind: Kind, path: str, *, as_json: bool) -> None:
    """Print one file's entries. `CorruptFile` if it is not what its name says."""
    entries = _entries(files, kind, path)
    if as_json:
        for entry in entries:
            print_json({"file": path, "type": kind, **entry})
        return
    click.echo(f"{path}  {kind}")
    columns = [Column(title.replace("_", " ").upper(), right) for title, right in _TITLES[kind]]
    if not print_table(columns, (_row(kind, entry) for entry in entries), indent=2):
        click.echo("  no entries")
    click.echo()


def _row(kind: Kind, entry: Entry) -> Row:
    return Row([_cell(title, entry[title]) for title, _ in _TITLES[kind]])


def _cell(title: str, value: object) -> str:
    if isinstance(value, int) and "timestamp" in title:
        return show_time(value)
    return "-" if value is None or value == -1 else str(value)


def _entries(files: Files, kind: Kind, path: str) -> Iterator[Entry]:
    if kind is Kind.INDEX or kind is Kind.TIME_INDEX:
        return _index_entries(files, kind, path)
    content = files.read(path)
    if kind is Kind.SNAPSHOT:
        return _snapshot_entries(content, path)
    if kind is Kind.EPOCHS:
        epochs = decode_epochs(content, path).entries
        return _named(kind, epochs)
    if kind is Kind.CHECKPOINT:
        offsets = decode_offsets(content, path)
        return _named(kind, [(*partition, at) for partition, at in sorted(offsets.items())])
    if kind is Kind.META:
        return _named(kind, list(decode_meta(content, path)._asdict().items()))
    topic_id = format_uuid(decode_partition_metadata(content, path))
    return _named(kind, [("topic_id", topic_id)])


def _named(kind: Kind, rows: Sequence[Sequence[object]]) -> Iterator[Entry]:
    titles = [title for title, _ in _TITLES[kind]]
    return (dict(zip(titles, row, strict=True)) for row in rows)


def _index_entries(files: Files, kind: Kind, path: str) -> Iterator[Entry]:
    name = parse_segment_name(path.rpartition("/")[2])
    base_offset = name.base_offset if name else 0
    layout = OffsetIndex.ENTRY if kind is Kind.INDEX else TimeIndex.ENTRY
    content = read_index(files, path, layout)
    for key, value in content.entries if content else ():
        if kind is Kind.INDEX:
            yield {"offset": base_offset + key, "position": value}
        else:
            yield {"timestamp": key, "offset": base_offset + value}


def _snapshot_entries(content: bytes, path: str) -> Iterator[Entry]:
    for producer_id, producer in decode_snapshot(content, path).producers.items():
        yield {
            "producer_id": producer_id,
            "producer_epoch": producer.epoch,
            "last_sequence": producer.last_sequence,
            "last_offset": producer.batches[-1].last_offset if producer.batches else -1,
            "last_timestamp": producer.last_timestamp,
            "coordinator_epoch": producer.coordinator_epoch,
            "transaction_start": producer.transaction_start,
        }
