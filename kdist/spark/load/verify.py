"""Checks an output: whether every load is complete, and has every record once.

Always checks the manifests, that each load begins where the one before ends, each file's size and
rows, and that there are as many rows as records were read. A deep check reads all of every file, as
its pages have checksums; and the rows must be those that were read, by a digest of each partition's
offsets. Where that differs, or a load is too old to have it, each offset is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow
import pyarrow.compute

from kdist.errors import UserError
from kdist.runtime.files import Files
from kdist.spark.load.columns_named import OFFSET, PARTITION
from kdist.spark.load.counts import Tally, add_up, count_rows, read_all, read_columns, tallies
from kdist.spark.load.layout import FILE_SUFFIX, load_name
from kdist.spark.load.ledger import Ledger
from kdist.spark.load.manifest import DataFile, Manifest, chain_fault

_NO_ROWS = pyarrow.schema([(PARTITION, pyarrow.int32()), (OFFSET, pyarrow.int64())]).empty_table()


class Checked(NamedTuple):
    """One topic of an output: its loads, and a sentence for each thing that is wrong."""

    topic: str
    loads: tuple[Manifest, ...]
    findings: tuple[str, ...]


def verify(files: Files, output: str, topic: str, *, is_deep: bool) -> Checked:
    """Check a topic's loads; changes nothing."""
    ledger = Ledger(files, output, topic)
    if not files.is_directory(ledger.directory):
        return Checked(topic, (), (f"{ledger.directory} does not exist: nothing was loaded",))
    loads: list[Manifest] = []
    findings: list[str] = []
    for number in ledger.numbers():
        try:
            found = ledger.manifest(number)
        except UserError as error:
            findings.append(str(error))
            continue
        if loads and (fault := chain_fault(loads[-1], found)):
            findings.append(f"{topic}: {fault}")
        loads.append(found)
        directory = f"{ledger.directory}/{load_name(number)}"
        findings += _file_faults(files, directory, found)
        if is_deep:
            findings += _row_faults(files, directory, found)
    return Checked(topic, tuple(loads), tuple(findings))


def _file_faults(files: Files, directory: str, load: Manifest) -> Iterator[str]:
    read = sum(load.records.values())
    if load.records and load.rows != read:
        yield (
            f"load {load.load} of {load.topic} has {load.rows} rows by its files, but"
            f" {read} records were read"
        )
    listed = {file.path: file for file in load.files}
    there = {path for path in _walk(files, directory, "") if path.endswith(FILE_SUFFIX)}
    for path in sorted(there - listed.keys()):
        yield f"{directory}/{path} is not in the manifest: its rows do not belong to this load"
    for path, file in listed.items():
        if path not in there:
            yield f"{directory}/{path} is missing: {file.rows} records are gone"
        elif fault := _file_fault(files, f"{directory}/{path}", file):
            yield fault


def _file_fault(files: Files, path: str, file: DataFile) -> str | None:
    size_bytes = files.size(path)
    if size_bytes != file.size_bytes:
        return f"{path} has {size_bytes} bytes, but {file.size_bytes} by the manifest"
    try:
        rows = count_rows(files, path)
    except UserError as error:
        return str(error)
    return None if rows == file.rows else f"{path} has {rows} rows, but {file.rows} by the manifest"


def _walk(files: Files, directory: str, inner: str) -> Iterator[str]:
    for name in files.list(f"{directory}/{inner}".rstrip("/")):
        path = f"{inner}{name}"
        if files.is_directory(f"{directory}/{path}"):
            yield from _walk(files, directory, f"{path}/")
        else:
            yield path


def _row_faults(files: Files, directory: str, load: Manifest) -> Iterator[str]:
    """Rows that cannot be read, or are not those that were read of the brokers."""
    paths = []
    found: list[tuple[int, Tally]] = []
    for file in load.files:
        path = f"{directory}/{file.path}"
        try:
            read_all(files, path)
            found += tallies(files, path)
            paths.append(path)
        except (UserError, FileNotFoundError):
            continue  # `_file_faults` has reported it
        except (pyarrow.ArrowException, OSError) as error:
            yield f"{path} cannot be read: {error}"
    there = {partition: (each.records, each.digits) for partition, each in add_up(found).items()}
    read = {
        partition: (records, load.digests[partition])
        for partition, records in load.records.items()
        if records and partition in load.digests
    }
    if load.digests and there == read:
        return
    told = [*_offset_faults(files, paths, load)]
    yield from told
    if load.digests and not told:
        yield f"load {load.load} of {load.topic} has other records than were read"


def _offset_faults(files: Files, paths: list[str], load: Manifest) -> Iterator[str]:
    """Offsets that are not the load's, are there twice, or not at all; holds all of them."""
    tables = [read_columns(files, path, [PARTITION, OFFSET]) for path in paths]
    rows = pyarrow.concat_tables([_NO_ROWS, *tables])
    counted = rows.group_by([PARTITION]).aggregate(
        [(OFFSET, "count"), (OFFSET, "count_distinct"), (OFFSET, "min"), (OFFSET, "max")]
    )
    found = {row[PARTITION]: row for row in counted.to_pylist()}
    for partition, read in load.records.items():
        there = found[partition][f"{OFFSET}_count_distinct"] if partition in found else 0
        if there < read:
            yield (
                f"load {load.load} of {load.topic}, partition {partition}:"
                f" {read - there} records of {read} are missing"
            )
    for partition, row in found.items():
        name = f"load {load.load} of {load.topic}, partition {partition}"
        twice = row[f"{OFFSET}_count"] - row[f"{OFFSET}_count_distinct"]
        if twice:
            yield f"{name}: {twice} records are duplicates"
        start, end = load.offsets.get(partition, (0, 0))
        if row[f"{OFFSET}_min"] < start or row[f"{OFFSET}_max"] >= end:
            yield (
                f"{name}: has offsets {row[f'{OFFSET}_min']} to {row[f'{OFFSET}_max']}, but only"
                f" those from {start} up to {end} belong to the load"
            )
