"""Turns a topic's records into rows and files, as Spark expressions.

A value that is one JSON object becomes columns. Its bytes are also kept, in `record_value`, if it
is anything else, if a field has another type than its column or more than it can hold, or if it has
a field without a column: no field of the outer object is dropped or changed without a trace. Fields
of inner objects may be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kdist.client.cluster import did_you_mean
from kdist.config.load_job import LoadSettings, TopicLoadSettings
from kdist.errors import UserError
from kdist.spark.load.columns_named import (
    EVENT_TIME,
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    VALUE,
    named,
)
from kdist.spark.load.manifest import Column
from kdist.spark.load.plan import LoadPlan
from kdist.spark.load.spark_session import sentence_of
from kdist.spark.offsets import show_assign, show_offsets

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_MALFORMED = "\u0000malformed"  # unlikely as the name of a JSON field
_LATEST_S = 253_402_300_799  # the end of the year 9999: a larger number is not taken for a time
# Unless they may be truncated, minima and maxima of more than 4 KiB are left out of the footer, and
# the number of nulls with them.
_PARQUET = {"parquet.statistics.truncate.length": "64"}
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# An unpaired surrogate, which an escape in JSON can express and UTF-8 cannot: it has become "?".
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F]"
_HALVES = rf"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"
# A number in a text column went through a double. So it may have been rounded if it has all the
# digits of a double, or is infinite; text that only looks like this keeps its bytes, too.
_ROUNDED = r'^(-?[0-9]+\.[0-9]{15,}(E-?[0-9]+)?|-?[0-9]\.[0-9]{10,}E-?[0-9]+|"-?Infinity")$'
_INTEGER_MAX = 2**53  # from here on, a double cannot represent every integer
_LONG_NUMBER = "[0-9]{16}"  # as these integers are written, and 1e300 is not
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


class Shape(NamedTuple):
    """How a topic's values are decoded; without columns, they stay bytes."""

    columns: tuple[Column, ...] | None
    topic: TopicLoadSettings


def records(spark: SparkSession, job: LoadSettings, plan: LoadPlan) -> DataFrame:
    """The records of a plan, in the data source's columns."""
    ranges = [each for each in plan.ranges if each.size]
    options = {
        "kafka.bootstrap.servers": job.bootstrap_servers,
        "kafka.isolation.level": job.isolation_level,
        "kafka.client.id": f"kdist-load-{job.name}",
        "assign": show_assign(each.partition for each in ranges),
        "startingOffsets": show_offsets({each.partition: each.start for each in ranges}),
        "endingOffsets": show_offsets({each.partition: each.end for each in ranges}),
        "maxRecordsPerPartition": str(job.task_records),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    return spark.read.format("kdist").options(**options).load()


# Columns


def columns_of(spark: SparkSession, topic: TopicLoadSettings, found: DataFrame) -> Shape:
    """The columns of the topic's schema, else those inferred from the records in `found`."""
    if topic.format == "bytes":
        return Shape(None, topic)
    schema = _schema(topic.schema) if topic.schema else _inferred(spark, found)
    types = ((each.name, type_text(each.dataType)) for each in schema.fields)
    return Shape(named(types), topic)


def _schema(ddl: str) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(ddl)
    except PySparkException as error:
        why = sentence_of(str(error))
        raise UserError(f"the schema {ddl!r} is not valid Spark DDL: {why}") from None
    if not isinstance(found, StructType):
        raise UserError(f"the schema {ddl!r} has no columns: give it as `year INT, carrier STRING`")
    return found


def _inferred(spark: SparkSession, found: DataFrame) -> StructType:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    text = f.col("value").cast("string")
    objects = found.select(text.alias("value")).where(text.rlike(r"^\s*\{"))
    schema = spark.read.json(objects, columnNameOfCorruptRecord=_MALFORMED).schema
    return once_each(StructType([each for each in schema.fields if each.name != _MALFORMED]))


def once_each(schema: StructType) -> StructType:
    """The schema, and those within it, with each field name once.

    If an object has a name twice, Spark infers both fields, and then can use neither. If their
    types differ, the one that is kept is a string, which can hold both.
    """
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    def of(type_: DataType) -> DataType:
        if isinstance(type_, StructType):
            return once_each(type_)
        return ArrayType(of(type_.elementType)) if isinstance(type_, ArrayType) else type_

    found: dict[str, DataType] = {}
    for each in schema.fields:
        type_ = of(each.dataType)
        found[each.name] = type_ if found.get(each.name, type_) == type_ else StringType()
    return StructType([StructField(name, type_) for name, type_ in found.items()])


def type_text(type_: DataType) -> str:
    """A type in Spark's DDL, with field names quoted if they are not identifiers."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(type_, StructType):
        named = (
            (each.name if _IDENTIFIER.fullmatch(each.name) else _quoted(each.name), each.dataType)
            for each in type_.fields
        )
        return f"struct<{','.join(f'{name}:{type_text(within)}' for name, within in named)}>"
    if isinstance(type_, ArrayType):
        return f"array<{type_text(type_.elementType)}>"
    if isinstance(type_, MapType):
        return f"map<{type_text(type_.keyType)},{type_text(type_.valueType)}>"
    return type_.simpleString()


# Rows


def rows(found: DataFrame, shape: Shape) -> DataFrame:
    """The rows to write: the fields' columns, ours, and `date`, which becomes directories."""
    from pyspark.sql import functions as f

    value = f.col("value")
    parsed = found.withColumn("text", value.cast("string"))
    if shape.columns:
        parsed = parsed.withColumn("names", f.json_object_keys("text"))
        parsed = parsed.withColumn("fields", f.when(_is_object(), _decoded(shape.columns)))
    decoded = [
        f.col("fields").getField(each.field).alias(each.column) for each in shape.columns or ()
    ]
    kept = value
    if shape.columns and shape.topic.keep_value == "undecoded":
        kept = f.when(_is_whole(shape.columns), f.lit(None)).otherwise(value)
    time = f.coalesce(_event_time(shape), f.col("timestamp"))
    return parsed.select(
        *decoded,
        time.alias(EVENT_TIME),
        f.col("key").alias(KEY),
        kept.alias(VALUE),
        f.col("partition").alias(PARTITION),
        f.col("offset").alias(OFFSET),
        f.col("timestamp").alias(TIMESTAMP),
        f.col("headers").alias(HEADERS),
        f.to_date(time).alias("date"),
    )


def write(table: DataFrame, directory: str) -> None:
    """Write the rows, with a directory for each date.

    The hint makes Spark gather the rows of a date into as few files as their size allows; otherwise
    each task would write a file for each date that it has rows of.
    """
    gathered = table.hint("rebalance", "date").sortWithinPartitions("date", PARTITION, OFFSET)
    written = gathered.write.mode("append").partitionBy("date").options(**_PARQUET)
    written.parquet(f"file://{directory}")


def _decoded(columns: Sequence[Column]) -> Expression:
    from pyspark.sql import functions as f

    fields = ", ".join(f"{_quoted(each.field)}: {each.type}" for each in columns)
    schema = f"struct<{fields}, {_quoted(_MALFORMED)}: string>"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED}
    return f.from_json(f.col("text"), schema, options)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _is_object() -> Expression:
    """Whether a value is exactly one JSON object.

    Spark's parser takes the first object and ignores what follows, so the value is put in brackets
    and counted as an array.
    """
    from pyspark.sql import functions as f

    wrapped = f.concat(f.lit("["), f.col("text"), f.lit("]"))
    return f.col("names").isNotNull() & (f.json_array_length(wrapped) == 1)


