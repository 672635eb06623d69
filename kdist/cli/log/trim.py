"""`kdist log trim`: cuts off the end of a partition's log, after saying what will go."""

from __future__ import annotations

import logging
import sys

import click

from kdist.cli.shared.files import locked_disk, readonly_files
from kdist.cli.shared.options import json_option, path_argument, print_json
from kdist.cli.shared.show import show_count, show_size
from kdist.cli.shared.table import Column, Row, print_table
from kdist.errors import UserError
from kdist.inspection.place import Kind, Place, Saved, load_saved, locate
from kdist.inspection.trim import Cut, Trimmed, carry_out, plan_cut_at_damage, plan_cut_at_offset
from kdist.runtime.files import Files
from kdist.runtime.readonly import ReadOnlyFiles

_COLUMNS = (Column("FILE"), Column("FROM POSITION", is_number=True), Column("WHAT GOES"))


@click.command()
@path_argument
@click.option(
    "--to-offset",
    type=click.IntRange(min=0),
    help="Cut off the batch with this offset and all after it: the log ends at or before it.",
)
@click.option("--at-damage", is_flag=True, help="Cut at the first batch that is damaged.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
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
            return _nothing_to_cut(place, as_json)
        if not yes:
            _print_plan(cut, discard)
            if not _is_confirmed(place):
                click.echo("Nothing was changed.")
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


def _nothing_to_cut(place: Place, as_json: bool) -> int:
    if as_json:
        print_json({"path": place.path, "is_cut": False})
    else:
        click.echo(f"{place.path}: there is nothing to cut.")
    return 0


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


def _is_confirmed(place: Place) -> bool:
    """Ask for the partition's name: `y` would be typed without reading."""
    name = place.path.rpartition("/")[2]
    click.echo(f"Type {name} to cut it: ", nl=False)
    return sys.stdin.readline().strip() == name


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
