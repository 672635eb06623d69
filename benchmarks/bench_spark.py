"""Reads a topic into Spark by kdist's source, a row-by-row one and Spark's own Kafka connector.

All three read the same topic of one broker, in the same session, in turn within each round. A read
goes to Spark's `noop` sink; `to Parquet` writes value, partition and offset. The table shows
records per second by the clock, and per second of CPU of Spark and its Python workers, as medians
of the rounds, and the ratio of each to kdist's. Where kdist is slower it says LOSS.

Then `kdist load` writes JSON objects as rows to Parquet: with 20 fields, and with `--columns`.

`.venv/bin/python benchmarks/bench_spark.py [--records N] [--rounds N] [--columns N]
[--without-connector]`; `--only-load` leaves the reads out
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/integration")]

from peer.spark_connector import ensure_connector  # noqa: E402
from spark_work import Job, produce, table  # noqa: E402
from standalone_process import standalone  # noqa: E402

import kdist.spark  # noqa: E402
from kdist.spark.columns import COLUMNS  # noqa: E402
from kdist.spark.load.job import Loaded, RunOptions  # noqa: E402
from kdist.spark.load.spark_session import settings_of  # noqa: E402
from kdist.spark.options import read_options  # noqa: E402
from kdist.spark.reading import Reading, read_range  # noqa: E402
from kdist.spark.resolving import plan_read  # noqa: E402
from kdist.spark.source import Task  # noqa: E402

TOPIC = "read"
RECORD_BYTES = 100
OURS = "kdist"


class RowReader(DataSourceReader):
    """Like kdist's reader, but gives Spark a tuple for each record."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [Task(each) for each in plan_read(read_options(self._options))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        import datetime

        assert isinstance(partition, Task)
        options = read_options(self._options)
        reading = Reading(options.bootstrap, True, options.consumer)
        for batch in read_range(reading, partition.range):
            for record in batch:
                at = datetime.datetime.fromtimestamp(record.timestamp / 1000, datetime.UTC)
                place = (record.topic, record.partition, record.offset)
                yield (record.key, record.value, *place, at, 0)


class RowSource(DataSource):
    """The format `rows`."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        return RowReader(dict(self.options))


class Taken(NamedTuple):
    """What one read took."""

    wall_s: float
    cpu_s: float


def cpu_s() -> float:
    """CPU seconds of Spark and its Python workers, including those that have ended."""
    found = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if not {"kdist.cli", "org.apache.zookeeper"} & {*process.cmdline()}:
                found += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            pass
    return found


def timed(work: Callable[[], object]) -> Taken:
    """Run `work` once; the time it took."""
    wall, cpu = time.perf_counter(), cpu_s()
    work()
    return Taken(time.perf_counter() - wall, cpu_s() - cpu)


def to_nothing(frame: DataFrame) -> None:
    """Read the whole table, and discard it."""
    frame.write.format("noop").mode("overwrite").save()


def measure(
    frames: dict[str, Callable[[], DataFrame]], sink: Callable[[DataFrame], None], rounds: int
) -> dict[str, Taken]:
    """Each contender's medians."""
    taken: dict[str, list[Taken]] = {name: [] for name in frames}
    for number in range(rounds + 1):
        for name, frame in frames.items():
            found = timed(lambda frame=frame: sink(frame()))  # type: ignore[misc]
            if number:  # the first round warms up
                taken[name].append(found)
    return {
        name: Taken(*(statistics.median(column) for column in zip(*rows, strict=True)))
        for name, rows in taken.items()
    }


def show(task: str, records: int, found: dict[str, Taken]) -> None:
    """A line for each contender."""
    ours = found[OURS]
    for name, each in found.items():
        wall, cpu = each.wall_s / ours.wall_s, each.cpu_s / ours.cpu_s
        is_loss = wall < 1 or cpu < 1
        print(
            f"{task:12} {name:18} {records / each.wall_s:12,.0f} /s {records / each.cpu_s:12,.0f}"
            f" /CPU s   kdist is {wall:5.2f} x by the wall, {cpu:5.2f} x by the processor"
            f"{'   LOSS' if is_loss else ''}",
            flush=True,
        )


