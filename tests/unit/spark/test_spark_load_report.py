"""What a job's metrics file tells of its last run, and of the last successes before it."""

from __future__ import annotations

import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kdist.config.load_job import load_job
from kdist.runtime.simulated_disk import SimulatedDisk
from kdist.spark.load.report import RunReport, TopicReport, register_job, write_report

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
