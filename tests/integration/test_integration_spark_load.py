"""The load on a real broker and real Spark: every record once, whatever happens to it meanwhile."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import PIPE
from typing import get_args

import psutil
import pytest
from compacted_topics import HASTY_CLEANER, await_clean, create, left_of, send
from pyspark.sql import SparkSession
from spark_work import ROOT, Job, as_json, produce, small_spark
from standalone_process import Standalone, standalone

from kdist.client.producer.sync import Producer
from kdist.config.load_job import Step
from kdist.runtime.disk import Disk
from kdist.spark.load.job import RunOptions
from kdist.spark.load.layout import MANIFEST
from kdist.spark.load.verify import verify
from lab.shell import wait_until

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("load"), *HASTY_CLEANER) as run:
        yield run


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with small_spark() as session:
        yield session


@pytest.fixture
def job(cluster: Standalone, spark: SparkSession, tmp_path: Path) -> Job:
    return Job(f"127.0.0.1:{cluster.port}", tmp_path / "out", spark)


class Killed(BaseException):
    """A load ends here, and nothing of it runs any more: as SIGKILL has it."""


def clicks(start: int, count: int) -> list[bytes]:
    """Clicks on three days."""
    return as_json(
        {"id": number, "at": DAY_MS * (number % 3), "who": {"name": f"user-{number % 7}"}}
        for number in range(start, start + count)
    )


def test_records_become_rows_by_day_and_the_next_load_goes_on_behind_them(job: Job) -> None:
    produce(job.address, "days", clicks(0, 300))
    first = job.run("days", event_time_field="at")
    produce(job.address, "days", clicks(300, 30))
    second = job.run("days", event_time_field="at")
    third = job.run("days", event_time_field="at")

    assert first.error is second.error is third.error is None
    assert first.manifest is not None
    assert second.manifest is not None
    assert (first.manifest.rows, second.manifest.rows, third.manifest) == (300, 30, None)
    by_day = {
        str(row["date"]): row["count"] for row in job.seen("days").groupBy("date").count().collect()
    }
    assert by_day == {"1970-01-01": 110, "1970-01-02": 110, "1970-01-03": 110}
    row = job.seen("days").where("id = 304").collect()[0]
    assert row["who"]["name"] == "user-3"
    assert row["event_time"].replace(tzinfo=UTC) == datetime(1970, 1, 2, tzinfo=UTC)
    assert row["load"] == 2
    assert row["record_value"] is None
    assert verify(Disk(), str(job.output), "days", is_deep=True).findings == ()


def test_a_load_killed_at_any_step_leaves_every_record_there_once(job: Job) -> None:
    count = 0
    for step in get_args(Step):
        produce(job.address, "killed", clicks(count, 40))

        def kill(reached: Step, step: Step = step) -> None:
            if reached == step:
                raise Killed

        before = job.rows("killed")
        try:
            job.run("killed", reached=kill)
            assert step == "superseded"  # only replays pass there
        except Killed:
            seen = job.rows("killed")  # all of the load, or nothing of it
            is_there = step in ("renamed", "committed", "swept")
            assert seen == count + 40 if is_there else seen == before, step
        count += 40
        if step not in ("files-synced", "swept"):  # after these the next round goes on
            continue
        job.run("killed")
        assert job.rows("killed") == count
    job.run("killed")
    assert job.times_seen("killed") == {1: count}
    assert verify(Disk(), str(job.output), "killed", is_deep=True).findings == ()
    assert not list((job.output / "topic=killed").glob("_s*"))


def test_a_replay_killed_at_any_step_leaves_every_record_there_once(job: Job) -> None:
    for number in range(3):
        produce(job.address, "replayed", clicks(10 * number, 10))
        assert job.run("replayed").error is None
    for step in ("directories-synced", "superseded", "renamed"):

        def kill(reached: Step, step: str = step) -> None:
            if reached == step:
                raise Killed

        numbers = [int(name.removeprefix("load=")) for name in job.directories("replayed")]
        with pytest.raises(Killed):
            job.run("replayed", RunOptions(replay_from={"replayed": numbers[-1]}), kill)
        assert job.run("replayed").error is None
        assert job.times_seen("replayed") == {1: 30}
    made = job.run("replayed", RunOptions(replay_from={"replayed": 1})).manifest
    assert made is not None
    assert (made.load, made.rows) == (1, 30)
    assert job.directories("replayed") == ["load=000001"]


def test_what_columns_do_not_hold_keeps_its_bytes(job: Job) -> None:
    values = [
        b'{"id": 1, "name": "a"}',
        b"not JSON",
        b'{"id": "text", "name": "b"}',
        b'{"id": 3, "more": true}',
        b'{"id": 4}{"id": 5}',
        b'[{"id": 6}]',
        b'{"id": 7, "id": 8}',
        b"\xff\x00",
        b'{"name": "\xff"}',
        b"",
        None,
    ]
    produce(job.address, "odd", values)
    outcome = job.run("odd", schema="id INT, name STRING")
    assert outcome.error is None
    found = {
        (
            None if row["record_value"] is None else bytes(row["record_value"]),
            row["id"],
            row["name"],
        )
        for row in job.seen("odd").collect()
    }
    assert found == {
        (None, 1, "a"),
        (b"not JSON", None, None),
        (b'{"id": "text", "name": "b"}', None, "b"),
        (b'{"id": 3, "more": true}', 3, None),
        (b'{"id": 4}{"id": 5}', None, None),
        (b'[{"id": 6}]', None, None),
        (b'{"id": 7, "id": 8}', 8, None),
        (b"\xff\x00", None, None),
        (b'{"name": "\xff"}', None, "\ufffd"),
        (b"", None, None),
        (None, None, None),
    }
    assert outcome.manifest is not None
    assert outcome.manifest.undecoded == 9


def test_a_value_that_its_column_would_change_keeps_its_bytes(job: Job) -> None:
    changed = [
        rb'{"text": "\ud800"}',
        rb'{"text": "\ude00\ud83d"}',
        b'{"number": 9007199254740993}',
        b'{"number": 12345678901234.56789}',
        b'{"number": -1e400}',
        b'{"number": "NaN"}',
    ]
    held = [
        rb'{"text": "\ud83d\ude00"}',
        b'{"text": "\xf0\x9f\x98\x80"}',
        b'{"text": 12345678901234567890}',
        b'{"text": 1e400}',
        b'{"text": 0.12345678901234567890}',
        b'{"text": 123456789012345678901234567890.5}',
        b'{"text": 1.25}',
        b'{"number": 9007199254740991}',
        b'{"number": -2.5}',
        b'{"number": 1e300}',
        b'{"number": -1.5E18}',
        b'{"number": null, "text": "x"}',
    ]
    produce(job.address, "changed", changed + held)
    outcome = job.run("changed", schema="text STRING, number DOUBLE")
    assert outcome.error is None
    kept = [bytes(row[0]) for row in job.seen("changed").select("record_value").collect() if row[0]]
    assert sorted(kept) == sorted(changed)
    texts = {row["text"] for row in job.seen("changed").collect()}
    assert {"1e400", "0.12345678901234567890", "123456789012345678901234567890.5"} <= texts


# A type, a JSON token that its column holds, and one that it does not.
TOKENS = {
    "TINYINT": (b"127", b"128"),
    "SMALLINT": (b"-32768", b"1.0"),
    "INT": (b"1", b'"1"'),
    "BIGINT": (b"9223372036854775807", b"9223372036854775808"),
    "FLOAT": (b"0.1", b"1e39"),
    "DOUBLE": (b"0.1", b"0.1000000000000000055"),
    "DECIMAL(10,2)": (b"1.23", b"1.239"),
    "DECIMAL(38,18)": (b"0.123456789012345678", b"0.1234567890123456789"),
    "STRING": (b'"x"', rb'"\ud800"'),
    "BOOLEAN": (b"true", b'"true"'),
    "BINARY": (b'"YWI="', b'"YWJ="'),
    "DATE": (b'"2013-01-01"', b'"2013-01-01T12:00:00"'),
    "TIMESTAMP": (b'"2013-01-01T05:15:00.123456Z"', b'"2013-01-01T05:15:00.1234567Z"'),
    "TIMESTAMP_NTZ": (b'"2013-01-01T05:15:00"', b'"07:15"'),
    "ARRAY<DECIMAL(10,2)>": (b"[1.5, null]", b"[1.5, 1.239]"),
    "MAP<STRING, FLOAT>": (b'{"x": 1.5}', b'{"x": 1e39}'),
    "STRUCT<x: ARRAY<STRUCT<y: DATE>>>": (b'{"x": [{"y": "2013-01-01"}]}', b'{"x": [{"z": 1}]}'),
}


def test_of_every_type_what_the_column_holds_is_compared_with_what_was_written(job: Job) -> None:
    schema = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(TOKENS))
    pairs = [
        tuple(b'{"c%d": %s}' % (number, token) for token in tokens)
        for number, tokens in enumerate(TOKENS.values())
    ]
    produce(job.address, "types", [value for pair in pairs for value in pair])
    outcome = job.run("types", schema=schema)
    assert outcome.error is None
    assert outcome.manifest is not None
    assert outcome.manifest.undecoded == len(pairs)
    rows = job.seen("types").select("record_value").where("record_value is not null").collect()
    assert sorted(bytes(row[0]) for row in rows) == sorted(lost for _, lost in pairs)
    seen = job.seen("types").selectExpr("cast(max(c11) as string)", "cast(max(c12) as string)")
    assert seen.collect()[0][0] == "2013-01-01"
    assert seen.collect()[0][1] == "2013-01-01 05:15:00.123456"


@pytest.mark.timeout(600)  # Spark plans for minutes where others use the processors, too
def test_five_thousand_fields_are_as_many_columns(job: Job) -> None:
    names = [f"field_{number}" for number in range(5_000)]
    produce(job.address, "wide", as_json(dict.fromkeys(names, value) for value in (1, 2.5, "x")))
    first = job.run("wide")
    produce(job.address, "wide", as_json([dict.fromkeys(names, "y")]))
    second = job.run("wide", keep_value="always")
    assert first.error is second.error is None
    assert first.manifest is not None
    assert len(first.manifest.columns or ()) == 5_000
    seen = job.seen("wide").select("field_0", "field_4999", "record_value").collect()
    assert sorted(row["field_4999"] for row in seen) == ["1", "2.5", "x", "y"]
    assert sum(row["record_value"] is not None for row in seen) == 1
    assert verify(Disk(), str(job.output), "wide", is_deep=True).findings == ()


@pytest.mark.parametrize(
    ("topic", "more", "given", "days"),
    [
        (
            "clock",
            {},
            [b'"07:15"', b'"2013-01-02T07:15"', b'"now"', b"86400000", b"null"],
            ["", "2013-01-02", "", "1970-01-02", ""],
        ),
        (
            "pattern",
            {"event_time_format": "dd/MM/yyyy HH:mm"},
            [b'"02/01/2013 07:15"', b'"07:15"', b"7"],
            ["2013-01-02", "", ""],
        ),
    ],
)
def test_what_has_no_date_is_loaded_on_the_day_of_its_timestamp(
    job: Job, topic: str, more: dict[str, str], given: list[bytes], days: list[str]
) -> None:
    before = datetime.now(UTC).date()
    produce(job.address, topic, [b'{"id": %d, "at": %s}' % each for each in enumerate(given)])
    assert job.run(topic, event_time_field="at", **more).error is None
    rows = {row["id"]: row for row in job.seen(topic).collect()}
    assert [str(rows[number]["date"]) for number in range(len(days))] == [
        day or str(rows[number]["record_timestamp"].date()) for number, day in enumerate(days)
    ]
    is_own = [
        row["event_time"] == row["record_timestamp"] for row in map(rows.get, range(len(days)))
    ]
    assert is_own == [not day for day in days], before


def test_an_event_time_beyond_the_jobs_bounds_is_counted_and_the_timestamps_day_taken(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime.now(UTC)

    def day(number: int) -> str:
        return str((now + timedelta(days=number)).date())

    at = [day(-29), day(1), day(-40), day(9), "-290000-01-01", "+290000-01-01", None]
    far_ms = 9_000_000_000_000_000  # in the year 287168: too far from one of these to be subtracted
    with Producer(bootstrap_servers=job.address) as producer:
        for value in as_json({"at": each} for each in at):
            producer.send("bounded", value)
        producer.send("bounded", as_json([{"at": at[4]}])[0], timestamp=far_ms)
    bounds = {"event_time_before_max_days": "30", "event_time_after_max_days": "2"}
    outcome = job.run("bounded", event_time_field="at", schema="at STRING", **bounds)
    assert outcome.error is None
    columns = ("record_offset", "string(date)", "string(date(record_timestamp))")
    rows = [tuple(row) for row in job.seen("bounded").selectExpr(*columns).collect()]
    _, days, own_days = zip(*sorted(rows), strict=True)
    assert days == (day(-29), day(1), *own_days[2:])
    assert own_days[-1] == "+287168-08-24"
    assert "the event time of 5 records is further from their timestamp" in caplog.text


def test_the_day_of_a_record_depends_on_the_job_and_not_on_the_session(job: Job) -> None:
    produce(job.address, "zones", as_json([{"at": "2013-01-01T22:00:00", "seen": "2013-01-01"}]))
    job.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    job.spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    settings = {"event_time_field": "at", "event_time_zone": "America/New_York"}
    assert job.run("zones", schema="at TIMESTAMP, seen DATE", **settings).error is None
    job.spark.conf.set("spark.sql.session.timeZone", "UTC")
    (row,) = job.seen("zones").selectExpr("string(date)", "string(event_time)", "at").collect()
    assert tuple(row)[:2] == ("2013-01-01", "2013-01-02 03:00:00")
    assert row["at"] == datetime(2013, 1, 2, 3)


def test_a_path_through_what_is_no_object_is_a_bad_event_time(job: Job) -> None:
    produce(job.address, "path", [b'{"id": 1, "meta": null}', b'{"id": 2, "meta": "x"}'])
    first = job.run("path", event_time_field="meta.ts")
    produce(job.address, "path", [b'{"id": 3, "meta": {"ts": 86400000}}', b'{"id": 4}'])
    second = job.run("path", event_time_field="meta.ts")
    third = job.run("path", event_time_field="other.ts")
    assert first.error is second.error is third.error is None
    rows = {row["id"]: row for row in job.seen("path").collect()}
    assert str(rows[3]["date"]) == "1970-01-02"
    assert all(rows[n]["event_time"] == rows[n]["record_timestamp"] for n in (1, 2, 4))


def test_names_of_fields_that_are_no_identifiers_are_columns_all_the_same(job: Job) -> None:
    record = {"a` b": 1, "head": {"user-agent": "x", "$oid": [{"xml:lang": "de"}]}}
    for load in (1, 2):  # the second by the columns that the first one's manifest has
        produce(job.address, "named", as_json([record]))
        outcome = job.run("named")
        assert outcome.error is None
        assert outcome.manifest is not None
        assert (outcome.manifest.load, outcome.manifest.undecoded) == (load, 0)
    for row in job.seen("named").collect():
        assert (row["a` b"], row["head"]["user-agent"]) == (1, "x")
        assert row["head"]["$oid"][0]["xml:lang"] == "de"


def test_values_too_large_for_a_footers_statistics_are_loaded(job: Job) -> None:
    produce(job.address, "large", [b"a" * 5_000, b"b" * 5_000, None])
    outcome = job.run("large", format="bytes")
    assert outcome.error is None
    assert outcome.manifest is not None
    assert (outcome.manifest.rows, outcome.manifest.undecoded) == (3, 0)
    assert verify(Disk(), str(job.output), "large", is_deep=True).findings == ()


def test_a_value_that_is_nested_too_deep_fails_nothing_and_what_it_has_is_text(job: Job) -> None:
    deep = [b'{"a": ' + b'{"b": ' * depth + b"1" + b"}" * depth + b"}" for depth in (60, 120, 900)]
    produce(job.address, "deep", [b'{"k": 1}', None, b"{}", *deep])
    made = job.run("deep").manifest
    assert made is not None
    assert made.columns is not None
    assert [each.column for each in made.columns] == ["a", "k"]
    assert (made.rows, made.undecoded) == (6, 1)
    kept = {row["record_value"] for row in job.seen("deep").collect()}
    assert {bytes(each) for each in kept if each is not None} == {b"{}", deep[2]}


def test_an_object_that_says_a_name_twice_does_not_keep_others_from_being_loaded(job: Job) -> None:
    values = [b'{"a": 1, "n": {"x": 1}}', b'{"a": 2, "a": 3}', b'{"a": 4, "n": {"x": 1, "x": 2}}']
    produce(job.address, "names", values)
    made = job.run("names").manifest
    assert made is not None
    assert made.columns is not None
    assert made.rows == 3
    assert [(each.column, each.type) for each in made.columns] == [
        ("a", "bigint"),
        ("n", "struct<x:bigint>"),
    ]
    assert made.undecoded == 2  # in an inner object, too, the column has only one of the values


def test_dates_stay_dates_with_years_that_have_more_than_four_digits(job: Job) -> None:
    far = ["2013-01-01T12:00:00", "+55840-11-08T22:13:20", "-6060-01-02T00:00:00"]
    produce(job.address, "far", as_json({"at": each} for each in far))
    assert job.run("far", event_time_field="at").error is None
    found = job.seen("far").selectExpr("typeof(date)", "cast(date as string)").collect()
    dates = {"2013-01-01", "+55840-11-08", "-6060-01-02"}
    assert {tuple(row) for row in found} == {("date", each) for each in dates}


def test_inferred_columns_stay_and_what_is_new_to_them_keeps_its_bytes(job: Job) -> None:
    produce(job.address, "pinned", [b'{"a": 1, "date": "x"}'])
    first = job.run("pinned")
    produce(job.address, "pinned", [b'{"a": 2, "b": 1.5}', b'{"a": 2.5}'])
    second = job.run("pinned")
    assert first.manifest is not None
    assert second.manifest is not None
    assert first.manifest.columns == second.manifest.columns
    assert [each.column for each in first.manifest.columns or ()] == ["a", "json_date"]
    assert (first.manifest.undecoded, second.manifest.undecoded) == (0, 2)


def test_of_two_runs_at_once_one_commits(job: Job) -> None:
    produce(job.address, "twice", clicks(0, 20))
    others = []

    def start_another(reached: Step) -> None:
        if reached == "counted":
            others.append(job.run("twice"))

    made = job.run("twice", reached=start_another)
    assert made.error is None
    (other,) = others
    assert str(other.error) == f"another load of twice is writing to {job.output}: wait for it"
    assert job.times_seen("twice") == {1: 20}


def test_a_run_that_lost_its_lock_does_not_commit_over_another(job: Job) -> None:
    produce(job.address, "raced", clicks(0, 20))
    lock = job.output / "topic=raced" / "_lock"

    def start_another(reached: Step) -> None:
        if reached == "planned" and lock.exists():
            lock.unlink()  # as on a filesystem whose locks do not hold
            assert job.run("raced").error is None

    made = job.run("raced", reached=start_another)
    assert str(made.error).startswith("another run has committed load 1 in ")
    assert job.times_seen("raced") == {1: 20}


def test_a_corrupt_manifest_is_told_and_nothing_is_written(job: Job) -> None:
    produce(job.address, "corrupt", clicks(0, 5))
    assert job.run("corrupt").error is None
    manifest = job.output / "topic=corrupt" / "load=000001" / MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"rows": 5', b'"rows": 6'))
    produce(job.address, "corrupt", clicks(5, 5))
    made = job.run("corrupt")
    assert str(made.error) == f"{manifest} is corrupt: its checksum does not match its content"
    assert job.directories("corrupt") == ["load=000001"]


def command_of(job: Job, tmp_path: Path, topics: str, *more: str) -> list[str]:
    """A load of its own, with a Spark of its own; and its file."""
    lines = (
        f"bootstrap.servers={job.address}",
        f"topics={topics}",
        f"output={job.output}",
        "spark.master=local[1]",
        "spark.driver.memory=512m",
        f"metrics.file={tmp_path}/load.prom",
        *more,
        "",
    )
    config = tmp_path / "job.properties"
    config.write_text("\n".join(lines))
    return [sys.executable, "-m", "kdist.cli", "load", "--config", str(config)]


@pytest.mark.timeout(600)  # a Spark for each step
def test_a_load_that_is_killed_as_a_process_is_done_by_the_next(job: Job, tmp_path: Path) -> None:
    produce(job.address, "process", clicks(0, 50))
    command = command_of(job, tmp_path, "process", "drill.kill.after=directories-synced")
    killed = subprocess.run(command, capture_output=True, check=False, cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    assert job.directories("process") == []
    command_of(job, tmp_path, "process")
    done = subprocess.run(command, capture_output=True, check=False, cwd=ROOT, text=True)
    assert (done.returncode, done.stdout[:28]) == (0, "process: load 1: 50 records,"), done.stderr
    # Java says the one before it runs a line of anyone's; the other is progress, if it takes long.
    said = re.sub(r".*(incubator modules|offsets done).*\n", "", done.stderr)
    assert said == ""
    assert job.times_seen("process") == {1: 50}
    assert "kdist_load_last_run_failed" in (tmp_path / "load.prom").read_text()


@pytest.mark.timeout(600)  # three Sparks
def test_where_java_is_killed_the_load_says_so_and_the_other_topics_are_loaded(
    job: Job, tmp_path: Path
) -> None:
    for topic in ("shot", "beside"):
        produce(job.address, topic, clicks(0, 50))
    command = command_of(job, tmp_path, "shot,beside")
    run = subprocess.Popen(command, stdout=PIPE, stderr=PIPE, cwd=ROOT, text=True)
    staged = job.output / "topic=shot"  # as soon as there is a directory for Spark to write to
    wait_until(lambda: bool(list(staged.glob("_s*"))), 300, "what a load has begun with")
    (java,) = psutil.Process(run.pid).children()
    java.kill()
    said, complaint = run.communicate()
    assert (run.returncode, said[:27]) == (1, "beside: load 1: 50 records,"), complaint
    sentence = "Spark's Java was killed: the kernel does this when memory is short"
    told = [line for line in complaint.splitlines() if line.startswith("kdist: ")]
    assert told == [f"kdist: shot could not be loaded: {sentence}"]
    assert not list((job.output / "topic=shot").glob("[!_]*"))
    assert 'last_run_failed{job_name="load"} 1' in (tmp_path / "load.prom").read_text()

    subprocess.run(command, check=True, cwd=ROOT)
    assert job.times_seen("shot") == job.times_seen("beside") == {1: 50}


def test_holes_of_a_compacted_topic_are_not_lost_records_and_a_replay_loses_none(
    cluster: Standalone, job: Job
) -> None:
    count, start_ms = 1_000, int(time.time() * 1000)
    create(cluster, "table")

    def seen() -> list[int]:
        return sorted(row["record_offset"] for row in job.seen("table").collect())

    send(cluster, "table", range(count), start_ms)
    wanted = [offset for offset, _ in left_of(count, await_clean(cluster, "table"))]
    assert len(wanted) < count / 2
    assert job.run("table").error is None
    assert seen() == wanted

    send(cluster, "table", range(count, 2 * count), start_ms)
    cleaned_end = await_clean(cluster, "table")  # the first load's last records are gone, too
    left = [offset for offset, _ in left_of(2 * count, cleaned_end)]
    second = job.run("table")
    assert (second.error, second.manifest and second.manifest.lost) == (None, 0)
    assert seen() == wanted + [offset for offset in left if offset >= count]
    assert verify(Disk(), str(job.output), "table", is_deep=True).findings == ()

    before = seen()
    replay = job.run("table", RunOptions(replay_from={"table": 1}))
    assert "records are gone from the topic" in str(replay.error)
    assert seen() == before
    assert verify(Disk(), str(job.output), "table", is_deep=True).findings == ()
