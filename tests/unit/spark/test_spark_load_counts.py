"""How many records a load's tasks have read: noted by each task, added up by partition."""

from __future__ import annotations

import random

import pytest
from test_spark_load_job import SETTINGS

from kdist.config.load_job import load_job
from kdist.model import ZERO_UUID, OffsetRange, TopicPartition
from kdist.runtime.clock import VirtualClock
from kdist.runtime.simulated_disk import SimulatedDisk
from kdist.spark.load.commit import Commit
from kdist.spark.load.counts import CountMissing, count_records, note_count
from kdist.spark.load.job import LoadContext, LoadRun
from kdist.spark.load.layout import Run
from kdist.spark.load.manifest import DataFile, Manifest, RowsDisagree
from kdist.spark.load.plan import Topic, plan_load
from kdist.spark.ranges import Range

TASKS = [Range(TopicPartition("t", n), start, start + 5) for n in (0, 1) for start in (0, 5)]


def test_the_counts_of_all_tasks_are_added_up_by_partition() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/counts")
    for number, each in enumerate(TASKS):
        note_count(disk, "/counts", each, number)
        note_count(disk, "/counts", each, number)  # the task was done again
    assert count_records(disk, "/counts", TASKS) == {0: 1, 1: 5}


def test_a_task_without_a_count_is_named() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/counts")
    for each in TASKS[:-1]:
        note_count(disk, "/counts", each, 1)
    with pytest.raises(CountMissing, match="t-1 was read from 5 to 10, but how many records"):
        count_records(disk, "/counts", TASKS)


@pytest.mark.parametrize("rows", [8, 10])
def test_other_rows_than_records_were_read_are_not_committed(rows: int) -> None:
    disk = SimulatedDisk(random.Random(1))
    run = LoadRun(load_job(SETTINGS, "x"), LoadContext(disk, VirtualClock(), {}, 1, "0"))
    plan = plan_load(Topic("clicks", ZERO_UUID, {0: OffsetRange(0, 12)}), None)
    commit = Commit(disk, "", 1, Run(0, 1), lambda _: None)
    commit.begin()
    note_count(disk, commit.counts, plan.ranges[0], 9)
    file = DataFile("date=2013-01-01/part-0.parquet", rows, 1)
    made = Manifest(1, "clicks", "0" * 32, "j", "0", 0, 0, plan.offsets, 0, 0, None, (file,))
    with pytest.raises(RowsDisagree, match=f"Spark wrote {rows} rows of 9 records that it read"):
        run._counted(made, plan, commit)
    right = made._replace(files=(file._replace(rows=9),))
    assert run._counted(right, plan, commit).records == {0: 9}
