"""Names of segment files and partition directories, and foreign entries beside them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_world import CLICKS, World, append, expected_lines, lines, on_real_disk, overwrite

from kdist.errors import UserError
from kdist.model import TOPIC_NAME_MAX, TopicPartition
from kdist.storage.names import (
    DIRECTORY_NAME_MAX,
    DirectoryName,
    DirectoryState,
    FileState,
    SegmentName,
    Suffix,
    directory_name,
    parse_directory_name,
    parse_segment_name,
    retired_directory_name,
    segment_name,
)

UNIQUE = uuid.UUID("ff328b1c29834c30897c73946f6dd22d")
topics = st.text("abz019._-", min_size=1, max_size=TOPIC_NAME_MAX).filter(
    lambda name: name not in (".", "..")
)
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))


def test_a_segment_file_carries_its_base_offset_in_twenty_digits():
    assert segment_name(42, Suffix.LOG) == "00000000000000000042.log"
    assert segment_name(0, Suffix.TIME_INDEX) == "00000000000000000000.timeindex"
    assert (
        segment_name(2**63 - 1, Suffix.TXN_INDEX, FileState.DELETED)
        == "09223372036854775807.txnindex.deleted"
    )


@given(st.integers(0, 2**63 - 1), st.sampled_from(Suffix), st.sampled_from(FileState))
def test_every_segment_name_reads_back(base_offset, suffix, state):
    name = segment_name(base_offset, suffix, state)
    assert parse_segment_name(name) == SegmentName(base_offset, suffix, state)


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_segment_names_sort_as_their_offsets(offsets):
    names = [segment_name(offset, Suffix.LOG) for offset in sorted(offsets)]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "leader-epoch-checkpoint",
        "42.log",
        "00000000000000000042",
        "00000000000000000042.txt",
        "00000000000000000042.log.bak",
        "00000000000000000042.log.deleted.deleted",
        "00000000000000000042.log\n",
        "0000000000000000004x.log",
        "-0000000000000000042.log",
        "\u06600000000000000000042.log",
        "09223372036854775808.log",
        "000000000000000000042.log",
    ],
)
def test_other_file_names_are_not_segment_files(name):
    assert parse_segment_name(name) is None


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("clicks-0", "clicks", 0),
        ("a-b.c-1-2", "a-b.c-1", 2),
        ("events-2024-11", "events-2024", 11),
        ("t--1", "t-", 1),
        ("--1", "-", 1),
        ("x.deleted-3", "x.deleted", 3),
        ("orders-delete-0", "orders-delete", 0),
        ("a.b-delete-0", "a.b-delete", 0),
        ("__consumer_offsets-49", "__consumer_offsets", 49),
        ("t-2147483647", "t", 2147483647),
    ],
)
def test_a_live_directory_is_named_topic_dash_partition(name, topic, partition):
    assert parse_directory_name(name) == DirectoryName(TopicPartition(topic, partition))
    assert directory_name(TopicPartition(topic, partition)) == name


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("deleted-topic-0.ff328b1c29834c30897c73946f6dd22d-delete", DirectoryState.DELETED),
        ("deleted-topic-0.ff328b1c29834c30897c73946f6dd22d-stray", DirectoryState.STRAY),
        ("deleted-topic-0.ff328b1c29834c30897c73946f6dd22d-future", DirectoryState.FUTURE),
    ],
)
def test_the_name_of_a_retired_directory_says_why(name, state):
    assert parse_directory_name(name) == DirectoryName(TopicPartition("deleted-topic", 0), state)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-",
        "-0",
        "clicks",
        "clicks-",
        "clicks-x",
        "clicks-007",
        "clicks-+1",
        "clicks-2147483648",
        "clicks-\u0663",
        "clicks-0\n",
        ".-0",
        "..-0",
        "lost+found",
        "click s-0",
        "clicks-0.ff-gone",
        "clicks-0-delete",
        "clicks-0.-delete",
        "clicks.ff-delete",
        "clicks-0.ff-delete-delete.",
        "x" * 250 + "-0",
    ],
)
def test_other_directory_names_are_not_partitions(name):
    assert parse_directory_name(name) is None


@given(partitions)
def test_every_live_directory_reads_back(partition):
    assert parse_directory_name(directory_name(partition)) == DirectoryName(partition)


@given(
    partitions, st.sampled_from([DirectoryState.DELETED, DirectoryState.STRAY]), st.uuids(version=4)
)
def test_every_retired_directory_fits_and_reads_back(partition, state, unique):
    name = retired_directory_name(partition, state, unique)
    parsed = parse_directory_name(name)
    assert len(name) <= DIRECTORY_NAME_MAX
    assert parsed is not None
    assert (parsed.state, parsed.partition.partition) == (state, partition.partition)
    cut = parsed.partition.topic
    assert partition.topic.startswith(cut)
    assert cut == partition.topic or len(name) == DIRECTORY_NAME_MAX


def test_a_retired_directory_is_named_as_kafka_names_it():
    partition = TopicPartition("deleted-topic", 0)
    assert (
        retired_directory_name(partition, DirectoryState.DELETED, UNIQUE)
        == "deleted-topic-0.ff328b1c29834c30897c73946f6dd22d-delete"
    )


def test_the_topic_of_a_retired_directory_is_cut_to_fit_255_bytes():
    name = retired_directory_name(TopicPartition("x" * 249, 12), DirectoryState.DELETED, UNIQUE)
    assert name == "x" * 212 + "-12.ff328b1c29834c30897c73946f6dd22d-delete"
    assert len(name) == 255


def test_directories_that_are_no_partitions_are_kept_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    append(world, world.log(), 3)
    world.stop()
    for name in ("lost+found", "clicks-007", "clicks-1.abc-stray"):
        world.disk.make_directory(f"/d01/{name}")
    overwrite(world.disk, "/d01/clicks-5", b"a file")
    overwrite(world.disk, "/d01/meta.properties~", b"an editor's")
    world.open()
    world.settle(1000)
    assert sorted(world.directory.logs) == [CLICKS]
    assert world.disk.exists("/d01/clicks-1.abc-stray")
    assert [each.getMessage() for each in caplog.records] == [
        "3 entries of /d01 are no partitions to open, and are left alone:"
        " clicks-007, clicks-1.abc-stray, clicks-5"
    ]
    for number in range(20):
        world.disk.make_directory(f"/d01/backup {number}")
    caplog.clear()
    world.restart()
    assert (
        caplog.records[0]
        .getMessage()
        .endswith("backup 0, backup 1, backup 10, backup 11, backup 12 and 18 more")
    )


@pytest.mark.parametrize("name", ["clicks-7", f"clicks-7.{7:032x}-delete"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_partition_that_is_a_symbolic_link_is_refused(
    tmp_path: Path, name: str, is_there: bool
) -> None:
    """Flushes would not reach its disk, and after its deletion a broker could not start."""
    (tmp_path / "d01").mkdir()
    world = on_real_disk(tmp_path / "d01")
    append(world, world.log(), 3)
    world.stop()
    if is_there:
        (tmp_path / "elsewhere").mkdir()
    (tmp_path / "d01" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"clicks-7\S* is a symbolic link"):
        world.open()
    (tmp_path / "d01" / name).unlink()
    assert lines(world.open().logs[CLICKS]) == expected_lines(3)
