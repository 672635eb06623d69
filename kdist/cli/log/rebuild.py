"""`kdist log rebuild-indexes`: rebuilds the indexes from the log, and says which were wrong."""

from __future__ import annotations

import click

from kdist.cli.shared.files import locked_disk, readonly_files
from kdist.cli.shared.options import json_option, path_argument, print_json
from kdist.cli.shared.progress import progress
from kdist.cli.shared.table import Field, print_rows
from kdist.errors import UserError
from kdist.inspection.indexes import Rebuilt, rebuild_segment
from kdist.inspection.place import locate

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
