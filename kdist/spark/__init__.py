"""Spark: the PySpark data source `kdist`, and the load of topics into Parquet files.

`source` is the data source. On the driver, `options` parses its options; `resolving` asks the
cluster, through `asking`, which offsets they mean; `ranges` cuts these into tasks. On the
executors, `reading` reads the batches of a range, and `columns` turns them into Arrow. `workers`
says which Python they run. The load is in `kdist.spark.load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format `kdist` with a session; only needed if Spark does not find it itself.

    On this machine alone Spark's workers then run this Python, unless PYSPARK_PYTHON names another;
    `UserError` if that has no kdist.
    """
    from kdist.spark.source import KdistDataSource
    from kdist.spark.workers import choose_python

    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is not None:
        choose_python(context)
    spark.dataSource.register(KdistDataSource)
