"""Down-converted answers: what is in them, the memory they reuse, how much is read for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import cast

import pytest

from kdist.broker.down_conversion import MessageSets, convert, converting
from kdist.errors import ApiError, Error
from kdist.records.batch import HEADER, HEADER_SIZE, Batch, read_header, seal
from kdist.records.build import build_batch
from kdist.records.compression import Codec
from kdist.records.convert import Budget
from kdist.records.message_set import iter_messages
from kdist.runtime.steps import Steps, run_steps
from kdist.storage.reading import Slice, read
from tests.unit.replication.replication_world import VIEWS, World, append

ANSWERS = 20
_PROGRAM = f"""
import resource
from types import SimpleNamespace
from kdist.records.build import build_batch
from kdist.records.convert import Budget
from kdist.broker.down_conversion import converting
from kdist.runtime.steps import Steps, run_steps

batch = bytes(build_batch([b"x" * 1024] * 1000, timestamp_ms=0))
part = SimpleNamespace(size=len(batch), read=lambda bytes_max: bytes(bytearray(batch)))
for answer in range(-3, {ANSWERS}):
    if not answer:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):  # partitions
        run_steps(converting(part, 0, 0, Budget()))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_down_converted_answer_reuses_the_memory_of_the_last_one() -> None:
    """A megabyte of new pages takes 250 page faults. This depends on glibc's allocator."""
    program = [sys.executable, "-c", _PROGRAM]
    faults = int(subprocess.run(program, capture_output=True, check=True, text=True).stdout)
    assert faults < 50 * ANSWERS


class Part:
    """A slice that counts the bytes read from it."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.size = len(content)
        self.bytes_read = 0

    def read(self, bytes_max: int | None = None) -> bytes:
        content = self.content[:bytes_max]
        self.bytes_read += len(content)
        return content


def test_no_more_is_read_than_may_be_converted() -> None:
    batch = bytes(build_batch([bytes(1000)] * 100, timestamp_ms=0))
    part = Part(batch * 300)
    sent = run_steps(converting(cast(Slice, part), 1, 0, Budget(bytes=1_000_000)))
    assert part.bytes_read == 1_000_000
    assert len(list(iter_messages(sent))) == 900


def test_a_first_batch_above_the_limit_is_converted_whole() -> None:
    batch = bytes(build_batch([bytes(1000)] * 100, timestamp_ms=0))
    sent = run_steps(converting(cast(Slice, Part(batch * 3)), 1, 0, Budget(bytes=1000)))
    assert len(list(iter_messages(sent))) == 100


def test_a_part_of_a_batch_is_a_part_of_a_message_as_large_as_the_batch() -> None:
    batch = bytes(build_batch([bytes(1000)], timestamp_ms=0))
    for size in (10, 200):
        sent = run_steps(converting(cast(Slice, Part(batch[:size])), 1, 7, Budget()))
        told = len(batch) if size == 200 else HEADER_SIZE
        assert sent == (7).to_bytes(8, "big") + told.to_bytes(4, "big")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_from_the_compacted_end_of_a_batch_on_a_part_of_a_message_is_sent(codec: Codec) -> None:
    """Else a consumer whose fetch size is that of the batch would ask again and again."""
    batch = build_batch([bytes(1000)], timestamp_ms=0, codec=codec)
    HEADER.pack_into(batch, 0, *read_header(batch)._replace(last_offset_delta=9))
    seal(batch, 0, len(batch))
    part = cast(Slice, Part(bytes(batch)))
    assert run_steps(converting(part, 1, 0, Budget())) != b""
    sent = run_steps(converting(part, 1, 5, Budget()))
    assert sent == (5).to_bytes(8, "big") + len(batch).to_bytes(4, "big")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])  # at once, and by a thread
def test_each_partition_has_its_message_set_or_error_and_its_slice_is_released(
    codec: Codec,
) -> None:
    world = World()
    clicks, views = world.lead(), world.lead(VIEWS)
    append(world, clicks, b"a")
    append(world, clicks, b"b", codec=codec)
    append(world, views, b"c", codec=Codec.ZSTD)
    parts = [read(clicks.log, 1, 999), None, read(views.log, 0, 999)]
    heard: list[MessageSets] = []
    convert(
        world.replicas.conversions,
        list(zip(parts, (1, 5, 0), strict=True)),
        1,
        lambda: True,
        heard.append,
        _raise,
    )
    world.settle()
    ((found, nothing, refused),) = heard
    assert isinstance(found, bytes)
    assert [message.offset for message in iter_messages(found)] == [1]
    assert nothing == b""
    assert isinstance(refused, ApiError)
    assert refused.error is Error.UNSUPPORTED_COMPRESSION_TYPE
    for partition in (clicks, views):
        assert not partition.log.active._pins


def test_what_is_cut_off_before_its_conversion_begins_is_not_sent() -> None:
    world = World()
    partition = world.lead()
    append(world, partition, b"lost")
    part = read(partition.log, 0, 999)
    heard: list[MessageSets] = []
    conversions, is_over = world.replicas.conversions, [False]

    def earlier() -> Steps[None]:
        while not is_over[0]:
            yield lambda: None

    conversions.begin(earlier(), lambda _: None, _raise)
    convert(conversions, [(part, 0), (None, 0)], 1, lambda: True, heard.append, _raise)
    world.directory.trimmer.truncate(partition.log, 0, lambda _: None)
    assert world.tasks.run_until(lambda: partition.log.end_offset == 0, 1000)
    append(world, partition, b"other")
    is_over[0] = True
    world.settle()
    ((refused, nothing),) = heard
    assert isinstance(refused, ApiError)
    assert (refused.error, nothing) == (Error.NOT_LEADER_OR_FOLLOWER, b"")


def test_records_that_cannot_be_converted_leave_nothing_to_the_garbage_collector(
    uncollected: Callable[[Error], list[ApiError]],
) -> None:
    damaged = build_batch([bytes(100_000)], timestamp_ms=0, codec=Codec.GZIP)
    damaged[-1] ^= 1
    seal(damaged, 0, len(damaged))
    world = World()
    clicks = world.lead()
    clicks.append([Batch(read_header(damaged), memoryview(damaged))], world.clock.now_ms())
    heard: list[MessageSets] = []
    asked = [(read(clicks.log, 0, 999), 0)]
    convert(world.replicas.conversions, asked, 1, lambda: True, heard.append, _raise)
    world.settle()
    ((refused,),) = heard
    assert isinstance(refused, ApiError)
    assert refused.error is Error.CORRUPT_MESSAGE
    heard.clear()
    del refused
    assert uncollected(Error.CORRUPT_MESSAGE) == []


def _raise(error: BaseException) -> None:
    raise error
