"""Files beside the logs: whose a directory is, and checkpoints of offsets: golden, or refused."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import CorruptFile, UserError
from kdist.model import TopicPartition, format_uuid, parse_uuid
from kdist.storage.checkpoints import (
    decode_offsets,
    encode_offsets,
    load_offsets,
    save_offsets,
)
from kdist.storage.meta import (
    BootNote,
    MetaProperties,
    check_meta,
    claim_directory,
    decode_meta,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_meta,
    encode_partition_metadata,
    load_partition_metadata,
    note_adopted,
    note_boot,
    save_clean_shutdown,
    save_partition_metadata,
)
from kdist.testing.simulated_disk import SimulatedDisk

PATH = "/d/meta.properties"
CLUSTER = "kdistPeerTestsCluster0"
FROM_KAFKA = (
    b"#\n#Fri Nov 20 11:40:43 UTC 2026\nnode.id=1\ndirectory.id=rV2zlrlP79OCujTKmCtNqA\n"
    b"version=1\ncluster.id=kdistPeerTestsCluster0\n"
)
TOPIC_ID = uuid.UUID("491859c5-b2da-4ab2-aee8-5c70b416676e")
PARTITION_METADATA = b"version: 0\ntopic_id: SRhZxbLaSrKu6FxwtBZnbg"


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


CHECKPOINT = "/d/replication-offset-checkpoint"
GOLDEN = b"0\n3\na.b-c 10 7\nclicks 0 4711\nclicks 2 9223372036854775807\n"
OFFSETS = {
    TopicPartition("clicks", 2): 2**63 - 1,
    TopicPartition("clicks", 0): 4711,
    TopicPartition("a.b-c", 10): 7,
}
offset_maps = st.dictionaries(
    st.builds(
        TopicPartition, st.text("abc.-_0", min_size=3, max_size=9), st.integers(0, 2**31 - 1)
    ),
    st.integers(0, 2**63 - 1),
    max_size=20,
)


def test_meta_properties_of_a_zookeeper_cluster_are_version_0():
    content = b"broker.id=12\ncluster.id=kdistPeerTestsCluster0\nversion=0\n"
    assert encode_meta(MetaProperties(12, CLUSTER)) == content
    assert decode_meta(content, PATH) == MetaProperties(12, CLUSTER)


def test_meta_properties_of_kafka_without_zookeeper_are_read():
    meta = MetaProperties(1, CLUSTER, "rV2zlrlP79OCujTKmCtNqA", version=1)
    assert decode_meta(FROM_KAFKA, PATH) == meta
    assert decode_meta(encode_meta(meta), PATH) == meta


def test_spaces_comments_and_escapes_are_read_as_java_does():
    content = b"! note\r\n\r\n version = 0\r\nbroker.id = 3\r\ncluster.id=a\\:b\\=c\\\\d\r\n"
    assert decode_meta(content, PATH) == MetaProperties(3, "a:b=c\\d")


@given(
    st.integers(0, 2**31 - 1),
    st.text(r"aZ09_-:=#!\.", min_size=1, max_size=30),
    st.none() | st.uuids().map(format_uuid),
    st.sampled_from([0, 1]),
)
def test_every_meta_properties_reads_back(broker_id, cluster_id, directory_id, version):
    meta = MetaProperties(broker_id, cluster_id, directory_id, version)
    assert decode_meta(encode_meta(meta), PATH) == meta


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "has no version"),
        (b"\0" * 64, "is not <key>=<value>"),
        (b"broker.id=1\ncluster.id=c\n", "has no version"),
        (b"version=2\nbroker.id=1\ncluster.id=c\n", "version '2' is neither 0 nor 1"),
        (b"version=0\ncluster.id=c\n", "has no broker.id"),
        (b"version=0\nnode.id=1\ncluster.id=c\n", "has no broker.id"),
        (b"version=1\nbroker.id=1\ncluster.id=c\n", "has no node.id"),
        (b"version=0\nbroker.id=1\n", "has no cluster.id"),
        (b"version=0\nbroker.id=1\ncluster.id=\n", "has no cluster.id"),
        (b"version=0\nbroker.id=one\ncluster.id=c\n", "'one' is not a number"),
        (b"version=0\nbroker.id=-1\ncluster.id=c\n", "'-1' is not a number"),
        (b"version=0\nbroker.id\n", "line 2: 'broker.id' is not <key>=<value>"),
        (b"version=0\nbroker.id=1\ncluster.id=\xff\n", "is not ASCII text"),
    ],
)
def test_meta_properties_that_cannot_be_read_are_refused(content, reason):
    with pytest.raises(CorruptFile) as caught:
        decode_meta(content, PATH)
    assert str(caught.value).startswith(PATH)
    assert reason in str(caught.value)


def claim(disk, broker_id: int = 3, cluster_id: str = CLUSTER) -> MetaProperties:
    return claim_directory(disk, "/d", broker_id, cluster_id, random.Random(7))


def test_a_blank_directory_is_claimed_by_the_broker_for_good(disk):
    first = claim(disk)
    assert first == MetaProperties(3, CLUSTER, first.directory_id)
    assert claim(disk.crash()) == first


def test_each_disk_gets_an_id_of_its_own_also_one_of_an_older_release(disk):
    disk.replace(PATH, encode_meta(MetaProperties(3, CLUSTER)))
    first = claim(disk)
    assert parse_uuid(first.directory_id)
    assert claim(disk) == first
    disk.replace(PATH, encode_meta(MetaProperties(3, CLUSTER)))
    assert claim_directory(disk, "/d", 3, CLUSTER, random.Random(8)) != first


def test_a_full_disk_without_an_id_can_be_used_all_the_same(disk):
    meta = MetaProperties(3, CLUSTER)
    disk.replace(PATH, encode_meta(meta))
    disk.fill(0)
    assert claim(disk) == meta


def test_a_directory_with_only_what_a_filesystem_puts_there_is_blank(disk):
    disk.make_directory("/d/lost+found")
    disk.create("/d/.lock").close()
    assert claim(disk)._replace(directory_id=None) == MetaProperties(3, CLUSTER)


def test_the_directory_of_another_broker_is_refused(disk):
    claim(disk)
    before = disk.read(PATH)
    with pytest.raises(UserError, match=r"belongs to broker 3, but broker\.id is 4"):
        claim(disk, 4)
    assert disk.read(PATH) == before


def test_the_directory_of_another_cluster_is_refused(disk):
    claim(disk)
    with pytest.raises(UserError, match="belongs to cluster 'kdistPeerTestsCluster0', but this"):
        claim(disk, 3, "other")


@pytest.mark.parametrize("content", [b"\0" * 10_000, b"version=" + b"9" * 10_000])
def test_the_error_for_a_file_that_is_no_meta_properties_quotes_its_beginning(content):
    with pytest.raises(CorruptFile) as caught:
        decode_meta(content, PATH)
    assert len(str(caught.value)) < 300


def test_another_cluster_is_named_before_another_broker():
    with pytest.raises(UserError, match="cluster"):
        check_meta(MetaProperties(1, "a"), 2, "b", PATH)


def test_a_directory_with_partitions_but_no_meta_properties_is_not_claimed(disk):
    disk.make_directory("/d/clicks-0")
    with pytest.raises(UserError, match=r"holds partitions and no meta\.properties"):
        claim(disk)
    assert not disk.exists(PATH)


def test_unreadable_meta_properties_are_not_replaced(disk):
    disk.replace(PATH, b"")
    with pytest.raises(CorruptFile):
        claim(disk)
    assert disk.read(PATH) == b""


def test_partition_metadata_is_what_kafka_writes():
    assert encode_partition_metadata(TOPIC_ID) == PARTITION_METADATA
    assert decode_partition_metadata(PARTITION_METADATA, "p") == TOPIC_ID
    assert decode_partition_metadata(PARTITION_METADATA + b"\n", "p") == TOPIC_ID


def test_partition_metadata_cut_anywhere_is_corrupt():
    for size in range(len(PARTITION_METADATA)):
        with pytest.raises(CorruptFile):
            decode_partition_metadata(PARTITION_METADATA[:size], "p")


@pytest.mark.parametrize(
    "content",
    [
        b"version: 1\ntopic_id: SRhZxbLaSrKu6FxwtBZnbg",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: 0\ntopic_id: SRhZxbLaSrKu6FxwtBZnb\xff",
        b"topic_id: SRhZxbLaSrKu6FxwtBZnbg\nversion: 0",
        b"version: 0\ntopic_id: SRhZxbLaSrKu6FxwtBZnbg\nmore",
    ],
)
def test_other_partition_metadata_is_corrupt(content):
    with pytest.raises(CorruptFile):
        decode_partition_metadata(content, "p")


def test_saved_partition_metadata_survives_a_power_loss(disk):
    assert load_partition_metadata(disk, "/d/partition.metadata") is None
    save_partition_metadata(disk, "/d/partition.metadata", TOPIC_ID)
    assert load_partition_metadata(disk.crash(), "/d/partition.metadata") == TOPIC_ID


def test_the_clean_shutdown_marker_is_what_kafka_writes():
    assert encode_clean_shutdown(147) == b'{"version":0,"brokerEpoch":147}'


def test_a_saved_marker_survives_a_power_loss(disk):
    save_clean_shutdown(disk, "/d/.kafka_cleanshutdown", 5)
    assert disk.crash().read("/d/.kafka_cleanshutdown") == encode_clean_shutdown(5)


BOOT = "/d/boot.json"


def note(disk: SimulatedDisk, boot_id: str, *, was_clean: bool = False) -> str:
    rng = random.Random(boot_id)
    return note_boot(disk, BOOT, boot_id, rng, was_clean=was_clean).content_id


def test_a_disk_keeps_its_content_id_while_its_host_runs_and_over_clean_stops(
    disk: SimulatedDisk,
) -> None:
    first = note(disk, "a")
    assert note(disk, "a") == first
    assert note(disk, "b", was_clean=True) == first
    assert note(disk, "b") == first
    assert BootNote.decode(disk.read(BOOT), BOOT) == BootNote("b", first, is_adopted=False)


def test_a_disk_whose_host_went_down_with_a_broker_running_has_another_content_id(
    disk: SimulatedDisk,
) -> None:
    first = note(disk, "a")
    disk = disk.crash(random.Random(1))
    second = note(disk, "b")
    assert second != first
    assert note(disk, "b") == second
    assert note(disk, "c") not in (first, second)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"boot_id":"a","content_id":7}', b"\xff"])
def test_a_note_that_cannot_be_read_is_as_good_as_none(disk: SimulatedDisk, content: bytes) -> None:
    first = note(disk, "a")
    disk.replace(BOOT, content)
    with pytest.raises(CorruptFile):
        BootNote.decode(content, BOOT)
    assert note(disk, "b") != first


def test_a_note_of_a_broker_that_did_not_tell_of_adoption_is_of_one_that_was(
    disk: SimulatedDisk,
) -> None:
    disk.replace(BOOT, b'{"version":1,"boot_id":"a","content_id":"c"}')
    assert note_boot(disk, BOOT, "a", random.Random(), was_clean=False) == BootNote("a", "c")


def test_a_disk_is_adopted_once_that_is_noted(disk: SimulatedDisk) -> None:
    for boot_id in "ab":
        found = note_boot(disk, BOOT, boot_id, random.Random(), was_clean=False)
        assert not found.is_adopted
    note_adopted(disk, BOOT, found)
    disk = disk.crash()
    for boot_id in "bc":
        assert note_boot(disk, BOOT, boot_id, random.Random(), was_clean=False).is_adopted


def test_a_boot_that_a_full_disk_cannot_note_is_known_for_a_loss_at_the_next_start(
    disk: SimulatedDisk,
) -> None:
    first = note(disk, "a")
    disk.fill(0)
    second = note(disk, "b")
    assert second != first
    assert BootNote.decode(disk.read(BOOT), BOOT) == BootNote("a", first, is_adopted=False)
    assert note(disk, "b", was_clean=True) == first


def test_a_checkpoint_is_version_count_and_sorted_lines():
    assert encode_offsets(OFFSETS) == GOLDEN
    assert decode_offsets(GOLDEN, CHECKPOINT) == OFFSETS


def test_an_empty_checkpoint_has_two_lines():
    assert encode_offsets({}) == b"0\n0\n"
    assert decode_offsets(b"0\n0\n", CHECKPOINT) == {}


def test_an_empty_file_is_an_empty_checkpoint():
    assert decode_offsets(b"", CHECKPOINT) == {}


def test_kafkas_unsorted_lines_are_read():
    content = b"0\n2\ncodec-zstd 0 1300\nappend-time 0 640\n"
    assert decode_offsets(content, CHECKPOINT) == {
        TopicPartition("codec-zstd", 0): 1300,
        TopicPartition("append-time", 0): 640,
    }


@given(offset_maps)
def test_every_checkpoint_reads_back(offsets):
    assert decode_offsets(encode_offsets(offsets), CHECKPOINT) == offsets


@given(offset_maps, st.data())
def test_a_checkpoint_cut_anywhere_is_corrupt(offsets, data):
    content = encode_offsets(offsets)
    size = data.draw(st.integers(1, len(content) - 1))
    with pytest.raises(CorruptFile):
        decode_offsets(content[:size], CHECKPOINT)


@given(st.binary(max_size=40) | st.text("012 \nab-", max_size=40).map(str.encode))
def test_any_bytes_are_a_checkpoint_or_corrupt(content):
    try:
        offsets = decode_offsets(content, CHECKPOINT)
    except CorruptFile:
        return
    assert decode_offsets(encode_offsets(offsets), CHECKPOINT) == offsets


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"1\n0\n", 1),
        (b"x\n0\n", 1),
        (b"0\n", None),
        (b"0\nx\n", 2),
        (b"0\n-1\n", 2),
        (b"0\n1\n", None),
        (b"0\n0\nt 0 1\n", None),
        (b"0\n2\nt 0 1\n", None),
        (b"0\n1\nt 0 1", None),
        (b"0\n1\nt 0 1\n\n", None),
        (b"0\n1\nt 0\n", 3),
        (b"0\n1\nt 0 1 2\n", 3),
        (b"0\n1\n\n", 3),
        (b"0\n2\nt 0 1\nt 1 -5\n", 4),
        (b"0\n1\nt -1 5\n", 3),
        (b"0\n1\nt 0 +5\n", 3),
        (b"0\n1\nt 0 1_0\n", 3),
        (b"0\n1\nt 0 0x1\n", 3),
        (b"0\n1\nt 0 9223372036854775808\n", 3),
        (b"0\n1\nt 2147483648 0\n", 3),
        (b"0\n1\nt 0 " + b"9" * 5000 + b"\n", 3),
        (b"0\n" + b"9" * 5000 + b"\n", 2),
        (b"0\n1\nt/u 0 0\n", 3),
        (b"0\n1\n.. 0 0\n", 3),
        (b"0\n2\nt 0 1\nt 0 1\n", 4),
        ("0\n1\nt 0 \u0661\n".encode(), None),
        (b"\0\0\0\0", None),
    ],
)
def test_a_malformed_checkpoint_is_corrupt_at_its_line(content, line):
    with pytest.raises(CorruptFile) as caught:
        decode_offsets(content, CHECKPOINT)
    assert (caught.value.path, caught.value.line) == (CHECKPOINT, line)
    assert str(caught.value).startswith(
        CHECKPOINT if line is None else f"{CHECKPOINT}, line {line}: "
    )


def test_a_saved_checkpoint_survives_a_power_loss():
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/d")
    disk.sync_directory("/")
    save_offsets(disk, CHECKPOINT, {TopicPartition("t", 0): 1})
    save_offsets(disk, CHECKPOINT, OFFSETS)
    assert load_offsets(disk.crash(), CHECKPOINT) == OFFSETS


def test_a_missing_checkpoint_is_empty():
    assert load_offsets(SimulatedDisk(random.Random(1)), CHECKPOINT) == {}


@pytest.mark.parametrize("content", [b"9" * 10_000 + b"\n", b"0\n1\n" + b"a" * 10_000 + b" 0 0\n"])
def test_the_error_for_a_file_that_is_no_checkpoint_quotes_its_beginning(content):
    with pytest.raises(CorruptFile) as caught:
        decode_offsets(content, CHECKPOINT)
    assert len(str(caught.value)) < 300
