"""`kdist log dump`: batches and records as text, and the small files beside the segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from kdist.cli.shared.files import readonly_files
from kdist.cli.shared.options import json_option, path_argument, print_json, terminal_width
from kdist.cli.shared.record_lines import json_record, record_text
from kdist.cli.shared.show import clip, show_count, show_size, show_time
from kdist.cli.shared.table import ROWS_MEASURED, Column, Row, print_table
from kdist.errors import CorruptRecords
from kdist.inspection.indexes import read_index
from kdist.inspection.place import BY_SUFFIX, CHECKPOINTS, Kind, PartitionFiles, Place, locate
from kdist.inspection.reading import Damage, OldMessage, Scanned, bases_between, scan_segment
from kdist.model import format_uuid
from kdist.records.batch import BatchHeader, TimestampType
from kdist.records.build import BODY_BYTES_MAX, read_records
from kdist.records.compression import CODEC_MASK, Codec
from kdist.records.message_set import open_message
from kdist.records.record import Record
from kdist.runtime.files import Files
from kdist.storage import names
from kdist.storage.checkpoints import decode_offsets
from kdist.storage.epochs import decode_epochs
from kdist.storage.index import OffsetIndex, TimeIndex
from kdist.storage.meta import decode_meta, decode_partition_metadata
from kdist.storage.names import FileState, parse_segment_name
from kdist.storage.producers import decode_snapshot
from kdist.storage.scan import ScannedBatch

F = TypeVar("F", bound=Callable[..., Any])

_SMALL_FILES = {  # the flags, and what each shows instead of batches
    "index": (Kind.INDEX, "Show offset indexes."),
    "time_index": (Kind.TIME_INDEX, "Show time indexes."),
    "snapshot": (Kind.SNAPSHOT, "Show producer snapshots."),
    "epochs": (Kind.EPOCHS, "Show leader epochs."),
    "checkpoints": (Kind.CHECKPOINT, "Show the log directory's checkpoints and meta.properties."),
}


def small_files_options(function: F) -> F:
    """Decorates a command, which gets a flag for each kind of small file."""
    for name, (_, help_text) in reversed(_SMALL_FILES.items()):
        flag = f"--{name.replace('_', '-')}"
        function = click.option(flag, name, is_flag=True, help=help_text)(function)
    return function


@click.command()
@path_argument
@click.option("--records", is_flag=True, help="Show each batch's records below it.")
@click.option(
    "--from", "start", type=click.IntRange(min=0), default=0, help="Begin at this offset."
)
@click.option("--to", "end", type=click.IntRange(min=0), help="End before this offset.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="Stop after this many batches; with --records, after this many records.",
)
@small_files_options
@json_option
def dump(
    path: str,
    records: bool,
    start: int,
    end: int | None,
    limit: int | None,
    as_json: bool,
    **is_wanted: bool,
) -> int:
    """Show the contents of a log.

    PATH is a log directory, a partition's directory, or a file in one. Without flags, shows a line
    for each batch. The flags from --index to --checkpoints show small files instead; --records
    shows batches in any case. With --json each batch or entry is one line, with keys and values
    as text if they are UTF-8, else as {"hex": "..."}.

    PRODUCER is producer id/epoch/sequences; BY is who set the timestamps, producer (create) or
    leader (append). Shows messages of magic 0 and 1 too. Damage is shown where it is, and the dump
    goes on after it; the exit status is then 1. Changes nothing.

    \b
    Examples:
      kdist log dump /srv/kdist/d01/clicks-0 --limit 20
      kdist log dump clicks-0 --records --from 4711 --to 4720
      kdist log dump clicks-0/00000000000000000400.timeindex
      kdist log dump /srv/kdist/d01 --checkpoints --json
    """
    if end is not None and end <= start:
        raise click.UsageError("--to must be greater than --from.")
    files = readonly_files()
    place = locate(files, path)
    kinds = {kind for name, (kind, _) in _SMALL_FILES.items() if is_wanted[name]}
    if not place.partitions and place.kind is not Kind.LOG_DIRECTORY:
        show_file(files, place.kind, place.path, as_json=as_json)
        return 0
    for kind, found in _small_files(files, place, kinds):
        show_file(files, kind, found, as_json=as_json)
    if kinds and not records:
        return 0
    width = None if as_json or not records else terminal_width()
    with_empty = place.kind is not Kind.LOG_DIRECTORY  # a broker's internal topics have dozens
    shown = DumpOptions(start, end, limit, records, as_json, width, with_empty)
    return _dump_batches(files, place, shown)


def _dump_batches(files: Files, place: Place, options: DumpOptions) -> int:
    dumped = BatchDump(files, options)
    dumped.show(place.partitions)
    if not place.partitions and not options.as_json:
        click.echo(f"{place.path} holds no partitions.")
    return 1 if dumped.is_damaged else 0


def _small_files(files: Files, place: Place, kinds: set[Kind]) -> Iterator[tuple[Kind, str]]:
    """The files of these kinds in `place`, each with its kind."""
    if Kind.CHECKPOINT in kinds and place.log_directory is not None:
        for name in (names.META_PROPERTIES, *CHECKPOINTS):
            path = f"{place.log_directory}/{name}"
            if files.exists(path):
                yield Kind.META if name == names.META_PROPERTIES else Kind.CHECKPOINT, path
    for partition in place.partitions:
        if Kind.EPOCHS in kinds:
            path = f"{partition.directory}/{names.LEADER_EPOCHS}"
            if files.exists(path):
                yield Kind.EPOCHS, path
        yield from _segment_files(files, partition, kinds)


def _segment_files(
    files: Files, partition: PartitionFiles, kinds: set[Kind]
) -> Iterator[tuple[Kind, str]]:
    for name in files.list(partition.directory):
        parsed = parse_segment_name(name)
        if parsed is None or parsed.state is not FileState.LIVE:
            continue
        if partition.is_whole or parsed.base_offset in partition.bases:
            kind = BY_SUFFIX.get(parsed.suffix)
            if kind is not None and kind in kinds:
                yield kind, f"{partition.directory}/{name}"


# Small files


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


# Batches, as rows or JSON lines, with their records if asked


_RECORD_INDENT = 6


class DumpOptions(NamedTuple):
    """Which batches to show, and how."""

    start_offset: int
    end_offset: int | None
    limit: int | None
    """The most batches to show; with `with_records`, the most records."""
    with_records: bool
    as_json: bool
    width: int | None
    """The terminal's, in characters."""
    with_empty: bool
    """Name empty segments, too, instead of counting them."""