def _is_whole(columns: Sequence[Column]) -> Expression:
    """Whether the columns hold everything in a value.

    Not so if a name comes twice, of which one value is kept, if bytes that are not UTF-8 have
    become U+FFFD, or if a column has changed a value.
    """
    from pyspark.sql import functions as f

    has_halves = f.col("text").contains("\\u") & f.col("text").rlike(_HALVES)
    known = f.array(*(f.lit(each.field) for each in columns))
    held = f.size(f.array_intersect(f.col("names"), known))
    is_decoded = f.col("fields").getField(_MALFORMED).isNull()
    is_all_there = held == f.size(f.col("names"))
    found = _is_object() & f.is_valid_utf8("text") & is_all_there & is_decoded & ~has_halves
    for each in columns:
        found &= _is_exact(each)
    return found


def _is_exact(column: Column) -> Expression:
    """Whether the column is certain to have the field's exact value."""
    from pyspark.sql import functions as f

    found = f.col("fields").getField(column.field)
    if column.type == "double":
        is_exact = (f.abs(found) < _INTEGER_MAX) | (
            (f.abs(found) < float("inf")) & ~f.col("text").rlike(_LONG_NUMBER)
        )
    elif column.type == "string":
        is_exact = ~found.rlike(_ROUNDED)
    else:
        return f.lit(True)
    return found.isNull() | is_exact


# Time


def _event_time(shape: Shape) -> Expression:
    """The event time, from the configured field; null if the field has no valid time."""
    from pyspark.sql import functions as f

    path = shape.topic.event_time_field
    if path is None:
        return f.lit(None).cast("timestamp")
    by_field = {each.field: each for each in shape.columns or ()}
    field, *inner = [path] if path in by_field else path.split(".")
    column = by_field.get(field)
    if column is None:
        hint = did_you_mean(path, by_field)
        raise UserError(f"event.time.field is {path}, but no record has such a field{hint}")
    found = f.col("fields").getField(field)
    for name in inner:
        found = found.getField(name)
    form = shape.topic.event_time_format
    is_number = not inner and column.type.startswith(_NUMBERS)
    if form in ("ms", "s") or (form == "auto" and is_number):
        return _from_number(found, 1 if form == "s" else 1000)
    text = found.cast("string")
    return text.try_cast("timestamp") if form == "auto" else f.try_to_timestamp(text, f.lit(form))


def _from_number(found: Expression, units_per_s: int) -> Expression:
    from pyspark.sql import functions as f

    seconds = found.cast("string").try_cast("double") / units_per_s
    is_time = f.abs(seconds) <= _LATEST_S
    return f.when(is_time, f.timestamp_millis((seconds * 1000).cast("bigint")))
