"""`kdist log find`: where on disk the record of an offset, or the first one of a time, is."""

from __future__ import annotations

import os.path

import click

from kdist.cli.shared.files import readonly_files
from kdist.cli.shared.options import (
    TIME_FORMS,
    Time,
    json_option,
    path_argument,
    print_json,
    terminal_width,
)
from kdist.cli.shared.record_lines import json_record, record_text
from kdist.cli.shared.show import clip, show_time
from kdist.cli.shared.table import Field, print_rows
from kdist.errors import UserError
from kdist.inspection.place import locate
from kdist.inspection.reading import Found, find_offset, find_time


@click.command()
@path_argument
@click.option(
    "--offset", type=click.IntRange(min=0), help="The first record at or after this offset."
)
@click.option(
    "--time",
    "timestamp",
    type=Time(),
    help=f"The first record, by offset, of this time or later: {TIME_FORMS}.",
)
@json_option
def find(path: str, offset: int | None, timestamp: int | None, as_json: bool) -> int:
    """Find a record: its segment's file, position, batch and offset.

    In a log directory, searches every partition. Exits with 1 if nothing is found. Changes nothing.

    \b
    Examples:
      kdist log find clicks-0 --offset 4711
      kdist log find clicks-0 --time 2026-11-20T11:40:43
      kdist log find /srv/kdist/d01 --time 2026-11-20T12:40:43+01:00 --json
    """
    if (offset is None) == (timestamp is None):
        raise click.UsageError("Give one of --offset and --time.")
    files = readonly_files()
    place = locate(files, path)
    if not place.partitions:
        raise UserError(
            f"{place.path} ({place.kind}) holds no records:"
            " give a partition's directory or a segment"
        )
    found: list[Found] = []
    for partition in place.partitions:
        where = (
            find_offset(files, partition, offset)
            if offset is not None
            else find_time(files, partition, timestamp or 0)
        )
        if where is not None:
            found.append(where)
    if as_json:
        print_json({"path": place.path, "found": [_as_json(where) for where in found]})
    elif found:
        print_rows(_fields(place.path, terminal_width()), found)
    else:
        click.echo("There is no such record, and none after it.")
    return 0 if found else 1


def _fields(top: str, width: int | None) -> tuple[Field[Found], ...]:
    text_width = width and max(20, width - 100)

    def name(found: Found) -> str:
        return os.path.relpath(found.path, top) if found.path != top else os.path.basename(top)

    def text(found: Found) -> str:
        return clip(record_text(found.header, found.record), text_width)

    return (
        Field("FILE", name),
        Field("POSITION", lambda each: each.position, is_number=True),
        Field(
            "BATCH",
            lambda each: f"{each.header.base_offset}-{each.header.last_offset}",
            is_number=True,
        ),
        Field("OFFSET", lambda each: each.record.offset, is_number=True),
        Field("TIMESTAMP", lambda each: show_time(each.record.timestamp)),
        Field("RECORD", text),
    )


def _as_json(found: Found) -> dict[str, object]:
    return {
        "file": found.path,
        "position": found.position,
        "batch": {
            "base_offset": found.header.base_offset,
            "last_offset": found.header.last_offset,
            "size": found.header.size,
        },
        "record": json_record(found.header, found.record),
    }
