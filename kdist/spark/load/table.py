"""A topic's columns, and its rows and files, as Spark has them: `rows` and `decoding` fill them."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kdist.client.cluster import did_you_mean
from kdist.config.load_job import LoadSettings, TopicLoadSettings
from kdist.errors import UserError
from kdist.spark.load.columns_named import DATE, EVENT_TIME, OFFSET, PARTITION, TIMESTAMP, named
from kdist.spark.load.manifest import Column
from kdist.spark.load.plan import LoadPlan
from kdist.spark.load.spark_session import sentence_of
from kdist.spark.options import show_assign, show_offsets

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import DataType, StructType

    from kdist.spark.load.rows import Decoding

logger = logging.getLogger(__name__)

_MALFORMED = "\u0000malformed"  # unlikely as the name of a JSON field
# Unless they may be truncated, minima and maxima of more than 4 KiB are left out of the footer, and
# the number of nulls with them.
_PARQUET = {"parquet.statistics.truncate.length": "64"}
# Whatever a session has: days and event times depend on the job alone.
_STRICT = {"spark.sql.legacy.timeParserPolicy": "CORRECTED"}
# What is deeper in a value is no column of its own, but part of a text: Python pickles no type that
# is much deeper. Of a value deeper than what Spark may read nothing is inferred: from some 300 on
# the answer of its task is too deep for Java's stack, and the job never ends.
_DEPTH_MAX, _READ_DEPTH_MAX = 50, 150
_DAY_US = 86_400_000_000
_OUTSIDE = "outside"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Shape(NamedTuple):
    """How a topic's values are decoded; without columns, they stay bytes."""

    columns: tuple[Column, ...] | None
    topic: TopicLoadSettings


def records(spark: SparkSession, job: LoadSettings, plan: LoadPlan) -> DataFrame:
    """The records of a plan, in the data source's columns."""
    return spark.read.format("kdist").options(**_options(job, plan)).load()


