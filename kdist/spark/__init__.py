"""Spark: the PySpark data source `kdist`, and the load of topics into Parquet files.

`source` is the data source. On the driver, `options` parses its options, `offsets` the JSON in
them; `resolving` asks the cluster, through `asking`, which offsets they mean; `ranges` cuts these
into tasks. On the executors, `reading` reads the batches of a range, and `columns` turns them into
Arrow. The load is in `kdist.spark.load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format `kdist` with a session; only needed if Spark does not find it itself."""
    from kdist.spark.source import KdistDataSource

    spark.dataSource.register(KdistDataSource)
