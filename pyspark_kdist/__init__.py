"""Where Spark finds the data source `kdist`: it imports what is named `pyspark_*` and looks."""

from kdist.spark.source import KdistDataSource as DefaultSource

__all__ = ["DefaultSource"]
