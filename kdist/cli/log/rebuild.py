"""`kdist log rebuild-indexes`: rebuilds the indexes from the log, and says which were wrong."""

from __future__ import annotations

import click

from kdist.cli.shared.options import (
    json_option,
    locked_disk,
    path_argument,
    print_json,
    readonly_files,
)
from kdist.cli.shared.progress import progress
from kdist.cli.shared.table import Column, Row, print_table
from kdist.errors import UserError
from kdist.inspection.indexes import Rebuilt, rebuild_segment
from kdist.inspection.place import locate

_COLUMNS = (
    Column("INDEX"),
    Column("ENTRIES", is_number=True),
    Column("BEFORE", is_number=True),
    Column("WHAT WAS WRONG"),
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
    elif not print_table(_COLUMNS, (_row(place.path, rebuilt) for rebuilt in done)):
        click.echo(f"{place.path} has no segments.")
    return 1 if any(rebuilt.failure for rebuilt in done) else 0


def _row(top: str, rebuilt: Rebuilt) -> Row:
    what = rebuilt.fault_before or ""
    if rebuilt.failure is not None:
        what = f"NOT REBUILT, the log is {rebuilt.failure}"
    path = rebuilt.path.removeprefix(f"{top}/")
    return Row((path, str(rebuilt.entries), str(rebuilt.entries_before), what))
