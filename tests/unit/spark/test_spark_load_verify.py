"""`kdist load verify`: a sentence for each thing that may be wrong with an output."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet

from kdist.model import OffsetRange
from kdist.runtime.disk import Disk
from kdist.spark.load.columns_named import OFFSET, PARTITION, VALUE
from kdist.spark.load.layout import MANIFEST, load_name, topic_directory
from kdist.spark.load.manifest import DataFile, Manifest, write_manifest
from kdist.spark.load.verify import Checked, verify

FILE = "date=2013-01-01/part-0.parquet"


def make_load(
    output: Path, number: int, offsets: range, rows: list[int] | None = None, read: int = 0
) -> Path:
    """Make a load of partition 0 as a job would, with the given rows if any; its one file.

    Its manifest says how many records were read, unless that is 0.
    """
    directory = Path(topic_directory(str(output), "clicks")) / load_name(number)
    file = directory / FILE
    file.parent.mkdir(parents=True)
    kept = list(offsets) if rows is None else rows
    columns = {
        VALUE: pyarrow.array([b"x"] * len(kept), pyarrow.binary()),
        PARTITION: pyarrow.array([0] * len(kept), pyarrow.int32()),
        OFFSET: pyarrow.array(kept, pyarrow.int64()),
    }
    table = pyarrow.table(columns)
    pyarrow.parquet.write_table(
        table, file, write_page_checksum=True, use_dictionary=False, compression="none"
    )
    files = (DataFile(FILE, len(kept), file.stat().st_size),)
    ranges = {0: OffsetRange(offsets.start, offsets.stop)}
    made = Manifest(
        number, "clicks", "0" * 32, "job", "0", 0, 0, ranges, 0, 0, columns=None, files=files
    )
    made = made._replace(records={0: read} if read else {})
    (directory / MANIFEST).write_bytes(write_manifest(made))
    return file


def checked(output: Path, *, is_deep: bool = True) -> Checked:
    return verify(Disk(), str(output), "clicks", is_deep=is_deep)


def test_an_output_that_is_whole_has_no_findings(tmp_path: Path) -> None:
    make_load(tmp_path, 1, range(10))
    make_load(tmp_path, 2, range(10, 15))
    found = checked(tmp_path)
    assert found.findings == ()
    assert sum(load.rows for load in found.loads) == 15


def test_a_missing_output_is_a_finding(tmp_path: Path) -> None:
    (finding,) = checked(tmp_path / "typo", is_deep=False).findings
    assert finding == f"{tmp_path}/typo/topic=clicks does not exist: nothing was loaded"


def test_missing_unknown_and_resized_files_are_findings(tmp_path: Path) -> None:
    file = make_load(tmp_path, 1, range(10))
    stranger = file.with_name("part-1.parquet")
    stranger.write_bytes(file.read_bytes())
    assert "part-1.parquet is not in the manifest" in checked(tmp_path).findings[0]
    stranger.unlink()
    size = file.stat().st_size
    file.write_bytes(file.read_bytes() + b"x")
    assert f"has {size + 1} bytes, but {size} by the manifest" in checked(tmp_path).findings[0]
    file.unlink()
    assert "is missing: 10 records are gone" in checked(tmp_path).findings[0]


def test_loads_that_do_not_follow_each_other_are_a_finding(tmp_path: Path) -> None:
    make_load(tmp_path, 1, range(10))
    make_load(tmp_path, 2, range(9, 15))
    assert checked(tmp_path, is_deep=False).findings == (
        "clicks: load 2 begins at 9 in partition 0, but load 1 ended at 10",
    )


def test_a_deep_check_finds_duplicated_and_foreign_rows(tmp_path: Path) -> None:
    make_load(tmp_path, 1, range(10), rows=[0, 1, 1, 2])
    make_load(tmp_path, 2, range(10, 15), rows=[10, 15])
    assert checked(tmp_path, is_deep=False).findings == ()
    twice, beyond = checked(tmp_path).findings
    assert twice == "load 1 of clicks, partition 0: 1 records are duplicates"
    assert "has offsets 10 to 15, but only those from 10 up to 15 belong to the load" in beyond


def test_fewer_rows_than_records_were_read_are_a_finding(tmp_path: Path) -> None:
    make_load(tmp_path, 1, range(10), rows=[0, 1, 3], read=4)
    (finding,) = checked(tmp_path, is_deep=False).findings
    assert finding == "load 1 of clicks has 3 rows by its files, but 4 records were read"
    assert checked(tmp_path).findings == (
        finding,
        "load 1 of clicks, partition 0: 1 records of 4 are missing",
    )


def test_a_deep_check_finds_a_row_that_another_one_stands_for(tmp_path: Path) -> None:
    make_load(tmp_path, 1, range(10), rows=[0, 1, 1, 3], read=4)
    assert checked(tmp_path, is_deep=False).findings == ()
    assert checked(tmp_path).findings == (
        "load 1 of clicks, partition 0: 1 records of 4 are missing",
        "load 1 of clicks, partition 0: 1 records are duplicates",
    )


def test_offsets_without_a_record_are_none(tmp_path: Path) -> None:
    make_load(tmp_path, 1, range(10), rows=[0, 1, 3], read=3)
    assert checked(tmp_path).findings == ()


def test_a_deep_check_finds_a_file_whose_rows_cannot_be_read(tmp_path: Path) -> None:
    file = make_load(tmp_path, 1, range(1000))
    content = bytearray(file.read_bytes())
    at = content.index((500).to_bytes(8, "little"))
    content[at] ^= 1
    file.write_bytes(content)
    (finding,) = checked(tmp_path).findings
    assert finding.startswith(f"{file} cannot be read: ")
