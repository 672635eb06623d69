"""The data source `kdist` in real Spark, beside its own Kafka connector; which Python it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer as ForeignProducer
from peer.spark_connector import ensure_connector
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_work import ROOT, produce, small_spark, table
from standalone_process import standalone

import kdist.spark
from kdist.spark.load.spark_session import sentence_of

COUNT = 3000
FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    old = ("--config", "log.retention.ms=-1")  # the records are
    with standalone(tmp_path_factory.mktemp("source"), *old, "--config", "num.partitions=3") as run:
        yield f"127.0.0.1:{run.port}"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    jars = ",".join(map(str, ensure_connector()))
    with small_spark(**{"spark.jars": jars}) as session:
        yield session


@pytest.fixture(scope="module")
def numbers(address: str) -> str:
    """A topic of three partitions, written by a client that nobody here wrote, compressed."""
    producer = ForeignProducer(
        {"bootstrap.servers": address, "compression.type": "lz4", "linger.ms": 20}
    )
    for number in range(COUNT):
        producer.produce(
            "numbers",
            None if number % 10 == 7 else b"%d" % number,
            None if number % 10 == 3 else b"key-%d" % number,
            number % 3,
            timestamp=FIRST_MS + number,
            headers=[("n", b"%d" % number), ("n", None)] if number % 10 == 1 else None,
        )
    assert producer.flush(60) == 0
    return "numbers"


def told(error: pytest.ExceptionInfo[PySparkException]) -> str:
    return sentence_of(str(error.value))


PROGRAM = """
import sys
from pyspark.sql import SparkSession
import kdist.spark
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
kdist.spark.register(spark)
reader = spark.read.format("kdist").option("kafka.bootstrap.servers", sys.argv[1])
print("records:", reader.option("subscribe", "plain").load().count())
spark.stop()
"""


@pytest.mark.peer
def test_rows_are_those_of_sparks_own_connector(
    spark: SparkSession, address: str, numbers: str
) -> None:
    ours = table(spark, address, subscribe=numbers, includeHeaders="true")
    options = {
        "kafka.bootstrap.servers": address,
        "subscribe": numbers,
        "includeHeaders": "true",
    }
    theirs = spark.read.format("kafka").options(**options).load()
    assert ours.dtypes == theirs.dtypes
    assert ours.count() == theirs.count() == COUNT
    columns = [name for name, _ in ours.dtypes]
    both = [frame.orderBy("partition", "offset").collect() for frame in (ours, theirs)]
    assert [[row[name] for name in columns] for row in both[0]] == [
        [row[name] for name in columns] for row in both[1]
    ]


@pytest.mark.peer
def test_sparks_own_connector_writes_what_we_read(spark: SparkSession, address: str) -> None:
    rows = spark.range(500).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key", "CAST(id AS STRING) AS value"
    )
    written = rows.write.format("kafka").option("kafka.bootstrap.servers", address)
    written.option("topic", "written").save()
    found = table(spark, address, subscribe="written").selectExpr("CAST(value AS STRING)")
    assert {row["value"] for row in found.collect()} == {str(number) for number in range(500)}


def test_a_read_begins_and_ends_where_it_is_told(
    spark: SparkSession, address: str, numbers: str
) -> None:
    found = table(
        spark,
        address,
        assign='{"numbers": [0, 2]}',
        startingOffsets='{"numbers": {"0": 100, "2": -2}}',
        endingOffsets='{"numbers": {"0": 110, "2": 5}}',
    )
    places = sorted((row["partition"], row["offset"]) for row in found.collect())
    assert places == [(0, each) for each in range(100, 110)] + [(2, each) for each in range(5)]


def test_a_read_between_two_times_has_the_records_between_them(
    spark: SparkSession, address: str, numbers: str
) -> None:
    found = table(
        spark,
        address,
        subscribePattern="num.*",
        startingTimestamp=str(FIRST_MS + 1000),
        endingTimestamp=str(FIRST_MS + 1030),
    ).collect()
    assert len(found) == 30
    assert min(row["timestamp"].replace(tzinfo=UTC) for row in found) == datetime.fromtimestamp(
        (FIRST_MS + 1000) / 1000, UTC
    )


def test_partitions_are_cut_into_as_many_tasks_as_asked_for(
    spark: SparkSession, address: str, numbers: str
) -> None:
    found = table(spark, address, subscribe=numbers, minPartitions="6")
    assert found.rdd.getNumPartitions() == 6
    assert found.count() == COUNT
    assert (
        table(
            spark, address, subscribe=numbers, maxRecordsPerPartition="300"
        ).rdd.getNumPartitions()
        == 12
    )


def test_a_read_of_nothing_is_an_empty_table(
    spark: SparkSession, address: str, numbers: str
) -> None:
    nothing = '{"numbers": {"0": 0, "1": 0, "2": 0}}'
    found = table(spark, address, subscribe=numbers, endingOffsets=nothing)
    assert found.count() == 0
    assert found.schema.names[:3] == ["key", "value", "topic"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "nmbers"}, "there is no topic nmbers: did you mean numbers?"),
        ({"subscribePattern": "x.*"}, "no topic matches the pattern x.*"),
        ({"assign": '{"numbers": [7]}'}, "numbers has 3 partitions, and no 7"),
        (
            {"subscribe": "numbers", "startingOffsets": '{"numbers": {"0": 1}}'},
            "startingOffsets says nothing of numbers-1: it must name every partition read",
        ),
        (
            {"subscribe": "numbers", "startingTimestamp": "9999999999999"},
            "numbers-0 has no record at or after 9999999999999 ms: with"
            " startingOffsetsByTimestampStrategy latest it would be read from its end",
        ),
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern are given"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    spark: SparkSession, address: str, numbers: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        table(spark, address, **options).collect()
    assert told(refused).startswith(sentence)


def test_columns_that_are_not_the_formats_own_are_refused_in_a_sentence(
    spark: SparkSession, address: str, numbers: str
) -> None:
    reader = spark.read.format("kdist").option("kafka.bootstrap.servers", address)
    reader = reader.option("subscribe", numbers)
    for schema in ("value BINARY", "value BINARY, key BINARY"):
        with pytest.raises(PySparkException) as refused:
            reader.schema(schema).load().collect()
        assert told(refused).startswith("the format kdist has columns of its own")
    own = table(spark, address, subscribe=numbers, includeHeaders="true").schema
    found = reader.option("includeHeaders", "true").schema(own).load()
    assert found.count() == COUNT


def test_streams_and_writing_are_refused_in_a_sentence(
    spark: SparkSession, address: str, numbers: str
) -> None:
    options = {"kafka.bootstrap.servers": address, "subscribe": numbers}
    stream = spark.readStream.format("kdist").options(**options).load()
    with pytest.raises(PySparkException) as refused:
        stream.writeStream.format("noop").start().awaitTermination(60)
    assert told(refused) == "the format kdist is read in batches, and not by readStream yet"
    with pytest.raises(PySparkException) as refused:
        spark.sql("SELECT binary('x') AS value").write.format("kdist").mode("append").save()
    assert told(refused).startswith("the format kdist only reads")


def test_offsets_that_are_not_there_end_the_read_unless_told_otherwise(
    spark: SparkSession, address: str, numbers: str
) -> None:
    options = {
        "assign": '{"numbers": [0]}',
        "startingOffsets": '{"numbers": {"0": 990}}',
        "endingOffsets": '{"numbers": {"0": 1200}}',
    }
    with pytest.raises(PySparkException) as refused:
        table(spark, address, **options).collect()
    assert told(refused).startswith(
        "numbers-0 no longer has offset 1000: it has 0 to 1000 now, and 990 to 1200 are to be"
    )
    found = table(spark, address, failOnDataLoss="false", **options)
    assert found.count() == 10


def test_a_broker_that_is_not_there_is_one_sentence(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as refused:
        table(spark, "127.0.0.1:1", subscribe="numbers").collect()
    assert told(refused) == "no broker answers at 127.0.0.1:1 (connection refused)"


def test_a_session_that_did_not_find_the_format_can_be_told(
    spark: SparkSession, address: str, numbers: str
) -> None:
    kdist.spark.register(spark)
    assert table(spark, address, subscribe=numbers).count() == COUNT


@pytest.mark.timeout(600)  # a Spark of its own
def test_workers_run_the_python_that_has_kdist_though_another_is_on_the_path(
    tmp_path: Path,
) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    python = bare / "python3"
    python.write_text('#!/bin/sh\nexec /usr/bin/python3 -I "$@"\n')  # without kdist
    python.chmod(0o755)
    environment = {name: text for name, text in os.environ.items() if "PYTHON" not in name}
    environment |= {"PATH": f"{bare}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    with standalone(tmp_path / "data") as cluster:
        address = f"127.0.0.1:{cluster.port}"
        produce(address, "plain", [b"1", b"2", b"3"])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, address],
            capture_output=True,
            check=False,
            cwd=ROOT,
            env=environment,
            text=True,
        )
    assert "records: 3" in done.stdout, done.stderr[-2_000:]
