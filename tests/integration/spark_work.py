"""Spark for tests: one small session a module, topics to read, and what readers see of a load."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from kdist.client.producer.sync import Producer
from kdist.config.load_job import LoadJob, load_job
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.spark.load.commit import OnStep, go_on
from kdist.spark.load.job import LoadContext, Loaded, LoadRun, RunOptions
from kdist.spark.load.spark_session import settings_of

ROOT = Path(__file__).parents[2]
SMALL = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@contextmanager
def small_spark(**settings: str) -> Iterator[SparkSession]:
    """A session of one thread, which finds the data source by itself as an installed one does."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    builder = SparkSession.builder.master("local[1]").appName("tests")
    for name, text in (settings_of("local[1]", "UTC", SMALL) | settings).items():
        builder = builder.config(name, text)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        _end_java()


def _end_java() -> None:
    """PySpark keeps its Java for the next session, which could then have no jars of its own."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # whose end it waits for
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None


def table(spark: SparkSession, address: str, **options: str) -> DataFrame:
    """What the data source gives."""
    reader = spark.read.format("kdist").option("kafka.bootstrap.servers", address)
    return reader.options(**options).load()


def produce(address: str, topic: str, values: Iterable[bytes | None], **settings: Any) -> None:
    """Records on partitions in turn, acknowledged."""
    with Producer(bootstrap_servers=address, **settings) as producer:
        sent = [producer.send(topic, value) for value in values]
        for each in sent:
            each.result(timeout=60)


def as_json(rows: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Rows as values of records."""
    return [json.dumps(row).encode() for row in rows]


class Job(NamedTuple):
    """A job of the tests': its output, and how to run it."""

    address: str
    output: Path
    spark: SparkSession

    def job(self, topic: str, **settings: str) -> LoadJob:
        given = {
            "bootstrap.servers": self.address,
            "topics": topic,
            "output": str(self.output),
            **{name.replace("_", "."): text for name, text in settings.items()},
        }
        return load_job("".join(f"{name}={text}\n" for name, text in given.items()), "test")

    def run(
        self,
        topic: str,
        options: RunOptions | None = None,
        reached: OnStep = go_on,
        **settings: str,
    ) -> Loaded:
        """One run over one topic."""
        job = self.job(topic, **settings)
        environment = dict(os.environ)
        world = LoadContext(Disk(), SystemClock(), environment, os.getpid(), "test", reached)
        (outcome,) = LoadRun(job, world, self.spark).run(options or RunOptions(), lambda _: None)
        return outcome

    def rows(self, topic: str) -> int:
        """How many a plain reader of Spark's sees."""
        return self.seen(topic).count() if self.directories(topic) else 0

    def seen(self, topic: str) -> DataFrame:
        """What a plain reader of Spark's sees."""
        path = self.output / f"topic={topic}"
        return self.spark.read.option("mergeSchema", "true").parquet(str(path))

    def directories(self, topic: str) -> list[str]:
        """What of a topic's directory a reader does not pass over."""
        found = (each.name for each in (self.output / f"topic={topic}").glob("*"))
        return sorted(name for name in found if not name.startswith("_"))

    def times_seen(self, topic: str) -> Counter[int]:
        """How many records are there how many times, by partition and offset."""
        found = self.seen(topic).groupBy("record_partition", "record_offset").count()
        return Counter(row["count"] for row in found.collect())
