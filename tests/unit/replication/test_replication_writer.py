"""The writer on a fast, slow, full or failing disk: which thread writes, and what callers get."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import DiskFailed, DiskFull, Error, OutOfDescriptors
from kdist.records.batch import Batch, iter_headers, read_header
from kdist.replication.partition import Partition
from kdist.replication.writer import THREAD_FOR_NS, WATCH_FOR_NS
from kdist.storage.append import Append
from kdist.testing.simulated_faults import Call
from tests.examples import examples
from tests.refusals import refused
from tests.unit.replication.replication_world import START_MS, World, batch, values_in

THREAD_FOR_MS = THREAD_FOR_NS / 1_000_000
WATCH_FOR_MS = WATCH_FOR_NS / 1_000_000


class Slowness:
    """Makes writes to segments take `ms`, which are waits for the disk if `is_waiting`."""

    def __init__(self, world: World, *, is_waiting: bool = True) -> None:
        self.ms = 0.0
        self.is_waiting = is_waiting
        self.writes = 0
        self._world = world
        world.disk.fail(when=self._delay)

    def _delay(self, call: Call) -> bool:
        if call.name == "write" and call.path.endswith(".log"):
            self.writes += 1
            clock = self._world.clock
            (clock.wait_ms if self.is_waiting else clock.advance_ms)(self.ms)
        return False


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def partition(world: World) -> Partition:
    return world.lead()


def submit(partition: Partition, heard: list[Any], value: bytes = b"x", **fields: Any) -> None:
    """Append one record; its outcome goes to `heard`, now or later."""
    data = batch([value], **fields)
    partition.append([Batch(read_header(data), data)], START_MS).then(heard.append)


def places(appends: list[Append]) -> list[tuple[int, int]]:
    """The offsets from and up to each."""
    return [(append.start_offset, append.end_offset) for append in appends]


def make_slow(world: World, partition: Partition) -> Slowness:
    """Make two slow writes, after which a thread takes over."""
    slowness = Slowness(world)
    slowness.ms = 60
    for _ in range(2):
        submit(partition, [])
    return slowness


def contents(partition: Partition) -> list[bytes | None]:
    file = partition.log.active.file
    return [value for _, value in values_in(file.read(0, file.size()))]


def test_on_a_fast_disk_a_batch_is_written_when_append_returns(partition: Partition) -> None:
    heard: list[Any] = []
    submit(partition, heard)
    assert places(heard) == [(0, 1)]
    assert contents(partition) == [b"x"]


def test_one_slow_write_keeps_the_loop_writing(world: World, partition: Partition) -> None:
    slowness = Slowness(world)
    for slowness.ms in (300, 0, 0):
        submit(partition, [])
    world.tasks.run_for_ms(WATCH_FOR_MS)
    slowness.ms = 300
    heard: list[Any] = []
    submit(partition, heard)
    submit(partition, heard)
    assert len(heard) == 2


def test_a_second_slow_write_with_a_long_wait_switches_to_the_thread(
    world: World, partition: Partition
) -> None:
    slowness = Slowness(world)
    for slowness.ms in (3, 0, 0, 60):
        submit(partition, [])
    slowness.ms = 0
    heard: list[Any] = []
    submit(partition, heard)
    assert heard == []
    world.settle()
    assert places(heard) == [(4, 5)]


def appends_until_thread(world: World, partition: Partition, every_ms: float) -> int:
    """How many appends, one each `every_ms`, the loop writes before the thread does; up to 200."""
    for count in range(200):
        heard: list[Any] = []
        submit(partition, heard)
        if not heard:
            return count
        world.clock.advance_ms(every_ms)
    return 200


def test_short_waits_switch_to_the_thread_once_they_are_a_hundredth_of_the_time(
    world: World, partition: Partition
) -> None:
    Slowness(world).ms = 3
    assert appends_until_thread(world, partition, every_ms=100) in range(18, 40)


def test_rare_short_waits_never_switch_to_the_thread(world: World, partition: Partition) -> None:
    Slowness(world).ms = 3
    assert appends_until_thread(world, partition, every_ms=400) == 200


def test_writes_slowed_by_the_scheduler_stay_on_the_loop(
    world: World, partition: Partition
) -> None:
    slowness = Slowness(world, is_waiting=False)
    slowness.ms = 300
    heard: list[Any] = []
    for _ in range(20):
        submit(partition, heard)
    assert len(heard) == 20
    assert world.metrics.slow_writes == 20


def test_waits_are_counted_only_for_a_while_after_a_slow_write(
    world: World, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    monkeypatch.setattr(world.clock, "waits", lambda: looks.append(None) or 0)
    slowness = Slowness(world)
    submit(partition, [])
    assert not looks
    slowness.ms = 3
    submit(partition, [])
    slowness.ms = 0
    submit(partition, [])
    assert looks
    world.tasks.run_for_ms(WATCH_FOR_MS)
    looks.clear()
    submit(partition, [])
    assert not looks


def test_a_large_write_is_allowed_more_time(world: World, partition: Partition) -> None:
    slowness = Slowness(world)
    slowness.ms = 3
    for _ in range(3):
        submit(partition, [], bytes(500_000))
    assert world.metrics.slow_writes == 0
    heard: list[Any] = []
    submit(partition, heard)
    assert len(heard) == 1


def test_appends_during_a_write_share_the_next(world: World, partition: Partition) -> None:
    slowness = make_slow(world, partition)
    slowness.ms = slowness.writes = 0
    heard: list[Any] = []
    submit(partition, heard, b"first")
    world.tasks.run_for_ms(0)
    for number in range(5):
        submit(partition, heard, b"%d" % number)
    world.settle()
    assert slowness.writes == 2
    assert [outcome.start_offset for outcome in heard] == [2, 3, 4, 5, 6, 7]
    assert contents(partition)[2:] == [b"first", b"0", b"1", b"2", b"3", b"4"]


def test_the_thread_writes_its_own_copy_of_the_bytes(world: World, partition: Partition) -> None:
    make_slow(world, partition)
    data = batch([b"kept"])
    partition.append([Batch(read_header(data), data)], START_MS)
    data[:] = bytes(len(data))  # as the next request does to the receive buffer
    world.settle()
    assert contents(partition)[2:] == [b"kept"]


def test_after_a_few_fast_seconds_the_loop_writes_again(world: World, partition: Partition) -> None:
    make_slow(world, partition).ms = 0
    world.tasks.run_for_ms(THREAD_FOR_MS)
    heard: list[Any] = []
    submit(partition, heard)
    assert len(heard) == 1


@pytest.mark.parametrize(("slow_ms", "in_thread"), [(100, True), (10, False)])
def test_a_disk_that_stays_very_slow_keeps_the_thread(
    world: World, partition: Partition, slow_ms: float, in_thread: bool
) -> None:
    make_slow(world, partition).ms = slow_ms
    world.tasks.run_for_ms(THREAD_FOR_MS - 500)
    submit(partition, [])
    world.tasks.run_for_ms(1000)
    heard: list[Any] = []
    submit(partition, heard)
    assert bool(heard) is not in_thread


def test_one_long_wait_after_leaving_the_thread_switches_back_to_it(
    world: World, partition: Partition
) -> None:
    make_slow(world, partition)
    world.tasks.run_for_ms(THREAD_FOR_MS)
    submit(partition, [])
    heard: list[Any] = []
    submit(partition, heard)
    assert heard == []
    world.settle(100)
    assert len(heard) == 1


def test_a_full_disk_under_the_thread_fails_all_waiting_appends(
    world: World, partition: Partition
) -> None:
    make_slow(world, partition).ms = 0
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write", forever=False)
    heard: list[Any] = []
    submit(partition, heard)
    world.tasks.run_for_ms(0)
    submit(partition, heard)
    world.settle()
    assert [type(outcome) for outcome in heard] == [DiskFull, DiskFull]
    assert partition.log.context.metrics.refused_appends == 2
    assert partition.log.end_offset == partition.log.reserved_offset == 2
    submit(partition, heard, b"later")
    world.settle()
    assert places(heard[2:]) == [(2, 3)]
    assert contents(partition) == [b"x", b"x", b"later"]


def test_a_lack_of_descriptors_under_the_thread_fails_all_waiting_appends(
    world: World, partition: Partition
) -> None:
    make_slow(world, partition).ms = 0
    partition.log.close_idle()
    world.disk.fail(errno.EMFILE, when=lambda call: call.name == "open")
    heard: list[Any] = []
    submit(partition, heard)
    world.settle()
    assert [type(outcome) for outcome in heard] == [OutOfDescriptors]
    assert partition.log.context.metrics.refused_appends == 0
    world.disk.heal()
    submit(partition, heard, b"later")
    world.settle()
    assert places(heard[1:]) == [(2, 3)]
    assert contents(partition) == [b"x", b"x", b"later"]


def test_while_the_loop_writes_a_full_disk_raises_in_append(
    world: World, partition: Partition
) -> None:
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write", forever=False)
    with pytest.raises(DiskFull):
        submit(partition, [])
    assert partition.log.end_offset == 0


def test_appends_refused_by_a_full_disk_are_counted_and_logged_once_a_minute(
    world: World, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write")
    for _ in range(3):
        with pytest.raises(DiskFull):
            submit(partition, [])
    assert partition.log.context.metrics.refused_appends == 3

    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]

    (sentence,) = said()
    assert sentence.startswith("appends are refused: KAFKA_STORAGE_ERROR: no space left to write")
    world.tasks.run_for_ms(60_000)
    with pytest.raises(DiskFull):
        submit(partition, [])
    assert len(said()) == 2


def test_a_disk_failure_under_the_thread_leaves_appends_unanswered(
    world: World, partition: Partition
) -> None:
    make_slow(world, partition).ms = 0
    world.disk.fail(when=lambda call: call.name == "write")
    heard: list[Any] = []
    submit(partition, heard)
    world.settle()
    assert heard == []
    assert [type(failure) for failure in world.failures] == [DiskFailed]


def test_a_duplicate_of_an_append_under_way_waits_for_it(
    world: World, partition: Partition
) -> None:
    make_slow(world, partition).ms = 0
    heard: list[Any] = []
    fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    submit(partition, heard, **fields)
    world.tasks.run_for_ms(0)
    submit(partition, heard, **fields)
    assert heard == []
    world.settle()
    assert places(heard) == [(2, 3), (2, 3)]
    assert heard[1].duplicate is not None
    assert partition.log.end_offset == 3


def test_a_wrong_sequence_is_refused_at_once_even_on_a_slow_disk(
    world: World, partition: Partition
) -> None:
    make_slow(world, partition)
    submit(partition, [], producer_id=5, producer_epoch=0, base_sequence=0)
    with refused(Error.OUT_OF_ORDER_SEQUENCE_NUMBER):
        submit(partition, [], producer_id=5, producer_epoch=0, base_sequence=9)


def test_the_writer_is_idle_once_the_thread_has_finished(
    world: World, partition: Partition
) -> None:
    told: list[int] = []
    partition.when_idle(lambda: told.append(partition.log.end_offset))
    assert told == [0]
    make_slow(world, partition).ms = 0
    submit(partition, [])
    partition.when_idle(lambda: told.append(partition.log.end_offset))
    assert told == [0]
    world.settle()
    assert told == [0, 3]


def under_way(world: World, partition: Partition) -> list[Any]:
    """Have two slow writes done and two appends, of one record each, under way in the thread."""
    make_slow(world, partition).ms = 0
    heard: list[Any] = []
    submit(partition, heard)
    submit(partition, heard)
    return heard


def test_an_epoch_begins_after_the_appends_that_are_under_way(
    world: World, partition: Partition
) -> None:
    under_way(world, partition)
    world.tell(leader_epoch=1, partition_epoch=1)
    submit(partition, [])
    world.settle()
    assert partition.epoch_end(0) == (0, 4)
    assert partition.epoch_end(1) == (1, 5)
    file = partition.log.active.file
    headers = [header for _, header in iter_headers(file.read(0, file.size()))]
    assert [header.partition_leader_epoch for header in headers] == [0, 0, 0, 0, 1]


def test_an_epoch_begins_where_the_log_ends_once_the_appends_before_it_failed(
    world: World, partition: Partition
) -> None:
    heard = under_way(world, partition)
    world.tell(leader_epoch=1, partition_epoch=1)
    world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write", forever=False)
    world.settle()
    assert [type(outcome) for outcome in heard] == [DiskFull, DiskFull]
    assert partition.epoch_end(0) == (0, 2)
    submit(partition, heard)
    world.settle()
    assert partition.epoch_end(0) == (0, 2)
    assert partition.epoch_end(1) == (1, 3)


@examples(40)
@given(
    st.lists(st.sampled_from(["append", "append", "pass", "slow", "fast", "full"])),
    st.integers(0, 9),
)
def test_acknowledged_records_are_in_the_log_in_order(steps: list[str], seed: int) -> None:
    world = World(seed=seed)
    partition = world.lead()
    slowness = Slowness(world)
    heard: list[tuple[bytes, Any]] = []
    for number, step in enumerate(steps):
        value = b"%d" % number
        match step:
            case "append":
                data = batch([value])
                tell = lambda outcome, value=value: heard.append((value, outcome))  # noqa: E731
                try:
                    partition.append([Batch(read_header(data), data)], START_MS).then(tell)
                except DiskFull as error:
                    tell(error)
            case "pass":
                world.tasks.run_for_ms(2)
            case "full":
                world.disk.fail(errno.ENOSPC, when=lambda call: call.name == "write", forever=False)
            case _:
                slowness.ms = 30 if step == "slow" else 0
    world.settle(500)
    acknowledged = {o.start_offset: v for v, o in heard if isinstance(o, Append)}
    assert len(heard) == steps.count("append")
    log = partition.log
    stored = log.active.file.read(0, log.active.file.size()) if log.has_files else b""
    assert dict(values_in(stored)) == acknowledged
    assert sorted(acknowledged) == list(range(partition.log.end_offset))


def test_who_asks_after_an_append_is_published_is_told_at_once(
    world: World, partition: Partition
) -> None:
    make_slow(world, partition)
    data = batch([b"x"])
    append, heard = partition.append([Batch(read_header(data), data)], START_MS), list[Any]()
    assert not append.is_published
    world.settle(500)
    append.then(heard.append)
    assert heard == [append]
