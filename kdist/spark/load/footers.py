"""Reads of Parquet files what tells which records they have: footers, and columns of offsets."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow
import pyarrow.parquet
from pyarrow.compute import field

from kdist.errors import UserError
from kdist.runtime.files import File, Files
from kdist.spark.load.columns_named import OFFSET, PARTITION


class Footer(NamedTuple):
    """A file's rows, and in how many of them a column is not null."""

    rows: int
    values: int


def read_footer(files: Files, path: str, column: str) -> Footer:
    """Read only a file's footer. `UserError` if it is not a Parquet file."""
    with _opened(files, path) as parquet:
        rows = parquet.metadata.num_rows
        names = [parquet.schema.column(n).path for n in range(len(parquet.schema))]
        place = names.index(column)
        nulls = 0
        for number in range(parquet.metadata.num_row_groups):
            statistics = parquet.metadata.row_group(number).column(place).statistics
            has_nulls = statistics is not None and statistics.has_null_count
            assert has_nulls, "a load's files have the null count of every column"
            nulls += statistics.null_count
        return Footer(rows, rows - nulls)


def read_columns(files: Files, path: str, columns: list[str]) -> pyarrow.Table:
    """Some columns of a file."""
    with _opened(files, path) as parquet:
        return parquet.read(columns)


def rows_before(files: Files, path: str, ends: Mapping[int, int]) -> int:
    """How many rows of a file have offsets below the ends of their partitions."""
    table = read_columns(files, path, [PARTITION, OFFSET])
    return sum(
        table.filter((field(PARTITION) == partition) & (field(OFFSET) < end)).num_rows
        for partition, end in ends.items()
    )


def _opened(files: Files, path: str) -> pyarrow.parquet.ParquetFile:
    source = pyarrow.PythonFile(_Readable(files.open_readonly(path)), mode="r")
    try:
        return pyarrow.parquet.ParquetFile(source, page_checksum_verification=True)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is not a Parquet file: {error}") from None


class _Readable(io.RawIOBase):
    """A `File` as a Python file object for pyarrow."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size()}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = self._file.size() - self._position
        data = self._file.read(self._position, left if size < 0 else min(size, left))
        self._position += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
