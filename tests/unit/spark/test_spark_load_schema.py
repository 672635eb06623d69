"""The columns that records need: names that occur twice, and types as text."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, DoubleType, LongType, StringType, StructType

from kdist.spark.load.table import once_each, type_text

LONG, TEXT = LongType(), StringType()


def struct(*fields: tuple[str, DataType]) -> StructType:
    found = StructType()
    for name, type_ in fields:
        found.add(name, type_)
    return found


def test_a_name_that_occurs_twice_is_one_field() -> None:
    found = once_each(struct(("a", LONG), ("b", TEXT), ("a", LONG)))
    assert found == struct(("a", LONG), ("b", TEXT))


def test_a_field_of_two_types_is_text() -> None:
    found = once_each(struct(("a", TEXT), ("a", LONG), ("n", struct(("x", LONG))), ("n", LONG)))
    assert found == struct(("a", TEXT), ("n", TEXT))


def test_names_within_objects_and_lists_occur_once_too() -> None:
    items = ArrayType(struct(("y", DoubleType()), ("y", TEXT)))
    found = once_each(struct(("n", struct(("x", LONG), ("x", LONG))), ("l", items)))
    assert found == struct(("n", struct(("x", LONG))), ("l", ArrayType(struct(("y", TEXT)))))


def test_names_within_a_type_are_quoted_where_they_are_no_identifiers() -> None:
    head = struct(("user-agent", TEXT), ("$oid", ArrayType(struct(("a`b", LONG)))), ("id", LONG))
    assert (
        type_text(head)
        == "struct<`user-agent`:string,`$oid`:array<struct<`a``b`:bigint>>,id:bigint>"
    )


def test_a_plain_type_is_written_as_in_manifests_before() -> None:
    plain = struct(("name", TEXT), ("_x1", ArrayType(struct(("y", DoubleType())))))
    assert type_text(plain) == plain.simpleString()
