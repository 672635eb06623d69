"""A load's manifest: which offsets it has, and in which files (pure).

One JSON object, with a CRC-32C over the canonical text of the rest, which shows whether a manifest
was truncated or edited. docs/formats/load-output.md describes each field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from kdist.errors import KdistError, UserError
from kdist.model import OffsetRange
from kdist.wire.crc32c import crc32c

FORMAT = 4
_READ = (1, 2, 3, FORMAT)  # what older ones lack, docs/formats/load-output.md says


class CorruptManifest(UserError):
    """A manifest that is missing, damaged or inconsistent."""


class DataFile(NamedTuple):
    """A Parquet file, by its path relative to the load's directory."""

    path: str
    rows: int
    size_bytes: int


class Column(NamedTuple):
    """A column made of a JSON field; `type` is Spark's, as `bigint`."""

    field: str
    column: str
    type: str


class Manifest(NamedTuple):
    """Describes one load. `offsets` are by partition; `columns` is None if values stay bytes.

    `lost` is how many offsets before it were accepted as lost, `undecoded` how many records its
    columns do not hold, in all and by `reasons`. `epochs` are the leader epochs in which the
    partitions ended, `records` how many records were read of each, `digests` which ones, `days` the
    job's settings that say which day a record is of. These are empty where the load or the brokers
    are too old.
    """

    load: int
    topic: str
    topic_id: str
    job: str
    release: str
    started_ms: int
    written_ms: int
    offsets: dict[int, OffsetRange]
    lost: int
    undecoded: int
    columns: tuple[Column, ...] | None
    files: tuple[DataFile, ...]
    epochs: Mapping[int, int] = {}
    records: Mapping[int, int] = {}
    reasons: Mapping[str, int] = {}
    days: Mapping[str, str] = {}
    digests: Mapping[int, str] = {}

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def offset_count(self) -> int:
        """How many offsets it covers, including those without a record."""
        return sum(end - start for start, end in self.offsets.values())


def write_manifest(manifest: Manifest) -> bytes:
    """The file's content."""
    said = {
        "format": FORMAT,
        **manifest._asdict(),
        "offsets": {str(key): list(each) for key, each in sorted(manifest.offsets.items())},
        "columns": manifest.columns and [each._asdict() for each in manifest.columns],
        "files": [each._asdict() for each in manifest.files],
        "epochs": {str(key): each for key, each in sorted(manifest.epochs.items())},
        "records": {str(key): each for key, each in sorted(manifest.records.items())},
        "digests": {str(key): each for key, each in sorted(manifest.digests.items())},
    }
    return json.dumps({"crc32c": _sum(said), **said}, indent=1, ensure_ascii=False).encode()


def read_manifest(content: bytes, path: str) -> Manifest:
    """Parse a manifest; `CorruptManifest`, which names the file `path`."""
    try:
        said = json.loads(content)
        expected = said.pop("crc32c")
        if _sum(said) != expected:
            raise CorruptManifest(f"{path} is corrupt: its checksum does not match its content")
        if said.pop("format") not in _READ:
            raise CorruptManifest(f"{path} is in a format that this release does not know")
        return _manifest(said)
    except CorruptManifest:
        raise
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CorruptManifest(f"{path} is corrupt: it is not the manifest of a load") from None


def _sum(said: Mapping[str, Any]) -> str:
    return f"{crc32c(json.dumps(said, sort_keys=True).encode()):08x}"


def _manifest(said: dict[str, Any]) -> Manifest:
    columns = said["columns"]
    return Manifest(
        **{
            **said,
            "offsets": {int(key): OffsetRange(*each) for key, each in said["offsets"].items()},
            "columns": None if columns is None else tuple(Column(**each) for each in columns),
            "files": tuple(DataFile(**each) for each in said["files"]),
            "epochs": {int(key): each for key, each in said.get("epochs", {}).items()},
            "records": {int(key): each for key, each in said.get("records", {}).items()},
            "digests": {int(key): each for key, each in said.get("digests", {}).items()},
        }
    )


def chain_fault(before: Manifest, after: Manifest) -> str | None:
    """Why a load does not continue the one before it, in a sentence; None if it does."""
    if after.load != before.load + 1:
        return f"load {after.load} follows load {before.load}: those between are missing"
    for partition, (_, end) in before.offsets.items():
        start = after.offsets.get(partition, OffsetRange(-1, -1)).start
        if start < end or (start > end and not after.lost):
            return (
                f"load {after.load} begins at {start} in partition {partition}, but load"
                f" {before.load} ended at {end}"
            )
    return None


class RowsDisagree(KdistError):
    """The files have other rows than there were records, so they cannot be right."""
