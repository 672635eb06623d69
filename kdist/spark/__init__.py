"""Spark: the PySpark data source `kdist`, and the load of topics into Parquet files.

`source` is the data source. Driver's side: `options` (what was asked for), `offsets` (its JSON),
`resolving` (which offsets that is now, asked through `asking`), `ranges` (cut for the tasks).
Executors' side: `reading` (records of a range) and `columns` (as Arrow). The load is in
`kdist.spark.load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format `kdist` known to a session, as it is where Spark finds it by itself."""
    from kdist.spark.source import KdistDataSource

    spark.dataSource.register(KdistDataSource)