class BatchDump:
    """Shows batches of one partition after another, up to the limit. Owner: the command."""

    def __init__(self, files: Files, options: DumpOptions) -> None:
        self._files = files
        self._options = options
        self._left = options.limit
        self._empty_count = 0
        self.is_damaged = False

    def show(self, partitions: Iterable[PartitionFiles]) -> None:
        for partition in partitions:
            self._show(partition)
        if self._empty_count:
            click.echo(f"{show_count(self._empty_count, 'empty segment')} left out.")

    def _show(self, partition: PartitionFiles) -> None:
        options = self._options
        if not partition.bases and not options.as_json:
            click.echo(f"{partition.directory} has no segments.")
        for base_offset in bases_between(partition, options.start_offset, options.end_offset):
            if self._is_done:
                return
            items = scan_segment(
                self._files, partition, base_offset, options.start_offset, options.end_offset
            )
            path = partition.path(base_offset)
            if options.as_json:
                for item in self._limited(items):
                    print_json({"file": path, **self._json(item)})
            else:
                self._print_segment(path, base_offset, items)

    @property
    def _is_done(self) -> bool:
        return self._left is not None and self._left <= 0

    def _limited(self, items: Iterator[Scanned]) -> Iterator[Scanned]:
        for item in items:
            if self._is_done:
                return
            self.is_damaged |= isinstance(item, Damage)
            if self._left is not None and not self._options.with_records:
                self._left -= 1
            yield item

    def _print_segment(self, path: str, base_offset: int, items: Iterator[Scanned]) -> None:
        size = self._files.size(path)
        if size == 0 and not self._options.with_empty:
            self._empty_count += 1
            return
        click.echo(f"{path}  {show_size(size)}")
        digits = len(str(base_offset + size // 70))  # an estimate of the largest offset's width
        columns = _columns(digits, len(str(size)))
        rows = (self._row(item) for item in self._limited(items))
        # Records are printed and counted before the next batch is read, so that the limit holds.
        ahead = 1 if self._options.with_records else ROWS_MEASURED
        if not print_table(columns, rows, indent=2, rows_measured=ahead):
            click.echo("  no batches" if size == 0 else "  no batches in this range")
        click.echo()

    # Rows

    def _row(self, item: Scanned) -> Row:
        if isinstance(item, Damage):
            return _damage_row(item)
        if isinstance(item, OldMessage):
            return Row(_old_cells(item), self._lines(item))
        return Row(_cells(item.position, item.header, "ok"), self._lines(item))

    def _lines(self, item: ScannedBatch | OldMessage) -> Iterator[str]:
        if not self._options.with_records:
            return
        try:
            for header, record in self._records(item):
                text = record_text(header, record)
                line = f"{record.offset}  {show_time(record.timestamp)}  {text}"
                width = self._options.width
                yield " " * _RECORD_INDENT + clip(line, width and width - _RECORD_INDENT - 2)
        except CorruptRecords as fault:
            self.is_damaged = True
            yield " " * _RECORD_INDENT + f"DAMAGED: {str(fault).partition(': ')[2]}"

    def _records(self, item: ScannedBatch | OldMessage) -> Iterator[tuple[BatchHeader, Record]]:
        """The batch's records within the offsets and the limit; raises `CorruptRecords`."""
        records: Iterable[Record]
        if isinstance(item, OldMessage):
            header, records = _PLAIN, open_message(item.message, BODY_BYTES_MAX)
        else:
            header, records = item.header, read_records(item.data, 0, item.header)
        options = self._options
        for record in records:
            if self._is_done:
                return
            is_before_end = options.end_offset is None or record.offset < options.end_offset
            if record.offset >= options.start_offset and is_before_end:
                if self._left is not None:
                    self._left -= 1
                yield header, record

    # JSON

    def _json(self, item: Scanned) -> dict[str, object]:
        if isinstance(item, Damage):
            return {
                "type": "damage",
                "position": item.start,
                "end_position": item.end,
                "reason": item.reason,
                "is_torn": item.is_torn,
            }
        row = _old_json(item) if isinstance(item, OldMessage) else _batch_json(item)
        if self._options.with_records:
            records: list[dict[str, object]] = []
            row["records"] = records
            try:
                for header, record in self._records(item):
                    records.append(json_record(header, record))
            except CorruptRecords as fault:
                self.is_damaged = True
                row["damage"] = str(fault).partition(": ")[2]
        return row


_PLAIN = BatchHeader(0, 0, -1, 0, 0, 0, 0, 0, 0, -1, -1, -1, 0)  # a message has no control bit


def _columns(offset_digits: int, position_digits: int) -> tuple[Column, ...]:
    return (
        Column("BASE", is_number=True, width=offset_digits),
        Column("LAST", is_number=True, width=offset_digits),
        Column("COUNT", is_number=True),
        Column("POSITION", is_number=True, width=position_digits),
        Column("SIZE", is_number=True, width=9),
        Column("CODEC", width=6),
        Column("MAX TIMESTAMP", width=24),
        Column("BY", width=6),
        Column("PRODUCER", width=8),
        Column("EPOCH", is_number=True),
        Column("CRC", width=3),
        Column("FLAGS"),
    )


def _cells(position: int, header: BatchHeader, crc: str) -> tuple[str, ...]:
    producer = "-"
    if header.producer_id >= 0:
        sequences = (
            "-" if header.base_sequence < 0 else f"{header.base_sequence}..{header.last_sequence}"
        )
        producer = f"{header.producer_id}/{header.producer_epoch}/{sequences}"
    return (
        str(header.base_offset),
        str(header.last_offset),
        str(header.record_count),
        str(position),
        show_size(header.size),
        codec_name(header.codec),
        show_time(header.max_timestamp),
        "append" if header.timestamp_type is TimestampType.LOG_APPEND_TIME else "create",
        producer,
        str(header.partition_leader_epoch),
        crc,
        " ".join(_flags(header)),
    )


def _flags(header: BatchHeader) -> Iterator[str]:
    if header.is_transactional:
        yield "txn"
    if header.is_control:
        yield "control"
    if header.has_delete_horizon:
        yield f"horizon={show_time(header.base_timestamp)}"


def codec_name(number: int) -> str:
    """As `zstd`; the number if there is no such codec."""
    return Codec(number).name.lower() if number <= Codec.ZSTD else str(number)


def _damage_row(damage: Damage) -> Row:
    size = damage.end - damage.start
    note = f"DAMAGED at position {damage.start}: {damage.reason}"
    if size:
        note += f" ({show_size(size)} that are not a valid batch)"
    cells: tuple[str, ...] = ("",) * 3 + (str(damage.start), show_size(size), *("",) * 7)
    if damage.header is not None and size:
        cells = _cells(damage.start, damage.header, "BAD")
    return Row(cells, [" " * _RECORD_INDENT + note])


def _old_cells(item: OldMessage) -> tuple[str, ...]:
    message = item.message
    return (
        "",
        str(message.offset),
        "",
        str(item.position),
        show_size(item.size),
        codec_name(message.attributes & CODEC_MASK),
        show_time(message.timestamp),
        "append" if message.is_log_append_time else "create",
        "-",
        "",
        "ok",
        f"magic={message.magic}",
    )


def _batch_json(batch: ScannedBatch) -> dict[str, object]:
    header = batch.header
    return {
        "type": "batch",
        "position": batch.position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "codec": codec_name(header.codec),
        "timestamp_type": header.timestamp_type.name.lower(),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "has_delete_horizon": header.has_delete_horizon,
        "leader_epoch": header.partition_leader_epoch,
        "magic": header.magic,
        "crc": header.crc,
        "is_crc_ok": True,
    }


def _old_json(item: OldMessage) -> dict[str, object]:
    message = item.message
    return {
        "type": "message",
        "position": item.position,
        "size": item.size,
        "offset": message.offset,
        "magic": message.magic,
        "codec": codec_name(message.attributes & CODEC_MASK),
        "timestamp": message.timestamp,
        "is_crc_ok": True,
    }
