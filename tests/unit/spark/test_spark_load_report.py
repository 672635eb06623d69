"""What a job tells: its metrics file, its errors in one sentence; and what `verify` finds."""

from __future__ import annotations

import logging
import random
import signal
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kdist.config.load_job import load_job
from kdist.errors import UserError
from kdist.model import OffsetRange
from kdist.runtime.disk import Disk
from kdist.spark.load.columns_named import OFFSET, PARTITION, VALUE, named, require_compatible
from kdist.spark.load.counts import Tally, tally
from kdist.spark.load.layout import MANIFEST, load_name, topic_directory
from kdist.spark.load.manifest import Column, DataFile, Manifest, write_manifest
from kdist.spark.load.report import RunReport, TopicReport, register_job, write_report
from kdist.spark.load.spark_session import (
    is_no_call_to_java,
    put_off_interrupts,
    sentence_of,
    settings_of,
    words_of,
)
from kdist.spark.load.verify import Checked, verify
from kdist.testing.simulated_disk import SimulatedDisk

FILE = "/load.prom"
SETTINGS = f"bootstrap.servers=b1:9092\noutput=/out\nname=nightly\nmetrics.file={FILE}\n"
JOB = load_job(f"{SETTINGS}topics=clicks,views\n", "x").job
SUCCESS = "kdist_load_last_success_timestamp_seconds"
TOPIC_SUCCESS = "kdist_load_topic_last_success_timestamp_seconds"
BOTH = {"clicks": 2_000, "views": 3_000}


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(1))


def shown(disk: SimulatedDisk) -> dict[str, float]:
    """The file's samples, by name and, where they have one, topic."""
    found = {}
    for family in text_string_to_metric_families(disk.read(FILE).decode()):
        for sample in family.samples:
            assert sample.labels["job_name"] == "nightly"
            topic = sample.labels.get("topic")
            found[f"{sample.name} {topic}" if topic else sample.name] = sample.value
    return found


def successes(disk: SimulatedDisk) -> dict[str, float]:
    """When the job, named so, and its topics last succeeded, as the file tells it."""
    names = {SUCCESS: "job", f"{TOPIC_SUCCESS} clicks": "clicks", f"{TOPIC_SUCCESS} views": "views"}
    return {names[name]: value for name, value in shown(disk).items() if "success" in name}


DATA_FILE = "date=2013-01-01/part-0.parquet"


def make_load(
    output: Path,
    number: int,
    offsets: range,
    rows: list[int] | None = None,
    read: int = 0,
    digest: str = "",
) -> Path:
    """Make a load of partition 0 as a job would, with the given rows if any; its one file.

    Its manifest says how many records were read, unless that is 0, and which ones, if given.
    """
    directory = Path(topic_directory(str(output), "clicks")) / load_name(number)
    file = directory / DATA_FILE
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
    files = (DataFile(DATA_FILE, len(kept), file.stat().st_size),)
    ranges = {0: OffsetRange(offsets.start, offsets.stop)}
    made = Manifest(
        number, "clicks", "0" * 32, "job", "0", 0, 0, ranges, 0, 0, columns=None, files=files
    )
    made = made._replace(
        records={0: read} if read or digest else {}, digests={0: digest} if digest else {}
    )
    (directory / MANIFEST).write_bytes(write_manifest(made))
    return file


def checked(output: Path, *, is_deep: bool = True) -> Checked:
    return verify(Disk(), str(output), "clicks", is_deep=is_deep)


def test_a_run_tells_how_it_went_and_what_it_loaded(disk: SimulatedDisk) -> None:
    topics = (TopicReport("clicks", 3, 100, 2),)
    write_report(disk, JOB, RunReport(1_000, 5_000, False, topics, BOTH))
    assert shown(disk) == {
        "kdist_load_last_run_failed": 0,
        "kdist_load_last_run_timestamp_seconds": 5,
        "kdist_load_last_success_timestamp_seconds": 5,
        "kdist_load_last_run_seconds": 4,
        "kdist_load_expected_interval_seconds": 86_400,
        "kdist_load_number clicks": 3,
        "kdist_load_last_run_records clicks": 100,
        "kdist_load_last_run_undecoded_records clicks": 2,
        "kdist_load_topic_last_success_timestamp_seconds clicks": 2,
        "kdist_load_topic_last_success_timestamp_seconds views": 3,
    }


def test_a_failed_run_keeps_the_times_of_the_last_successes(disk: SimulatedDisk) -> None:
    write_report(disk, JOB, RunReport(1_000, 5_000, False, began_ms=BOTH))
    for ended_ms in (9_000, 10_000):
        write_report(disk, JOB, RunReport(8_000, ended_ms, True))
    assert shown(disk)["kdist_load_last_run_failed"] == 1
    assert shown(disk)["kdist_load_last_run_timestamp_seconds"] == 10
    assert successes(disk) == {"job": 5, "clicks": 2, "views": 3}


