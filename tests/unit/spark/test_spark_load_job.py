"""A run of a job as far as it goes without Spark: what it bases its plan on."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pickle import PicklingError
from unittest.mock import Mock

import pytest
from test_spark_load_commit import OUTPUT, commit_load, manifest

from kdist.config.load_job import TopicLoadSettings, load_job
from kdist.errors import UserError
from kdist.model import OffsetRange
from kdist.spark.load.check import look_at_job
from kdist.spark.load.commit import Commit
from kdist.spark.load.counts import CountMissing
from kdist.spark.load.job import LoadContext, Loaded, LoadRun, RunOptions
from kdist.spark.load.layout import Run
from kdist.spark.load.plan import Topic, TransactionHangs, Unread, plan_load
from kdist.spark.load.table import Shape
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.virtual_clock import VirtualClock

SETTINGS = f"bootstrap.servers=b1:9092\ntopics=clicks\noutput={OUTPUT}\n"


def loaded(
    disk: SimulatedDisk,
    look: Callable[[], Topic],
    monkeypatch: pytest.MonkeyPatch,
    settings: str = SETTINGS,
) -> Loaded:
    """The result of a run on a topic that each look-up finds as `look` says."""
    monkeypatch.setattr("kdist.spark.load.job.look_at_topic", lambda *_: look())
    world = LoadContext(disk, VirtualClock(), {}, 2, "0")
    (outcome,) = LoadRun(load_job(settings, "x"), world).run(RunOptions(), lambda _: None)
    return outcome


def test_a_run_continues_from_a_load_that_another_run_committed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk(random.Random(1))
    ends = [10, 20]

    def look() -> Topic:
        if len(ends) == 2:
            commit_load(
                disk, manifest(1, 0, 20)
            )  # after this look-up, and before this run has the lock
        return Topic("clicks", uuid.UUID("0" * 32), {0: OffsetRange(0, ends.pop(0))})

    outcome = loaded(disk, look, monkeypatch)
    assert (outcome.manifest, outcome.error) == (None, None)


def test_a_topic_recreated_while_it_was_read_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk(random.Random(1))
    looks: list[None] = []

    def look() -> Topic:
        looks.append(None)
        id_ = uuid.UUID("a" * 32 if len(looks) < 3 else "b" * 32)
        return Topic("clicks", id_, {0: OffsetRange(0, 10)})

    bytes_only = Shape(None, TopicLoadSettings())
    monkeypatch.setattr(LoadRun, "_spark", lambda _: None)
    monkeypatch.setattr(LoadRun, "_stage", lambda *_: bytes_only)
    outcome = loaded(disk, look, monkeypatch)
    assert "is not the topic that was loaded before" in str(outcome.error)
    assert disk.list(f"{OUTPUT}/topic=clicks") == ["_lock"]


def test_a_missing_topic_leaves_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk(random.Random(1))

    def look() -> Topic:
        raise UserError("there is no topic clicks")

    outcome = loaded(disk, look, monkeypatch)
    assert str(outcome.error) == "there is no topic clicks"
    assert not disk.exists(OUTPUT)


@pytest.mark.parametrize(
    "raised", [TypeError("a bug"), RecursionError(), PicklingError("too deep"), MemoryError()]
)
def test_whatever_a_topic_fails_with_the_others_are_loaded_and_the_run_counts_as_failed(
    raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/prom")

    def look(_: object, name: str, __: object) -> Topic:
        if name == "clicks":
            raise raised
        return Topic(name, uuid.UUID("0" * 32), {0: OffsetRange(0, 0)})

    monkeypatch.setattr("kdist.spark.load.job.look_at_topic", look)
    settings = SETTINGS.replace("topics=clicks", "topics=clicks,views")
    job = load_job(f"{settings}metrics.file=/prom/load.prom\n", "x")
    told: list[Loaded] = []
    LoadRun(job, LoadContext(disk, VirtualClock(), {}, 2, "0")).run(RunOptions(), told.append)
    assert [(each.topic, each.error is None) for each in told] == [
        ("clicks", False),
        ("views", True),
    ]
    assert type(raised).__name__ in str(told[0].error)
    assert b'kdist_load_last_run_failed{job_name="load"} 1' in disk.read("/prom/load.prom")


def test_an_interrupted_run_counts_as_failed_in_its_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/prom")

    def look() -> Topic:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loaded(disk, look, monkeypatch, f"{SETTINGS}metrics.file=/prom/load.prom\n")
    assert b'kdist_load_last_run_failed{job_name="load"} 1' in disk.read("/prom/load.prom")


def test_a_metrics_file_without_a_directory_is_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk(random.Random(1))
    looks: list[None] = []

    def look() -> Topic:
        looks.append(None)
        raise UserError("there is no topic clicks")

    settings = f"{SETTINGS}metrics.file=/prom/load.prom\n"
    with pytest.raises(UserError, match="cannot be written: /prom does not exist"):
        loaded(disk, look, monkeypatch, settings)
    assert not looks
    disk.make_directory("/prom")
    loaded(disk, look, monkeypatch, settings)
    assert disk.exists("/prom/load.prom")


def test_a_run_tells_of_each_topic_when_it_was_last_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, clock = SimulatedDisk(random.Random(1)), VirtualClock(0)
    disk.make_directory("/prom")
    settings = SETTINGS.replace("topics=clicks", "topics=clicks,views")
    job = load_job(f"{settings}metrics.file=/prom/load.prom\n", "x")
    broken: set[str] = set()

    def look(_: object, name: str, __: object) -> Topic:
        clock.advance_ms(500)  # twice for each topic
        if name in broken:
            raise UserError(f"there is no topic {name}")
        return Topic(name, uuid.UUID("a" * 32), {0: OffsetRange(0, 0)})

    def run(*topics: str) -> list[str]:
        """The last successes, as one line each, after a run a day later."""
        clock.advance_ms(86_400_000 - clock.now_ms() % 86_400_000)
        LoadRun(job, LoadContext(disk, clock, {}, 2, "0")).run(RunOptions(topics), lambda _: None)
        lines = disk.read("/prom/load.prom").decode().splitlines()
        return [line for line in lines if "success" in line and not line.startswith("#")]

    monkeypatch.setattr("kdist.spark.load.job.look_at_topic", look)
    of_job = 'kdist_load_last_success_timestamp_seconds{job_name="load"}'
    clicks, views = (
        f'kdist_load_topic_last_success_timestamp_seconds{{job_name="load",topic="{topic}"}}'
        for topic in ("clicks", "views")
    )
    assert run() == [f"{of_job} 86402.0", f"{clicks} 86400.0", f"{views} 86401.0"]
    broken.add("clicks")
    assert run() == [f"{of_job} 86402.0", f"{clicks} 86400.0", f"{views} 172800.5"]
    broken.clear()
    assert run("views") == [f"{of_job} 86402.0", f"{clicks} 86400.0", f"{views} 259200.0"]
    assert run("views", "clicks") == [
        f"{of_job} 345602.0",
        f"{clicks} 345601.0",
        f"{views} 345600.0",
    ]


def test_a_load_whose_days_are_other_days_than_before_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedDisk(random.Random(1))
    run = LoadRun(
        load_job(f"{SETTINGS}event.time.zone=America/New_York\n", "x"),
        LoadContext(disk, VirtualClock(), {}, 2, "0"),
    )
    topic = Topic("clicks", uuid.UUID("0" * 32), {0: OffsetRange(0, 10)})
    before = manifest(1, 0, 5)._replace(days=run._days(plan_load(topic, None)))
    run._warn_of_days(plan_load(topic, before))
    run._warn_of_days(plan_load(topic, manifest(1, 0, 5)))  # of a release that did not note it
    assert not caplog.records
    run._warn_of_days(
        plan_load(topic, before._replace(days={**before.days, "event.time.zone": "UTC"}))
    )
    (said,) = caplog.records
    assert "event.time.zone is America/New_York now, and was UTC" in said.getMessage()


def test_a_topic_held_up_by_a_transaction_has_not_succeeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/prom")
    commit_load(disk, manifest(1, 0, 20))
    now = Topic("clicks", uuid.UUID("0" * 32), {0: OffsetRange(0, 20)}, unread={0: Unread(0, 5)})
    settings = f"{SETTINGS}metrics.file=/prom/load.prom\n"
    outcome = loaded(disk, lambda: now, monkeypatch, settings)
    assert isinstance(outcome.error, TransactionHangs)
    assert outcome.unread == 5
    said = disk.read("/prom/load.prom")
    assert b'kdist_load_last_run_failed{job_name="load"} 1' in said
    assert b"\nkdist_load_topic_last_success" not in said


def test_a_check_says_what_a_load_would_be_refused_for_and_what_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk(random.Random(1))
    commit_load(disk, manifest(1, 0, 20))
    now = Topic("clicks", uuid.UUID("0" * 32), {0: OffsetRange(50, 70)})
    monkeypatch.setattr("kdist.spark.load.check.look_at_topic", lambda *_: now)
    monkeypatch.setattr("kdist.spark.load.check._look_for_brokers", lambda _: "brokers answer")
    monkeypatch.setattr(disk, "make_directory", Mock(side_effect=OSError(30, "Read-only")))
    found = look_at_job(load_job(SETTINGS, "x").job, disk, {"SPARK_HOME": "/spark"}, Run(0, 1))
    assert [each.said for each in found if each.is_wrong] == [
        f"{OUTPUT} cannot be written to: Read-only",
        f"{OUTPUT}/topic=clicks cannot be written to: Read-only",
        "clicks-0 is to be loaded from 20 on, but begins at 50 now: retention deleted 30 records"
        " before they were loaded; with --accept-loss, a load goes on after them",
    ]


@pytest.mark.parametrize(("days", "is_said"), [(1_000, False), (1_001, True)])
def test_a_load_of_more_than_a_thousand_days_says_so(
    days: int, is_said: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stage(_: object, __: object, ___: object, commit: Commit, ____: object) -> Shape:
        for number in range(days):
            disk.make_directory(f"{commit.staging}/date={number}")
            disk.replace(f"{commit.staging}/date={number}/part-0.parquet", b"x")
        return Shape(None, TopicLoadSettings())

    disk = SimulatedDisk(random.Random(1))
    now = Topic("clicks", uuid.UUID("0" * 32), {0: OffsetRange(0, 10)})
    monkeypatch.setattr(LoadRun, "_spark", lambda _: None)
    monkeypatch.setattr(LoadRun, "_stage", stage)
    monkeypatch.setattr("kdist.spark.load.job.count_rows", lambda *_: 1)
    outcome = loaded(disk, lambda: now, monkeypatch)
    assert isinstance(outcome.error, CountMissing)  # nothing was read, and so nothing is committed
    assert (f"load 1 has {days:,} days" in caplog.text) == is_said
