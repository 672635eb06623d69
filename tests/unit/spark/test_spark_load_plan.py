"""Which offsets a load has, what it counts of them, and which columns records need."""

from __future__ import annotations

import random
import uuid
from io import BytesIO

import pyarrow
import pyarrow.parquet
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import ArrayType, DataType, DoubleType, LongType, StringType, StructType
from test_spark_load_job import SETTINGS

from kdist.client.cluster import Cluster, parse_addresses
from kdist.config.load_job import load_job
from kdist.errors import UserError
from kdist.model import ZERO_UUID, OffsetRange, TopicPartition
from kdist.network.client import ClientSettings
from kdist.records.build import build_batch
from kdist.spark.load.columns_named import OFFSET, PARTITION
from kdist.spark.load.commit import Commit
from kdist.spark.load.counts import CountMissing, Tally, count_records, note_count, tally
from kdist.spark.load.job import LoadContext, LoadRun
from kdist.spark.load.layout import Run
from kdist.spark.load.manifest import DataFile, Manifest, RowsDisagree, chain_fault
from kdist.spark.load.plan import (
    Topic,
    Unread,
    find_topic,
    hanging,
    plan_load,
    plan_replay,
    require_replayed,
)
from kdist.spark.load.table import once_each, type_text
from kdist.spark.ranges import Range
from kdist.testing.simulated_disk import SimulatedDisk
from kdist.testing.virtual_clock import VirtualClock
from tests.unit.client.producer_world import PORT
from tests.unit.mirror.mirror_world import Scene, play

ID = uuid.UUID(int=7)


def topic(**offsets: tuple[int, int]) -> Topic:
    """A topic with partitions p0, p1, ..."""
    found = {int(name[1:]): OffsetRange(*each) for name, each in offsets.items()}
    return Topic("clicks", ID, found)


def made(load: int, lost: int = 0, **offsets: tuple[int, int]) -> Manifest:
    """A load of it."""
    found = topic(**offsets).offsets
    return Manifest(load, "clicks", str(ID), "job", "0", 0, 0, found, lost, 0, (), ())


TASKS = [Range(TopicPartition("t", n), start, start + 5) for n in (0, 1) for start in (0, 5)]

LONG, TEXT = LongType(), StringType()


def struct(*fields: tuple[str, DataType]) -> StructType:
    found = StructType()
    for name, type_ in fields:
        found.add(name, type_)
    return found


def test_the_first_load_has_every_record_there_is() -> None:
    plan = plan_load(topic(p0=(5, 20), p1=(0, 0)), None)
    assert (plan.number, plan.offsets) == (1, {0: (5, 20), 1: (0, 0)})


def test_the_next_begins_where_the_last_ended_and_new_partitions_at_their_beginning() -> None:
    plan = plan_load(topic(p0=(5, 30), p1=(0, 9)), made(3, p0=(0, 20)))
    assert (plan.number, plan.offsets, plan.lost) == (4, {0: (20, 30), 1: (0, 9)}, 0)


def test_with_nothing_new_there_is_nothing_to_load() -> None:
    assert plan_load(topic(p0=(5, 20)), made(1, p0=(5, 20))).is_empty
    assert not plan_load(topic(p0=(5, 21)), made(1, p0=(5, 20))).is_empty


@pytest.mark.parametrize(
    ("now", "before", "sentence"),
    [
        (
            topic(p0=(30, 40)),
            made(1, p0=(0, 20)),
            "clicks-0 is to be loaded from 20 on, but begins at 30 now: retention deleted 10"
            " records before they were loaded; with --accept-loss, a load goes on after them",
        ),
        (
            topic(p0=(0, 10)),
            made(1, p0=(0, 20)),
            "clicks-0 was loaded up to 20, but ends at 10 now: the brokers have lost records that"
            " were loaded",
        ),
        (
            topic(p0=(0, 10))._replace(unread={0: Unread(0, 10)}),
            made(1, p0=(0, 20)),
            "clicks-0 was loaded up to 20 with isolation.level read_uncommitted, and ends at 10"
            " with read_committed as long as a transaction is open: wait until it has ended",
        ),
        (
            topic(p0=(0, 10))._replace(unread={0: Unread(0, 9)}),
            made(1, p0=(0, 20)),
            "clicks-0 was loaded up to 20, but ends at 10 now: the brokers have lost records that"
            " were loaded",
        ),
        (
            topic(p0=(0, 20)),
            made(1, p0=(0, 20), p1=(0, 5)),
            "clicks has no partition 1, but the output has records of it: it is"
            " not the topic that was loaded",
        ),
        (
            topic(p0=(0, 20))._replace(id=uuid.UUID(int=8)),
            made(1, p0=(0, 20)),
            "clicks is not the topic that was loaded before: it was deleted and recreated, or is"
            " another cluster's; give it an output of its own",
        ),
    ],
)
def test_a_load_that_would_lose_records_is_refused(
    now: Topic, before: Manifest, sentence: str
) -> None:
    with pytest.raises(UserError) as refused:
        plan_load(now, before)
    assert str(refused.value) == sentence


