"""The columns that records ask for, where an object says a name twice."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, DoubleType, LongType, StringType, StructType

from kdist.spark.load.table import once_each

LONG, TEXT = LongType(), StringType()


def struct(*fields: tuple[str, DataType]) -> StructType:
    found = StructType()
    for name, type_ in fields:
        found.add(name, type_)
    return found


def test_a_name_that_comes_twice_is_one_field() -> None:
    found = once_each(struct(("a", LONG), ("b", TEXT), ("a", LONG)))
    assert found == struct(("a", LONG), ("b", TEXT))


def test_a_name_of_two_types_is_text() -> None:
    found = once_each(struct(("a", TEXT), ("a", LONG), ("n", struct(("x", LONG))), ("n", LONG)))
    assert found == struct(("a", TEXT), ("n", TEXT))


def test_names_within_objects_and_lists_come_once_too() -> None:
    items = ArrayType(struct(("y", DoubleType()), ("y", TEXT)))
    found = once_each(struct(("n", struct(("x", LONG), ("x", LONG))), ("l", items)))
    assert found == struct(("n", struct(("x", LONG))), ("l", ArrayType(struct(("y", TEXT)))))
