"""Streaming tables: aligned columns without rules, each row printed as it arrives; or as JSON.

A command declares the `Field`s of its rows once, and `print_rows` makes both outputs from them.

The first rows set the column widths; a later cell that is wider pushes the rest of its line to the
right. So a dump of a million batches takes no more memory than one of a hundred. rich's tables hold
all rows before they print the first, and take 50 times as long.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import click

from kdist.cli.shared.options import print_json
from kdist.cli.shared.show import printable, show_plain

T = TypeVar("T")
U = TypeVar("U")

ROWS_MEASURED = 64
OMITTED = object()
"""What `Field.get` returns for a row whose JSON lacks the key."""


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


class Field(NamedTuple, Generic[T]):
    """One fact about every row: how to get it, and how a person reads it."""

    title: str
    """The table's column; empty if only JSON has it."""
    get: Callable[[T], Any]
    key: str = ""
    """JSON's key; empty if only the table has it."""
    show: Callable[[Any], str] = show_plain
    is_number: bool = False

    def of(self, inner: Callable[[U], T | None]) -> Field[U]:
        """The same fact about a row that contains this field's row, or None."""

        def get(row: U) -> Any:
            found = inner(row)
            return None if found is None else self.get(found)

        def show(value: Any) -> str:
            return show_plain(value) if value is None else self.show(value)

        return Field(self.title, get, self.key, show, self.is_number)


def json_row(fields: Sequence[Field[T]], row: T) -> dict[str, object]:
    """The row as JSON has it, with raw values."""
    facts = ((field.key, field.get(row)) for field in fields if field.key)
    return {key: value for key, value in facts if value is not OMITTED}


def print_rows(
    fields: Sequence[Field[T]],
    rows: Iterable[T],
    *,
    as_json: bool = False,
    if_none: str = "",
    indent: int = 0,
    below: Callable[[T], Iterable[str]] = lambda _: (),
    color: Callable[[T], str | None] = lambda _: None,
) -> None:
    """Print a line of JSON for each row, or a table; `if_none` stands for an empty table.

    `below` are lines under a row of the table, `color` is its first cell's.
    """
    if as_json:
        for row in rows:
            print_json(json_row(fields, row))
        return
    shown = [field for field in fields if field.title]
    cells = (
        Row([field.show(field.get(row)) for field in shown], below(row), color(row)) for row in rows
    )
    columns = [Column(field.title, field.is_number) for field in shown]
    if not print_table(columns, cells, indent) and if_none:
        click.echo(if_none)


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