def test_other_records_in_the_place_of_loaded_ones_are_noticed() -> None:
    before = made(1, p0=(0, 20))._replace(epochs={0: 4})
    now = topic(p0=(0, 40))._replace(epochs={0: 6}, ends={0: 12})
    with pytest.raises(UserError) as refused:
        plan_load(now, before)
    assert str(refused.value) == (
        "clicks-0 was loaded up to 20 in leader epoch 4, which ends at 12 now: the brokers have"
        " lost records that were loaded, and have others in their place"
    )
    with pytest.raises(UserError, match="which ends at 12 now"):
        plan_replay(now, None, [before])
    assert plan_load(now._replace(ends={0: 20}), before).offsets == {0: (20, 40)}
    assert plan_load(now._replace(ends={}), before).offsets == {0: (20, 40)}


def test_an_accepted_loss_is_kept_in_the_plan_and_does_not_break_the_chain() -> None:
    before = made(1, p0=(0, 20))
    plan = plan_load(topic(p0=(30, 40)), before, accept_loss=True)
    assert (plan.offsets, plan.lost) == ({0: (30, 40)}, 10)
    assert chain_fault(before, made(2, lost=10, p0=(30, 40))) is None


def test_without_topic_ids_a_recreated_topic_goes_unnoticed() -> None:
    now = topic(p0=(0, 30))._replace(id=ZERO_UUID)
    assert plan_load(now, made(1, p0=(0, 20))).offsets == {0: (20, 30)}


def test_a_replay_has_the_offsets_of_the_loads_it_replaces_and_those_since() -> None:
    replayed = [made(2, p0=(10, 20)), made(3, p0=(20, 30), p1=(0, 5))]
    plan = plan_replay(topic(p0=(0, 40), p1=(0, 8)), made(1, p0=(0, 10)), replayed)
    assert (plan.number, plan.supersedes) == (2, (2, 3))
    assert plan.offsets == {0: (10, 40), 1: (0, 8)}


def test_a_replay_of_deleted_records_is_refused() -> None:
    with pytest.raises(UserError, match="from 10 on, but begins at 15 now"):
        plan_replay(topic(p0=(15, 40)), None, [made(2, p0=(10, 20))])
    with pytest.raises(UserError, match="clicks-0 was loaded up to 30, but ends at 25 now"):
        plan_replay(topic(p0=(0, 25)), None, [made(2, p0=(10, 20)), made(3, p0=(20, 30))])


def test_a_replay_that_finds_fewer_records_than_were_loaded_is_refused() -> None:
    loads = [
        made(number, p0=(10 * number, 10 * number + 10))._replace(files=(DataFile("x", 8, 1),))
        for number in (1, 2)
    ]
    plan = plan_replay(topic(p0=(0, 40)), None, loads)
    require_replayed(plan, 16)
    with pytest.raises(UserError, match="from load 1 on: 1 of its 16 records are gone"):
        require_replayed(plan, 15)


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        (made(3, p0=(20, 30)), "load 3 follows load 1: those between are missing"),
        (
            made(2, p0=(15, 30)),
            "load 2 begins at 15 in partition 0, but load 1 ended at 20",
        ),
        (
            made(2, p0=(25, 30)),
            "load 2 begins at 25 in partition 0, but load 1 ended at 20",
        ),
    ],
)
def test_a_broken_chain_is_reported(after: Manifest, sentence: str) -> None:
    assert chain_fault(made(1, p0=(0, 20)), after) == sentence
    assert chain_fault(made(1, p0=(0, 20)), made(2, p0=(20, 30))) is None


