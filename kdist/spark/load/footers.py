"""Reads Parquet files for what tells which records they have, and whether they can be read."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyarrow.compute import field

from kdist.errors import UserError
from kdist.runtime.files import File, Files
from kdist.spark.load.columns_named import OFFSET, PARTITION
from kdist.spark.load.counts import Tally, tally


def count_rows(files: Files, path: str) -> int:
    """A file's rows, by its footer. `UserError` if it is not a Parquet file."""
    with _opened(files, path) as parquet:
        return int(parquet.metadata.num_rows)


def read_columns(files: Files, path: str, columns: list[str]) -> pyarrow.Table:
    """Some columns of a file."""
    with _opened(files, path) as parquet:
        return parquet.read(columns)


def read_all(files: Files, path: str) -> None:
    """Read and decode every page of a file; `OSError`, `ArrowException` if one is damaged."""
    with _opened(files, path) as parquet:
        for _ in parquet.iter_batches():
            pass


def tallies(files: Files, path: str) -> Iterator[tuple[int, Tally]]:
    """Which rows of which partition a file has, a part of it after the other."""
    with _opened(files, path) as parquet:
        for batch in parquet.iter_batches(columns=[PARTITION, OFFSET]):
            partitions, offsets = batch.column(PARTITION), batch.column(OFFSET)
            for each in pyarrow.compute.unique(partitions).to_pylist():
                yield each, tally(offsets.filter(pyarrow.compute.equal(partitions, each)))


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