def _options(job: LoadSettings, plan: LoadPlan) -> dict[str, str]:
    ranges = [each for each in plan.ranges if each.size]
    secured = {} if job.security_file is None else {"securityFile": job.security_file}
    return {
        **secured,
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


# Columns


def columns_of(spark: SparkSession, topic: TopicLoadSettings, found: DataFrame) -> Shape:
    """The columns of the topic's schema, else those inferred from the records in `found`."""
    if topic.format == "bytes":
        return Shape(None, topic)
    schema = _schema(topic.schema) if topic.schema else _inferred(spark, found)
    _warn_of_event_time(topic, schema.names)
    types = ((each.name, type_text(each.dataType)) for each in schema.fields)
    return Shape(named(types), topic)


def _warn_of_event_time(topic: TopicLoadSettings, names: Sequence[str]) -> None:
    """Warn of a field that no record may have: perhaps none has, or its name is mistyped."""
    path = topic.event_time_field
    if path is not None and not {path, path.partition(".")[0]} & {*names}:
        hint = did_you_mean(path, names)
        logger.warning(
            "event.time.field is %s, and there is no such column%s; the event time of a record"
            " without this field is its timestamp",
            path,
            hint,
        )


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
    schema = (
        spark.read.option("maxNestingDepth", _READ_DEPTH_MAX)
        .json(
            objects,
            columnNameOfCorruptRecord=_MALFORMED,
            allowSingleQuotes=False,  # which is no JSON, nor is NaN
            allowNonNumericNumbers=False,
        )
        .schema
    )
    return once_each(StructType([each for each in schema.fields if each.name != _MALFORMED]))


def once_each(schema: StructType, depth: int = 0) -> StructType:
    """The schema, and those within it, with each field name once, and strings where it is too deep.

    If an object has a name twice, Spark infers both fields, and then can use neither. If their
    types differ, the one that is kept is a string, which can hold both.
    """
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    def of(type_: DataType, depth: int) -> DataType:
        if depth > _DEPTH_MAX and isinstance(type_, StructType | ArrayType):
            return StringType()
        if isinstance(type_, StructType):
            return once_each(type_, depth)
        if isinstance(type_, ArrayType):
            return ArrayType(of(type_.elementType, depth + 1))
        return type_

    found: dict[str, DataType] = {}
    for each in schema.fields:
        type_ = of(each.dataType, depth + 1)
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


def rows(
    spark: SparkSession,
    job: LoadSettings,
    plan: LoadPlan,
    shape: Shape,
    counts: str,
    outside: Observation,
) -> DataFrame:
    """The rows to write: the fields' columns, ours, and `date`, which becomes directories.

    As they are read, each task notes in the directory `counts` which records it has. `outside` gets
    how many have an event time that the job does not take.
    """
    from pyspark.sql import functions as f

    from kdist.spark.load.rows import source_of

    for name, value in {**_STRICT, "spark.sql.session.timeZone": job.event_time_zone}.items():
        spark.conf.set(name, value)
    source = source_of(_decoding(shape, job.event_time_zone), counts)
    spark.dataSource.register(source)
    found = spark.read.format(source.name()).options(**_options(job, plan)).load()
    text, form = f.col(DATE), shape.topic.event_time_format
    is_pattern = form not in ("auto", "ms", "s")
    parsed = f.try_to_timestamp(text, f.lit(form)) if is_pattern else text.try_cast("timestamp")
    time = f.coalesce(EVENT_TIME, parsed)
    is_outside = _is_outside(time, shape.topic)
    observed = found.observe(outside, f.count_if(is_outside).alias(_OUTSIDE))
    time = f.coalesce(f.when(~is_outside, time), TIMESTAMP)
    return observed.withColumn(EVENT_TIME, time).withColumn(DATE, f.to_date(EVENT_TIME))


def _is_outside(time: SparkColumn, topic: TopicLoadSettings) -> SparkColumn:
    """Whether an event time is further from the record's timestamp than the topic allows."""
    from pyspark.sql import functions as f

    timestamp, found = f.col(TIMESTAMP), f.lit(False)
    # Null where they are too far apart to be subtracted: then the order tells.
    distance_us = f.try_subtract(f.unix_micros(time), f.unix_micros(timestamp))
    before_days, after_days = topic.event_time_before_max_days, topic.event_time_after_max_days
    if before_days is not None:
        found |= f.coalesce(distance_us < -before_days * _DAY_US, time < timestamp, f.lit(False))
    if after_days is not None:
        found |= f.coalesce(distance_us > after_days * _DAY_US, time > timestamp, f.lit(False))
    return found


def warn_of_outside(topic: str, outside: Observation) -> None:
    """Say how many rows that were written have an event time that was not taken."""
    if count := outside.get[_OUTSIDE]:
        logger.warning(
            "%s: the event time of %s records is further from their timestamp than"
            " event.time.before.max.days and event.time.after.max.days allow: they are on the day"
            " of their timestamp",
            topic,
            f"{count:,}",
        )


def _decoding(shape: Shape, zone: str) -> Decoding:
    from kdist.spark.load.decoding import EventTime
    from kdist.spark.load.rows import Decoding

    topic, columns = shape.topic, shape.columns
    path = topic.event_time_field if columns is not None else None
    return Decoding(
        fields=None if columns is None else _types_of(columns),
        names=tuple(each.column for each in columns or ()),
        event_time=EventTime(path, topic.event_time_format) if path is not None else None,
        zone=zone,
        keeps_all=topic.keep_value == "always",
    )


def _types_of(columns: Sequence[Column]) -> StructType:
    """The fields with their types; `UserError` if a load cannot fill one."""
    from pyspark.sql.types import StructType

    from kdist.spark.load.decoding import unheld

    if not columns:
        return StructType()
    found = _schema(", ".join(f"{_quoted(each.field)} {each.type}" for each in columns))
    for each in found.fields:
        if (type_ := unheld(each.dataType)) is not None:
            raise UserError(
                f"the column {each.name} has the type {type_}, which a load cannot fill: make it"
                " STRING"
            )
    return found


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def write(table: DataFrame, directory: str) -> None:
    """Write the rows, with a directory for each date.

    The hint makes Spark gather the rows of a date into as few files as their size allows; otherwise
    each task would write a file for each date that it has rows of.
    """
    gathered = table.hint("rebalance", "date").sortWithinPartitions("date", PARTITION, OFFSET)
    written = gathered.write.mode("append").partitionBy("date").options(**_PARQUET)
    written.parquet(f"file://{directory}")
