"""What a load tells while it runs."""

from __future__ import annotations

import random
from queue import SimpleQueue

from test_spark_load_commit import OUTPUT, manifest, stage

from kdist.model import TopicPartition
from kdist.spark.load.commit import Commit
from kdist.spark.load.counts import Tally, note_count
from kdist.spark.load.layout import Run
from kdist.spark.load.ledger import Ledger
from kdist.spark.load.progress import Progress, Watch, told_at_intervals
from kdist.spark.ranges import Range
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.virtual_clock import VirtualClock

TASKS = [Range(TopicPartition("clicks", 0), 0, 70), Range(TopicPartition("clicks", 0), 70, 100)]


def test_progress_is_what_tasks_have_noted_and_does_not_fall_when_the_load_is_committed() -> None:
    disk, clock = SimulatedDisk(random.Random(1)), VirtualClock()
    ledger = Ledger(disk, OUTPUT, "clicks")
    ledger.lock()
    commit = Commit(disk, ledger.directory, 1, Run(0, 1), lambda _: None)
    watch = Watch("clicks", TASKS, commit, disk, clock)
    seen = [watch.look()]
    stage(disk, commit)
    note_count(disk, commit.counts, TASKS[1], Tally(30))
    clock.advance_ms(30_000)
    watch.doing = "committing"
    seen.append(watch.look())
    commit.publish(manifest(1, 0, 100))
    seen.append(watch.look())
    assert [(each.elapsed_ms, each.doing, each.read) for each in seen] == [
        (0, "starting Spark", 0),
        (30_000, "committing", 30),
        (30_000, "committing", 30),
    ]
    assert {each.offsets for each in seen} == {100}
    assert [each.written_bytes for each in seen] == [0, 200, 200]  # two files, without the note


def test_progress_is_told_again_and_again_until_the_load_ends() -> None:
    looks = iter(range(1_000_000_000))
    told: SimpleQueue[Progress] = SimpleQueue()

    def look() -> Progress:
        return Progress("clicks", 1, "reading", next(looks), 0, 100, 0)

    with told_at_intervals(look, told.put, every_s=0):
        assert [told.get(timeout=60).elapsed_ms for _ in range(3)] == [0, 1, 2]
    count = told.qsize()
    assert next(looks) == count + 3  # nobody looks any more
