"""Which records the tasks of a load have read, and which ones its Parquet files have.

Offsets do not tell how many records there were: some have none, such as those of transaction
markers. So each task notes what it has read, in a small file beside what Spark stages, and a load
must have these rows. It also notes how many of them columns do not hold, and why. Files are looked
up by name, since a directory's list may be old where other hosts have written into it.
"""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyarrow.compute import field

from kdist.errors import KdistError, UserError
from kdist.runtime.files import File, Files
from kdist.spark.load.columns_named import OFFSET, PARTITION
from kdist.spark.ranges import Range

_REASONS_MAX = 100  # of one task: fields' names are data
_OTHER = "other reasons"
_MIX = pyarrow.scalar(0x9E3779B97F4A7C15, pyarrow.uint64())  # odd, its bits as if drawn by lot
_HALF = pyarrow.scalar(32, pyarrow.uint64())


class CountMissing(KdistError):
    """A task has left no count, so nobody knows whether all of its records are there."""


class Tally(NamedTuple):
    """How many records of one partition, and a digest of their offsets, which tells which ones.

    The digest is a sum, so that tallies add up in any order: unlike with an exclusive or, a record
    that is there twice shows, and one that is missing is not made up for by another.
    """

    records: int = 0
    digest: int = 0

    def plus(self, other: Tally) -> Tally:
        """The tally of both."""
        return Tally(self.records + other.records, (self.digest + other.digest) % (1 << 64))

    @property
    def digits(self) -> str:
        """The digest as a manifest has it: many readers of JSON have no integers of 64 bits."""
        return f"{self.digest:016x}"


def tally(offsets: pyarrow.Array | pyarrow.ChunkedArray) -> Tally:
    """The tally of records of one partition with these offsets."""
    compute = pyarrow.compute  # whose products and sums of integers wrap around
    mixed = compute.multiply(offsets.cast(pyarrow.uint64()), _MIX)
    mixed = compute.multiply(compute.bit_wise_xor(mixed, compute.shift_right(mixed, _HALF)), _MIX)
    return Tally(len(offsets), compute.sum(mixed).as_py() or 0)


def add_up(found: Iterable[tuple[int, Tally]]) -> dict[int, Tally]:
    """One tally for each partition."""
    sums: defaultdict[int, Tally] = defaultdict(Tally)
    for partition, each in found:
        sums[partition] = sums[partition].plus(each)
    return dict(sums)


class Counts(NamedTuple):
    """What was read of each partition, and how many of all are undecoded, by reason."""

    tallies: dict[int, Tally]
    undecoded: Counter[str]


def _file(directory: str, wanted: Range) -> str:
    return f"{directory}/{wanted.partition.partition}-{wanted.start}-{wanted.end}"


def note_count(
    files: Files, directory: str, read: Range, found: Tally, undecoded: Mapping[str, int] = {}
) -> None:
    """Note which records a range had; a task that is done twice notes the same."""
    said = json.dumps([*found, _few(Counter(undecoded))])
    files.replace(_file(directory, read), said.encode(), durable=False)


def _few(undecoded: Counter[str]) -> dict[str, int]:
    few = dict(undecoded.most_common(_REASONS_MAX))
    rest = undecoded.total() - sum(few.values())
    return {**few, _OTHER: rest} if rest else few


def offsets_noted(files: Files, directory: str, wanted: Iterable[Range]) -> int:
    """How many offsets the tasks have that are done."""
    return sum(each.size for each in wanted if files.exists(_file(directory, each)))


def count_records(files: Files, directory: str, wanted: Iterable[Range]) -> Counts:
    """The counts of all tasks, from their ranges; `CountMissing`."""
    found: list[tuple[int, Tally]] = []
    undecoded: Counter[str] = Counter()
    for each in wanted:
        try:
            count, digest, reasons = json.loads(files.read(_file(directory, each)))
        except FileNotFoundError:
            raise CountMissing(
                f"{each.partition} was read from {each.start} to {each.end}, but how many records"
                " that were is not in the output: do all of Spark's hosts share it?"
            ) from None
        found.append((each.partition.partition, Tally(count, digest)))
        undecoded.update(reasons)
    return Counts(add_up(found), undecoded)


# Parquet files


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