def fill(address: str, records: int) -> None:
    """Fill the topic with records that compress about as well as real ones."""
    values = (b'{"id": %d, "name": "' % n + b"abcdefghij" * 7 + b'"}' for n in range(records))
    produce(address, TOPIC, (value[:RECORD_BYTES] for value in values), compression_type="lz4")


def contenders(
    spark: SparkSession, address: str, with_connector: bool
) -> dict[str, Callable[[], DataFrame]]:
    """The topic as a table, from each contender."""
    options = {"kafka.bootstrap.servers": address, "subscribe": TOPIC}
    found: dict[str, Callable[[], DataFrame]] = {
        OURS: lambda: table(spark, address, subscribe=TOPIC),
        "row by row": lambda: spark.read.format("rows").options(**options).load(),
    }
    if with_connector:
        found["Spark's connector"] = lambda: spark.read.format("kafka").options(**options).load()
    return found


def measure_load(job: Job, columns: int, values: int, rounds: int) -> None:
    """Load so many values into so many columns: a third each of integers, doubles and texts."""
    topic, records = f"wide{columns}", values // columns
    kinds = ("BIGINT", "DOUBLE", "STRING")
    schema = ", ".join(f"f{number} {kinds[number % 3]}" for number in range(columns))

    def fields(record: int) -> Iterator[tuple[str, object]]:
        for number in range(columns):
            yield f"f{number}", (record, record / 8, f"text {record}")[number % 3]

    produce(job.address, topic, (json.dumps(dict(fields(n))).encode() for n in range(records)))
    taken = []
    outcomes: list[Loaded] = []

    def load(start: dict[str, int]) -> None:
        outcomes.append(job.run(topic, RunOptions(replay_from=start), schema=schema))

    for number in range(rounds + 1):  # the first warms up; the others load the same again
        start = {topic: 1} if number else {}
        taken.append(timed(lambda start=start: load(start)))  # type: ignore[misc]
        manifest, error = outcomes[-1].manifest, outcomes[-1].error
        if manifest is None or (manifest.rows, manifest.undecoded) != (records, 0):
            print(f"load, {columns:5} columns: FAILED: {str(error)[:200]}", flush=True)
            return
    wall, cpu = (statistics.median(column) for column in zip(*taken[1:], strict=True))
    print(
        f"load, {columns:5} columns {records / wall:12,.0f} /s {records / cpu:12,.0f} /CPU s"
        f" {values / cpu:12,.0f} values /CPU s",
        flush=True,
    )


def run(arguments: argparse.Namespace, directory: Path) -> None:
    """Fill the topic, then measure both tasks."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "benchmarks")))
    is_plain = arguments.without_connector or arguments.only_load
    jars = [] if is_plain else ensure_connector()
    given = {"spark.driver.memory": "1g", "spark.jars": ",".join(map(str, jars))}
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for name, text in settings_of("local[2]", "UTC", given).items():
        builder = builder.config(name, text)
    with standalone(directory, "--config", "num.partitions=2") as cluster:
        address = f"127.0.0.1:{cluster.port}"
        if not arguments.only_load:
            fill(address, arguments.records)
        spark = builder.getOrCreate()
        try:
            kdist.spark.register(spark)
            spark.dataSource.register(RowSource)
            found = contenders(spark, address, bool(jars))

            def to_parquet(frame: DataFrame) -> None:
                chosen = frame.select("value", "partition", "offset")
                chosen.write.mode("overwrite").parquet(f"file://{directory}/parquet")

            tasks = (("read", to_nothing), ("to Parquet", to_parquet))
            for task, sink in tasks if not arguments.only_load else ():
                show(task, arguments.records, measure(found, sink, arguments.rounds))
            for columns in (20, arguments.columns):
                job = Job(address, directory / "load", spark)
                measure_load(job, columns, arguments.values, arguments.rounds)
        finally:
            spark.stop()


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--columns", type=int, default=1_000)
    parser.add_argument("--values", type=int, default=2_000_000, help="of the loads, in all")
    parser.add_argument("--without-connector", action="store_true")
    parser.add_argument("--only-load", action="store_true")
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as directory:
        run(parser.parse_args(), Path(directory))


if __name__ == "__main__":
    main()
