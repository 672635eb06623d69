"""`kdist log trim`, `clean` and `rebuild-indexes`: change a log on disk, after saying what goes."""

from __future__ import annotations

import logging
import sys

import click

from kdist.cli.shared.files import locked_disk, readonly_files
from kdist.cli.shared.options import json_option, path_argument, print_json, say
from kdist.cli.shared.progress import progress
from kdist.cli.shared.show import show_count, show_size
from kdist.cli.shared.table import Column, Field, Row, print_rows, print_table
from kdist.config.storage import StorageSettings
from kdist.config.topic import TopicSettings
from kdist.errors import UserError
from kdist.inspection.clean import Cleaning, Options, Outcome
from kdist.inspection.indexes import Rebuilt, rebuild_segment
from kdist.inspection.place import Kind, PartitionFiles, Place, Saved, load_saved, locate
from kdist.inspection.trim import Cut, Trimmed, carry_out, plan_cut_at_damage, plan_cut_at_offset
from kdist.runtime.clock import SystemClock
from kdist.runtime.files import Files
from kdist.runtime.process import system_rng
from kdist.runtime.readonly import ReadOnlyFiles
from kdist.storage.names import CLEANER_OFFSETS

_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")

# trim


_COLUMNS = (Column("FILE"), Column("FROM POSITION", is_number=True), Column("WHAT GOES"))


@click.command()
@path_argument
@click.option(
    "--to-offset",
    type=click.IntRange(min=0),
    help="Cut off the batch with this offset and all after it: the log ends at or before it.",
)
@click.option("--at-damage", is_flag=True, help="Cut at the first batch that is damaged.")
@_yes_option
@click.option(
    "--discard",
    is_flag=True,
    help="Do not keep what is cut off: for a disk that is full, or cannot read it.",
)
@json_option
def trim(
    path: str, to_offset: int | None, at_damage: bool, yes: bool, discard: bool, as_json: bool
) -> int:
    """Cut off the end of a partition's log.

    PATH is a partition's directory. What is cut off is kept beside the log, as
    <segment>.log.cut-<n>; remove those files when they are no longer needed. Indexes, leader
    epochs, producer snapshots and checkpoints are adjusted. Refuses while a broker runs on the
    log directory. A follower fetches the records again from its leader; a partition without
    other replicas loses them.

    \b
    Examples:
      kdist log trim /srv/kdist/d01/clicks-0 --at-damage
      kdist log trim /srv/kdist/d01/clicks-0 --to-offset 4711 --yes
    """
    if (to_offset is None) != at_damage:
        raise click.UsageError("Give one of --to-offset and --at-damage.")
    if as_json and not yes:
        raise click.UsageError("--json needs --yes, as it cannot ask for confirmation.")
    place = locate(readonly_files(), path)
    if place.kind is not Kind.PARTITION or not place.partitions[0].bases:
        raise UserError(f"{place.path} is not a partition's directory with a segment in it")
    with locked_disk(place.log_directory) as disk:
        view = ReadOnlyFiles(disk)
        place, saved = locate(view, path), load_saved(view, place.log_directory)
        cut = _plan(view, place, saved, to_offset)
        if cut is None:
            sentence = f"{place.path}: there is nothing to cut."
            say(sentence, as_json, path=place.path, is_cut=False)
            return 0
        if not yes:
            _print_plan(cut, discard)
            if not _is_confirmed(place, "cut"):
                return 1
        # Recovery logs what the plan has already shown.
        logging.getLogger("kdist.storage").addHandler(logging.NullHandler())
        trimmed = carry_out(disk, place, saved, cut, is_kept=not discard)
    _print_outcome(place, cut, trimmed, as_json)
    return 0


def _plan(files: Files, place: Place, saved: Saved, to_offset: int | None) -> Cut | None:
    partition = place.partitions[0]
    if to_offset is None:
        return plan_cut_at_damage(files, partition, saved)
    return plan_cut_at_offset(files, partition, saved, to_offset)


