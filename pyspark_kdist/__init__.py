"""Where Spark finds the data source `kdist`: it imports every package named `pyspark_*`."""

from kdist.spark.source import KdistDataSource as DefaultSource

__all__ = ["DefaultSource"]