def test_the_counts_of_all_tasks_are_added_up_by_partition() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/counts")
    for number, each in enumerate(TASKS):
        read = Tally(number, 1 << 63)
        note_count(disk, "/counts", each, read, {"a": 1, "b": number})
        note_count(disk, "/counts", each, read, {"a": 1, "b": number})  # the task was done again
    assert count_records(disk, "/counts", TASKS) == ({0: (1, 0), 1: (5, 0)}, {"a": 4, "b": 6})


def test_a_task_without_a_count_is_named() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/counts")
    for each in TASKS[:-1]:
        note_count(disk, "/counts", each, Tally(1))
    with pytest.raises(CountMissing, match="t-1 was read from 5 to 10, but how many records"):
        count_records(disk, "/counts", TASKS)


def staged(disk: SimulatedDisk, commit: Commit, rows: dict[int, list[int]]) -> Manifest:
    """What Spark would have written: a file with rows of these offsets of partitions."""
    pairs = [(partition, each) for partition, offsets in rows.items() for each in offsets]
    columns = pyarrow.table(
        {
            PARTITION: pyarrow.array([each for each, _ in pairs], pyarrow.int32()),
            OFFSET: pyarrow.array([each for _, each in pairs], pyarrow.int64()),
        }
    )
    content = BytesIO()
    pyarrow.parquet.write_table(columns, content)
    disk.replace(f"{commit.staging}/part-0.parquet", content.getvalue())
    file = DataFile("part-0.parquet", len(pairs), len(content.getvalue()))
    offsets = {partition: OffsetRange(0, 12) for partition in rows}
    return Manifest(1, "clicks", "0" * 32, "j", "0", 0, 0, offsets, 0, 0, None, (file,))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({0: [*range(8)], 1: [3]}, "clicks-0: Spark wrote 8 rows of 9 records that it read"),
        ({0: [*range(10)], 1: [3]}, "clicks-0: Spark wrote 10 rows of 9 records that it read"),
        ({0: [*range(10)], 1: []}, "clicks-0: Spark wrote 10 rows of 9 records"),  # 10 in all
        ({0: [*range(9)], 1: [4]}, "clicks-1: Spark wrote as many rows as it read records, but"),
        ({0: [0, 1, 2, 2, 4, 5, 6, 7, 8], 1: [3]}, "clicks-0: Spark wrote as many rows"),
        ({0: [1, 1, 1, 3, 4, 5, 6, 7, 8], 1: [3]}, "clicks-0: Spark wrote as many rows"),
    ],
)
def test_other_rows_than_records_were_read_are_not_committed(
    rows: dict[int, list[int]], sentence: str
) -> None:
    disk = SimulatedDisk(random.Random(1))
    run = LoadRun(load_job(SETTINGS, "x"), LoadContext(disk, VirtualClock(), {}, 1, "0"))
    ranges = {partition: OffsetRange(0, 12) for partition in (0, 1)}
    plan = plan_load(Topic("clicks", ZERO_UUID, ranges), None)
    commit = Commit(disk, "", 1, Run(0, 1), lambda _: None)
    commit.begin()
    for task, offsets in zip(plan.ranges, ([*range(9)], [3]), strict=True):
        read = tally(pyarrow.array(offsets, pyarrow.int64()))
        note_count(disk, commit.counts, task, read, {"b: no column": 1})
    with pytest.raises(RowsDisagree, match=f"^{sentence}"):
        run._counted(staged(disk, commit, rows), plan, commit)
    right = staged(disk, commit, {1: [3], 0: [*range(8, -1, -1)]})
    counted = run._counted(right, plan, commit)
    assert (counted.records, counted.undecoded) == ({0: 9, 1: 1}, 2)
    assert counted.reasons == {"b: no column": 2}


def test_a_name_that_occurs_twice_is_one_field() -> None:
    found = once_each(struct(("a", LONG), ("b", TEXT), ("a", LONG)))
    assert found == struct(("a", LONG), ("b", TEXT))