def _print_plan(cut: Cut, is_discarded: bool) -> None:
    directory = f"{cut.partition.directory}/"
    amount = (
        f"{show_count(cut.batches, 'batch', 'batches')} with {show_count(cut.records, 'record')}"
    )
    click.echo(f"{cut.partition.directory} will end at offset {cut.end_offset} ({cut.reason}).")
    rows = [Row((cut.path.removeprefix(directory), str(cut.position), "the end of the segment"))]
    rows += [
        Row((path.removeprefix(directory), "0", "the whole segment"))
        for path in cut.segments_behind
    ]
    print_table(_COLUMNS, rows, indent=2)
    fate = "are not kept" if is_discarded else "are kept as <segment>.log.cut-<n>"
    click.echo(f"{amount}, {show_size(cut.bytes)} in all, go; the bytes {fate}.")


def _print_outcome(place: Place, cut: Cut, trimmed: Trimmed, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "path": place.path,
                "is_cut": True,
                "file": cut.path,
                "position": cut.position,
                "reason": cut.reason,
                "end_offset": trimmed.end_offset,
                "batches": cut.batches,
                "records": cut.records,
                "bytes": cut.bytes,
                "kept": list(trimmed.kept),
            }
        )
        return
    click.echo(f"{place.path} now ends at offset {trimmed.end_offset}.")
    for path in trimmed.kept:
        click.echo(f"Kept: {path}")


# clean


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
@_yes_option
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
        if not _is_confirmed(place, "clean"):
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


def _is_confirmed(place: Place, deed: str) -> bool:
    """Ask for the directory's name: `y` would be typed without reading."""
    name = place.path.rpartition("/")[2]
    click.echo(f"Type {name} to {deed} it: ", nl=False)
    if sys.stdin.readline().strip() == name:
        return True
    click.echo("Nothing was changed.")
    return False


# rebuild-indexes


_INDEXES: tuple[Field[Rebuilt], ...] = (
    Field("ENTRIES", lambda each: each.entries, is_number=True),
    Field("BEFORE", lambda each: each.entries_before, is_number=True),
    Field("WHAT WAS WRONG", lambda each: _what(each), show=str),
)


@click.command("rebuild-indexes")
@path_argument
@json_option
def rebuild_indexes(path: str, as_json: bool) -> int:
    """Rebuild the .index and .timeindex of every segment from the log.

    A segment that is damaged keeps the indexes it has; the exit status is then 1. Refuses while a
    broker runs on the log directory.

    \b
    Examples:
      kdist log rebuild-indexes /srv/kdist/d01
      kdist log rebuild-indexes /srv/kdist/d01/clicks-0/00000000000000000400.log
    """
    place = locate(readonly_files(), path)
    with locked_disk(place.log_directory) as disk:
        place = locate(disk, path)
        if not place.partitions:
            raise UserError(f"{place.path} ({place.kind}) has no indexes")
        segments = [(each, base) for each in place.partitions for base in each.bases]
        done: list[Rebuilt] = []
        with progress("segments", len(segments), is_wanted=not as_json) as advance:
            for partition, base_offset in segments:
                done += rebuild_segment(disk, partition, base_offset)
                advance(1)
    if as_json:
        print_json({"path": place.path, "indexes": [rebuilt._asdict() for rebuilt in done]})
    else:
        top = f"{place.path}/"
        name = Field[Rebuilt]("INDEX", lambda each: each.path.removeprefix(top))
        print_rows((name, *_INDEXES), done, if_none=f"{place.path} has no segments.")
    return 1 if any(rebuilt.failure for rebuilt in done) else 0


def _what(rebuilt: Rebuilt) -> str:
    if rebuilt.failure is not None:
        return f"NOT REBUILT, the log is {rebuilt.failure}"
    return rebuilt.fault_before or ""
