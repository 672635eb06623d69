"""`kdist log dump`: batches and records as text, and the small files beside the segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click

from kdist.cli.log.dump_batches import BatchDump, DumpOptions
from kdist.cli.shared.files import readonly_files
from kdist.cli.shared.options import json_option, path_argument, print_json, terminal_width
from kdist.cli.shared.show import show_time
from kdist.cli.shared.table import Column, Row, print_table
from kdist.inspection.indexes import read_index
from kdist.inspection.place import BY_SUFFIX, CHECKPOINTS, Kind, PartitionFiles, Place, locate
from kdist.model import format_uuid
from kdist.runtime.files import Files
from kdist.storage import names
from kdist.storage.checkpoints import decode_offsets
from kdist.storage.epochs import decode_epochs
from kdist.storage.index import OffsetIndex, TimeIndex
from kdist.storage.meta import decode_meta, decode_partition_metadata
from kdist.storage.names import FileState, parse_segment_name
from kdist.storage.producers import decode_snapshot

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