def test_a_run_that_fails_with_one_topic_has_loaded_the_others(disk: SimulatedDisk) -> None:
    write_report(disk, JOB, RunReport(1_000, 5_000, False, began_ms=BOTH))
    write_report(disk, JOB, RunReport(6_000, 9_000, True, began_ms={"views": 7_000}))
    assert successes(disk) == {"job": 5, "clicks": 2, "views": 7}


def test_a_run_of_some_topics_is_no_success_of_the_job(disk: SimulatedDisk) -> None:
    write_report(disk, JOB, RunReport(1_000, 5_000, False, began_ms=BOTH))
    write_report(disk, JOB, RunReport(6_000, 9_000, False, began_ms={"views": 7_000}))
    assert shown(disk)["kdist_load_last_run_failed"] == 0
    assert successes(disk) == {"job": 5, "clicks": 2, "views": 7}


def test_what_has_never_succeeded_has_no_time(disk: SimulatedDisk) -> None:
    write_report(disk, JOB, RunReport(1_000, 5_000, True))
    assert successes(disk) == {}
    write_report(disk, JOB, RunReport(6_000, 9_000, True, began_ms={"views": 7_000}))
    assert successes(disk) == {"views": 7}


def test_a_topic_that_has_left_the_job_is_not_shown(disk: SimulatedDisk) -> None:
    write_report(disk, JOB, RunReport(1_000, 5_000, False, began_ms=BOTH))
    left = load_job(f"{SETTINGS}topics=views\n", "x").job
    write_report(disk, left, RunReport(6_000, 9_000, True))
    assert successes(disk) == {"job": 5, "views": 3}


@pytest.mark.parametrize("content", [b"", bytes(100), b"\xff", b"no metric {{{"])
def test_a_file_left_unreadable_by_a_power_loss_is_rewritten(
    disk: SimulatedDisk, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk.replace(FILE, content)
    write_report(disk, JOB, RunReport(8_000, 9_000, True))
    assert shown(disk)["kdist_load_last_run_failed"] == 1
    assert successes(disk) == {}
    assert f"{FILE} is damaged" in caplog.text


@pytest.mark.parametrize("rest", [b"", bytes(100), b"\xff\n"])
def test_a_damaged_file_tells_no_time_that_was_not_in_it(disk: SimulatedDisk, rest: bytes) -> None:
    ended_ms = 1_700_000_000_123
    began_ms = {"clicks": ended_ms - 2_000, "views": ended_ms - 1_000}
    write_report(disk, JOB, RunReport(ended_ms - 3_000, ended_ms, False, began_ms=began_ms))
    told, lines = successes(disk), disk.read(FILE).splitlines(keepends=True)
    whole = b"".join(line for line in lines if line.startswith(b"kdist_") and b"success" in line)
    counts = set()
    for size in range(len(whole)):
        disk.replace(FILE, whole[:size] + rest)
        write_report(disk, JOB, RunReport(ended_ms, ended_ms, True))
        assert successes(disk).items() <= told.items()
        counts.add(len(successes(disk)))
    assert counts == {0, 1, 2}


@pytest.mark.parametrize("seed", range(10))
def test_the_times_of_successes_outlive_a_power_loss(disk: SimulatedDisk, seed: int) -> None:
    write_report(disk, JOB, RunReport(1_000, 5_000, False, began_ms=BOTH))
    after = disk.crash(random.Random(seed))
    assert successes(after) == {"job": 5, "clicks": 2, "views": 3}


def test_the_0_that_a_former_release_wrote_for_never_is_not_kept(disk: SimulatedDisk) -> None:
    disk.replace(FILE, f'{SUCCESS}{{job_name="nightly"}} 0.0\n'.encode())
    write_report(disk, JOB, RunReport(8_000, 9_000, True))
    assert successes(disk) == {}


def test_the_age_of_a_job_that_has_never_run_counts_from_its_setup(disk: SimulatedDisk) -> None:
    for now_ms in (7_000, 9_000):
        register_job(disk, JOB, now_ms)
        assert successes(disk) == {"job": 7}


def test_columns_have_their_fields_names_where_these_are_free() -> None:
    fields = ["id", "ID", "date", "Topic", "record_value", "json_date"]
    assert [each.column for each in named((field, "int") for field in fields)] == [
        "id",
        "ID_2",
        "json_date",
        "json_Topic",
        "json_record_value",
        "json_date_2",
    ]


def test_a_column_keeps_its_type() -> None:
    before = [Column("id", "id", "bigint")]
    require_compatible("clicks", [Column("new", "new", "int")], before, 3)
    with pytest.raises(
        UserError, match="the column id is int by the schema, but bigint since load 3"
    ):
        require_compatible("clicks", [Column("id", "id", "int")], before, 3)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "[PYTHON_DATA_SOURCE_ERROR] Traceback (most recent call last):\n  File ...\n"
            "kdist.errors.UserError: there is no topic x\n SQLSTATE: 38000",
            "there is no topic x",
        ),
        (
            "Job aborted.\nCaused by: java.io.IOException: No space left on device\n\tat x",
            "no space is left in the job's output, or in spark.local.dir",
        ),
        (
            "Job aborted.\n\tat x\nCaused by: a.B: one\n\tat y\nCaused by: c.D: two\n\tat z",
            "c.D: two",
        ),
        (
            "Traceback (most recent call last):\n  File x\nValueError: bad\n SQLSTATE: 38000",
            "ValueError: bad",
        ),
        (
            "An error occurred while calling None.X.\n: o.S: Could not parse 'local[x]'\n\tat y",
            "o.S: Could not parse 'local[x]'",
        ),
        (
            "\n[UNSUPPORTED] no type INTT (line 1)\n\n== SQL ==\nn INTT\n",
            "[UNSUPPORTED] no type INTT (line 1)",
        ),
        (
            "An error occurred while calling o1.parquet.\n: o.S: Python worker exited unexpectedly"
            " (crashed). Consider\n\tat x\nCaused by: java.io.EOFException\n\tat y",
            "a Python worker of Spark's ended before its time: the kernel does this when memory is"
            " short",
        ),
        (
            "Job aborted.\n\tat x\nCaused by: java.io.IOException: Unexpected end of input trying"
            " to read batch.\n\tat y",
            "a Python worker of Spark's ended before its time: the kernel does this when memory is"
            " short",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.",
            "its Java ended at once; the reason may be in its output above",
        ),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions:"
            " kdist.errors.UserError: there is no topic x\n SQLSTATE: 38000",  # hideTraceback
            "there is no topic x",
        ),
        ("plain", "plain"),
        ("", "Spark gave no reason"),
    ],
)
def test_an_error_of_spark_becomes_one_sentence(said: str, sentence: str) -> None:
    assert sentence_of(said) == sentence


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGKILL, "was killed: the kernel does this when memory is short"),
        (-signal.SIGTERM, "was ended by signal 15"),
        (52, "ended with status 52"),
    ],
)
def test_the_way_that_java_ended_follows_from_its_status(status: int, words: str) -> None:
    assert words_of(status) == f"Spark's Java {words}"


