"""Offset checkpoints: golden text, round trips, and every way a line can be wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.model import TopicPartition
from kdist.runtime.simulated_disk import SimulatedDisk
from kdist.storage.checkpoints import (
    decode_offsets,
    encode_offsets,
    load_offsets,
    save_offsets,
)
from kdist.storage.faults import CorruptFile

PATH = "/d/replication-offset-checkpoint"
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


def test_a_checkpoint_is_version_count_and_sorted_lines():
    assert encode_offsets(OFFSETS) == GOLDEN
    assert decode_offsets(GOLDEN, PATH) == OFFSETS


def test_an_empty_checkpoint_has_two_lines():
    assert encode_offsets({}) == b"0\n0\n"
    assert decode_offsets(b"0\n0\n", PATH) == {}


def test_an_empty_file_is_an_empty_checkpoint():
    assert decode_offsets(b"", PATH) == {}


def test_kafkas_unsorted_lines_are_read():
    content = b"0\n2\ncodec-zstd 0 1300\nappend-time 0 640\n"
    assert decode_offsets(content, PATH) == {
        TopicPartition("codec-zstd", 0): 1300,
        TopicPartition("append-time", 0): 640,
    }


@given(offset_maps)
def test_every_checkpoint_reads_back(offsets):
    assert decode_offsets(encode_offsets(offsets), PATH) == offsets


@given(offset_maps, st.data())
def test_a_checkpoint_cut_anywhere_is_corrupt(offsets, data):
    content = encode_offsets(offsets)
    size = data.draw(st.integers(1, len(content) - 1))
    with pytest.raises(CorruptFile):
        decode_offsets(content[:size], PATH)


@given(st.binary(max_size=40) | st.text("012 \nab-", max_size=40).map(str.encode))
def test_any_bytes_are_a_checkpoint_or_corrupt(content):
    try:
        offsets = decode_offsets(content, PATH)
    except CorruptFile:
        return
    assert decode_offsets(encode_offsets(offsets), PATH) == offsets


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
        decode_offsets(content, PATH)
    assert (caught.value.path, caught.value.line) == (PATH, line)
    assert str(caught.value).startswith(PATH if line is None else f"{PATH}, line {line}: ")


def test_a_saved_checkpoint_survives_a_power_loss():
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/d")
    disk.sync_directory("/")
    save_offsets(disk, PATH, {TopicPartition("t", 0): 1})
    save_offsets(disk, PATH, OFFSETS)
    assert load_offsets(disk.crash(), PATH) == OFFSETS


def test_a_missing_checkpoint_is_empty():
    assert load_offsets(SimulatedDisk(random.Random(1)), PATH) == {}


@pytest.mark.parametrize("content", [b"9" * 10_000 + b"\n", b"0\n1\n" + b"a" * 10_000 + b" 0 0\n"])
def test_the_error_for_a_file_that_is_no_checkpoint_quotes_its_beginning(content):
    with pytest.raises(CorruptFile) as caught:
        decode_offsets(content, PATH)
    assert len(str(caught.value)) < 300