def test_a_field_of_two_types_is_text() -> None:
    found = once_each(struct(("a", TEXT), ("a", LONG), ("n", struct(("x", LONG))), ("n", LONG)))
    assert found == struct(("a", TEXT), ("n", TEXT))


def test_names_within_objects_and_lists_occur_once_too() -> None:
    items = ArrayType(struct(("y", DoubleType()), ("y", TEXT)))
    found = once_each(struct(("n", struct(("x", LONG), ("x", LONG))), ("l", items)))
    assert found == struct(("n", struct(("x", LONG))), ("l", ArrayType(struct(("y", TEXT)))))


def test_names_within_a_type_are_quoted_where_they_are_no_identifiers() -> None:
    head = struct(("user-agent", TEXT), ("$oid", ArrayType(struct(("a`b", LONG)))), ("id", LONG))
    assert (
        type_text(head)
        == "struct<`user-agent`:string,`$oid`:array<struct<`a``b`:bigint>>,id:bigint>"
    )


def test_a_plain_type_is_written_as_in_manifests_before() -> None:
    plain = struct(("name", TEXT), ("_x1", ArrayType(struct(("y", DoubleType())))))
    assert type_text(plain) == plain.simpleString()


def test_what_is_behind_an_open_transaction_is_known_with_its_age() -> None:
    async def work(scene: Scene) -> None:
        log = scene.brokers.log()
        for number in range(4):
            log.append(bytes(build_batch([b"x", b"y"], timestamp_ms=1_000 * number)))
        log.last_stable = 4
        network = scene.network.host("load")
        cluster = Cluster(network, parse_addresses(f"b0:{PORT}"), ClientSettings("t"), retry_ms=0)
        found = await find_topic(cluster, "t", is_committed_only=True, epochs={})
        assert (found.offsets, found.unread) == ({0: (0, 4)}, {0: (2_000, 4)})
        found = await find_topic(cluster, "t", is_committed_only=False, epochs={})
        assert (found.offsets, found.unread) == ({0: (0, 8)}, {})
        cluster.close()

    play(work)


MINUTES = 60_000


@pytest.mark.parametrize(
    ("before", "began_ms", "is_said"),
    [
        (made(1, p0=(0, 20)), 0, True),
        (made(1, p0=(0, 20)), 46 * MINUTES, False),  # it may still be at work
        (made(1, p0=(0, 19)), 0, False),  # something was loaded since
        (made(1, p1=(0, 20)), 0, False),  # a new partition
        (None, 0, False),
    ],
)
def test_an_old_transaction_that_held_up_the_last_load_too_is_said(
    before: Manifest | None, began_ms: int, is_said: bool
) -> None:
    now = topic(p0=(0, 20), p1=(0, 20))._replace(unread={0: Unread(began_ms, 7)})
    found = hanging(plan_load(now, before), 60 * MINUTES)
    assert (found is not None) == is_said
    assert found is None or str(found).startswith("clicks-0 ends for readers at offset 20")


def test_a_task_notes_a_hundred_reasons_and_how_many_others_there_are() -> None:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/counts")
    undecoded = {f"f{number}: no column": 1 + (number < 100) for number in range(1_000)}
    note_count(disk, "/counts", TASKS[0], Tally(1_100), undecoded)
    _, found = count_records(disk, "/counts", TASKS[:1])
    assert (len(found), found["f99: no column"], found.total()) == (101, 2, 1_100)


@pytest.mark.parametrize("depth", [49, 50, 60, 140])
def test_what_is_more_than_fifty_levels_deep_is_text_and_what_is_not_keeps_its_type(
    depth: int,
) -> None:
    objects: DataType = LONG
    lists: DataType = LONG
    for _ in range(depth):
        objects, lists = struct(("x", objects)), ArrayType(lists)
    for found in once_each(struct(("o", objects), ("l", lists))):
        levels, inner = 0, found.dataType
        while isinstance(inner, StructType | ArrayType):
            inner = inner[0].dataType if isinstance(inner, StructType) else inner.elementType
            levels += 1
        assert (levels, inner) == ((depth, LONG) if depth <= 50 else (50, TEXT))
    cloudpickle.dumps(found)  # as Spark passes a load's data source to its workers