def test_the_jobs_own_settings_for_spark_win() -> None:
    found = settings_of("local[2]", "UTC", {"spark.ui.enabled": "true"})
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in settings_of("spark://b1:7077", "UTC", {})
    java = settings_of("local", "UTC", {"spark.driver.extraJavaOptions": "-Xss1m"})
    assert java["spark.driver.extraJavaOptions"].endswith("log4j2.properties -Xss1m")


def test_an_interrupt_waits_until_spark_has_started_and_a_second_one_does_not() -> None:
    with put_off_interrupts() as heard:
        signal.raise_signal(signal.SIGINT)
        assert heard == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_py4js_messages_about_its_calls_are_not_logged() -> None:
    def record(path: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, path, 1, "said", (), None)

    assert not is_no_call_to_java(record("/x/py4j/java_gateway.py"))
    assert is_no_call_to_java(record("/x/other.py"))


def test_workers_without_kdist_are_told_as_such() -> None:
    said = "[PYTHON_DATA_SOURCE_ERROR] x\nModuleNotFoundError: No module named 'kdist.spark'\n\tat"
    assert sentence_of(said).startswith("the Python that Spark's workers run has no kdist")


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


def test_a_digest_is_as_its_format_says() -> None:
    number, limit = 0x9E3779B97F4A7C15, 1 << 64
    offsets = [0, 1, 3, 8, 1 << 40, (1 << 63) - 1]
    products = [each * number % limit for each in offsets]
    said = sum((each ^ each >> 32) * number % limit for each in products) % limit
    assert tally(pyarrow.array(offsets)).digits == f"{said:016x}"


def test_of_a_partition_with_no_records_a_deep_check_expects_none(tmp_path: Path) -> None:
    make_load(tmp_path, 1, range(10), rows=[], digest=Tally().digits)
    assert checked(tmp_path).findings == ()


def test_a_deep_check_finds_other_rows_than_were_read(tmp_path: Path) -> None:
    digest = tally(pyarrow.array([0, 1, 3, 8])).digits
    make_load(tmp_path, 1, range(10), rows=[8, 3, 1, 0], read=4, digest=digest)
    assert checked(tmp_path).findings == ()
    make_load(tmp_path, 2, range(10, 20), rows=[12, 13, 14, 15], read=4, digest=digest)
    assert checked(tmp_path, is_deep=False).findings == ()
    assert checked(tmp_path).findings == ("load 2 of clicks has other records than were read",)
    make_load(tmp_path, 3, range(20, 30), rows=[20, 20, 28, 28], read=4, digest=digest)
    assert checked(tmp_path).findings[1:] == (
        "load 3 of clicks, partition 0: 2 records of 4 are missing",
        "load 3 of clicks, partition 0: 2 records are duplicates",
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


def test_a_deep_check_finds_a_damaged_byte_in_any_column(tmp_path: Path) -> None:
    file = make_load(tmp_path, 1, range(200))
    content = file.read_bytes()
    at = content.index(b"x" + b"\1\0\0\0" + b"x" + b"\1\0\0\0")
    file.write_bytes(content[:at] + b"y" + content[at + 1 :])
    assert checked(tmp_path, is_deep=False).findings == ()
    (finding,) = checked(tmp_path).findings[:1]
    assert finding.startswith(f"{file} cannot be read")
