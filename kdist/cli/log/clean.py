"""`kdist log clean`: compacts partitions of a stopped broker, or shows what would go."""

from __future__ import annotations

import sys

import click

from kdist.cli.shared.files import locked_disk, readonly_files
from kdist.cli.shared.options import json_option, path_argument, print_json
from kdist.cli.shared.show import show_size
from kdist.cli.shared.table import Field, print_rows
from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.errors import UserError
from kdist.inspection.clean import Cleaning, Options, Outcome
from kdist.inspection.place import Kind, PartitionFiles, Place, Saved, load_saved, locate
from kdist.runtime.clock import SystemClock
from kdist.runtime.files import Files
from kdist.runtime.process import system_rng
from kdist.storage.names import CLEANER_OFFSETS

_FIELDS: tuple[Field[Outcome], ...] = (
    Field("PARTITION", lambda each: each.partition, show=str),
    Field("DIRTY FROM", lambda each: each.first_dirty_offset, is_number=True),
    Field("TO", lambda each: each.end_offset, is_number=True),
    Field("RECORDS", lambda each: each.records, is_number=True),
    Field("GO", lambda each: each.removed_records, is_number=True),
    Field("BYTES", lambda each: each.bytes, is_number=True, show=show_size),
    Field("GO", lambda each: each.removed_bytes, is_number=True, show=show_size),
)


@click.command()
@path_argument
@click.option("--dry-run", is_flag=True, help="Only show what would go; a broker may be running.")
@click.option(
    "--segment-bytes",
    type=click.IntRange(min=1),
    default=TopicSettings().segment_bytes,
    help="The topic's segment.bytes: small segments are merged up to it.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def clean(path: str, dry_run: bool, segment_bytes: int, yes: bool, as_json: bool) -> int:
    """Compact partitions: of each key keep the last record.

    PATH is a partition's directory, or a log directory: then of all partitions that a cleaner has
    worked on. Closed segments are cleaned, up to what is committed and flushed by the checkpoints.
    Tombstones stay. Without --dry-run the broker must be stopped, cleanly. A topic that is not
    compacted loses records by this that its readers want.

    \b
    Examples:
      kdist log clean /srv/kdist/d01 --dry-run
      kdist log clean /srv/kdist/d01/prices-0 --yes
    """
    if as_json and not (dry_run or yes):
        raise click.UsageError("--json needs --dry-run or --yes: it cannot ask for confirmation.")
    secret = system_rng().randbytes(16).hex()
    options = Options(segment_bytes, StorageSettings().cleaner_dedupe_buffer_size, secret)
    files = readonly_files()
    place = locate(files, path)
    planned = [each.plan() for each in _cleanings(files, place, options)]
    if dry_run:
        _print(planned, as_json, f"{place.path} has nothing to clean.")
        return 0
    if not yes:
        _print(planned, as_json, f"{place.path} has nothing to clean.")
        if not _is_confirmed(place):
            click.echo("Nothing was changed.")
            return 1
    with locked_disk(place.log_directory) as disk:
        if place.log_directory is None or not load_saved(disk, place.log_directory).is_closed:
            raise UserError(f"{place.path}: start its broker once more, and stop it cleanly")
        place = locate(disk, path)
        done = [
            each.carry_out(place.log_directory or "") for each in _cleanings(disk, place, options)
        ]
    _print(done, as_json, f"{place.path} had nothing to clean.")
    return 0


def _cleanings(files: Files, place: Place, options: Options) -> list[Cleaning]:
    if place.kind not in (Kind.PARTITION, Kind.LOG_DIRECTORY):
        raise UserError(f"{place.path} is neither a partition's directory nor a log directory")
    saved = (
        Saved(is_closed=False, offsets={})
        if place.log_directory is None
        else load_saved(files, place.log_directory)
    )
    clock = SystemClock()
    return [
        Cleaning(files, clock, each, saved, options)
        for each in place.partitions
        if place.kind is Kind.PARTITION or _is_compacted(each, saved)
    ]


def _is_compacted(partition: PartitionFiles, saved: Saved) -> bool:
    return saved.offset(CLEANER_OFFSETS, partition.partition) is not None


def _print(outcomes: list[Outcome], as_json: bool, if_none: str) -> None:
    if as_json:
        rows = [each._asdict() | {"partition": str(each.partition)} for each in outcomes]
        print_json({"partitions": rows})
    else:
        print_rows(_FIELDS, outcomes, if_none=if_none)


def _is_confirmed(place: Place) -> bool:
    """Ask for the directory's name: `y` would be typed without reading."""
    name = place.path.rpartition("/")[2]
    click.echo(f"Type {name} to clean it: ", nl=False)
    return sys.stdin.readline().strip() == name
