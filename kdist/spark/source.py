"""The PySpark data source `kdist`: topics as a table, read in batches.

    spark.read.format("kdist").option("kafka.bootstrap.servers", "localhost:9092") \\
         .option("subscribe", "clicks").load()

Options and columns are those of Spark's own Kafka connector, so only the format's name differs.
Streaming reads, writes and other columns are refused in a sentence; Spark alone would say so in
the midst of a traceback, or only once its tasks run. Spark puts one before our sentences, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kdist.errors import KdistError, UserError
from kdist.spark.columns import COLUMNS, HEADERS, to_arrow
from kdist.spark.options import ReadOptions, read_options, wants_headers, without_effect
from kdist.spark.ranges import Range
from kdist.spark.reading import Reading, read_range
from kdist.spark.resolving import plan_read

if TYPE_CHECKING:
    import pyarrow

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


def _in_one_frame(call: Callable[P, T]) -> Callable[P, T]:
    """Have the traceback of a sentence of ours begin here; that of a bug has all its frames."""

    @wraps(call)
    def called(*args: P.args, **given: P.kwargs) -> T:
        try:
            return call(*args, **given)
        except KdistError as error:
            raise error.with_traceback(None) from None

    return called


class Task(InputPartition):
    """A range, which one Spark task reads."""

    def __init__(self, range_: Range) -> None:
        super().__init__(range_)
        self.range = range_


class KdistReader(DataSourceReader):
    """Plans on the driver and reads on the executors, to which Spark pickles it."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @_in_one_frame
    def partitions(self) -> list[InputPartition]:
        """A task for each range; if there is none, Spark adds one that has nothing to read."""
        return [Task(each) for each in plan_read(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if not isinstance(partition, Task):
            return  # Spark's own, where there is nothing to read
        options = self._options
        reading = Reading(
            options.bootstrap, options.fail_on_data_loss, options.consumer, options.security_file
        )
        batches = read_range(reading, partition.range)
        try:
            yield from to_arrow(partition.range.partition, batches, options.include_headers)
        except KdistError as error:
            raise error.with_traceback(None) from None


class KdistDataSource(DataSource):
    """The data source that Spark creates for `format("kdist")`."""

    @classmethod
    def name(cls) -> str:
        return "kdist"

    @_in_one_frame
    def schema(self) -> StructType | str:
        """The columns, which `columns.py` describes."""
        return COLUMNS + HEADERS if wants_headers(self.options) else COLUMNS

    @_in_one_frame
    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader for the options; `UserError` if one is wrong, or for any other schema."""
        if schema.simpleString().lower() != _plain(str(self.schema())):
            raise UserError(
                "the format kdist has columns of its own: leave out .schema(...), and select"
            )
        options = read_options(self.options)
        if ignored := without_effect(self.options):
            logger.warning("without effect on a read of kdist: %s", ", ".join(ignored))
        return KdistReader(options)

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: ARG002, N802 - Spark's name
        """`UserError`: streaming reads are not built yet."""
        raise UserError("the format kdist is read in batches, and not by readStream yet")

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002
        """`UserError`: writing is not built yet."""
        raise UserError("the format kdist only reads: Spark's format kafka can write to kdist")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, N802
        """`UserError`: writing is not built yet."""
        raise UserError("the format kdist only reads: Spark's format kafka can write to kdist")


def _plain(columns: str) -> str:
    """A schema's DDL text in the form of `simpleString`: Spark's DDL parser is not in a worker."""
    return f"struct<{columns.replace(': ', ':').replace(', ', ',').replace(' ', ':').lower()}>"
