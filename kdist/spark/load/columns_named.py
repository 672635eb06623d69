"""The names of a load's columns (pure).

A JSON field's column has the field's name. A name of our own columns gets the prefix `json_`; one
that differs from another's only in case, which Spark by default ignores, gets the suffix `_2`.
"""

from __future__ import annotations

from collections.abc import Iterable

from kdist.errors import UserError
from kdist.spark.load.manifest import Column

EVENT_TIME = "event_time"
KEY, VALUE, HEADERS = "record_key", "record_value", "record_headers"
PARTITION, OFFSET, TIMESTAMP = "record_partition", "record_offset", "record_timestamp"
OF_RECORDS = (EVENT_TIME, KEY, VALUE, PARTITION, OFFSET, TIMESTAMP, HEADERS)
DATE = "date"
OF_DIRECTORIES = ("topic", "load", DATE)


def named(fields: Iterable[tuple[str, str]]) -> tuple[Column, ...]:
    """A column for each field, given with its type."""
    taken = {*OF_RECORDS, *OF_DIRECTORIES}
    found = []
    for field, type_ in fields:
        name = f"json_{field}" if field.lower() in {*OF_RECORDS, *OF_DIRECTORIES} else field
        column, number = name, 1
        while column.lower() in taken:
            number += 1
            column = f"{name}_{number}"
        taken.add(column.lower())
        found.append(Column(field, column, type_))
    return tuple(found)


def require_compatible(
    topic: str, now: Iterable[Column], before: Iterable[Column], load: int
) -> None:
    """`UserError` if a column has another type than it had: no reader could read both."""
    types = {each.column: each for each in before}
    for each in now:
        there = types.get(each.column)
        if there is not None and there.type != each.type:
            raise UserError(
                f"{topic}: the column {each.column} is {each.type} by the schema, but {there.type}"
                f" since load {load}: give the job another output, or replay it from the first load"
            )
