"""Cold reads: when the page cache is probed for records, and when their presence is known."""

from __future__ import annotations

import pytest

from kdist.storage import reading
from kdist.storage.log import Log
from kdist.storage.reading import PageCache, read, warm
from tests.unit.replication.replication_world import CLICKS, VIEWS, World, append

MIB = 1 << 20


class Bench:
    """Two logs of six batches of a little over a MiB each, and what is known of them."""

    def __init__(self) -> None:
        self.world = World()
        self.log, self.other = (self.grown(key) for key in (CLICKS, VIEWS))
        self.cache = PageCache(self.world.clock.monotonic_ns)

    def grown(self, key: object) -> Log:
        partition = self.world.lead(key)  # type: ignore[arg-type]
        for _ in range(6):
            append(self.world, partition, bytes(MIB - 100))
        partition.log.recent.clear()
        return partition.log

    def asked(self, log: Log, offset: int, bytes_max: int = MIB) -> int:
        """How often the page cache is probed for this read, all of which is cached."""
        before = self.world.disk.calls["read_cached"]
        assert not self.is_cold(log, offset, bytes_max)
        return self.world.disk.calls["read_cached"] - before

    def is_cold(self, log: Log, offset: int, bytes_max: int = MIB) -> bool:
        part, is_cold = self.cache.read(log, offset, bytes_max, log.end_offset)
        assert part is not None
        part.release()
        return is_cold

    def forget(self, start: int, end: int) -> None:
        """Evict the pages from `start` to `end`, in bytes."""
        content = self.log.active.file._content  # type: ignore[attr-defined]
        content.cold.update(range(start >> 12, end >> 12))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_read_is_probed_at_few_points_and_then_known(bench: Bench) -> None:
    assert 2 <= bench.asked(bench.log, 0) <= 4
    assert bench.asked(bench.log, 0) == 0
    assert bench.asked(bench.log, 0, 100_000) == 0
    assert bench.asked(bench.other, 0) > 0


def test_a_truncated_index_is_left_to_the_read_itself(bench: Bench) -> None:
    log = bench.log
    log.close_idle()
    file = bench.world.disk.open(log.active.offset_index.path)
    file.truncate(file.size() - 1)
    file.close()
    assert not bench.is_cold(log, 3)
    part = read(log, 3, 100)
    assert part is not None
    assert part.position == 3 * log.active.size // 6
    part.release()


def test_what_a_truncation_is_cutting_is_not_looked_for(bench: Bench) -> None:
    log, world = bench.log, bench.world
    world.directory.trimmer.truncate(log, 3, lambda _: None)
    assert world.tasks.run_until(lambda: log.truncating_from == log.active.base_offset, 50)
    bench.forget(0, 6 * MIB)
    assert bench.cache.read(log, 1, MIB, log.end_offset) == (None, False)
    world.settle()
    assert bench.is_cold(log, 1)


def test_a_sequential_reader_is_probed_only_for_new_pages(bench: Bench) -> None:
    asked = [bench.asked(bench.log, offset) for offset in range(6)]
    assert sum(asked) <= 1 + 2 * 6 + 6
    assert [bench.asked(bench.log, offset) for offset in range(6)] == [0] * 6


def test_records_before_a_known_position_are_probed(bench: Bench) -> None:
    bench.asked(bench.log, 1)
    assert bench.asked(bench.log, 0, 1) > 0


def test_known_positions_are_probed_again_after_a_second(bench: Bench) -> None:
    first = bench.asked(bench.log, 0)
    bench.world.clock.advance_ms(999)
    assert bench.asked(bench.log, 0) == 0
    bench.forget(0, MIB)
    bench.world.clock.advance_ms(1)
    assert bench.is_cold(bench.log, 0)
    assert first > 0


@pytest.mark.parametrize("start", [0, MIB // 2, MIB - 4096])
def test_cold_records_are_detected_and_not_remembered(bench: Bench, start: int) -> None:
    bench.forget(start, start + MIB)
    assert bench.is_cold(bench.log, 0)
    assert bench.is_cold(bench.log, 0)
    bench.log.active.file.read(0, 3 * MIB)
    assert not bench.is_cold(bench.log, 0)


def test_records_at_the_tail_are_known_to_be_cached(bench: Bench) -> None:
    append(bench.world, bench.world.lead(), b"new")
    assert bench.asked(bench.log, bench.log.end_offset - 1) == 0


def test_few_positions_are_remembered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_REMEMBERED_BLOCKS_MAX", 4)
    for offset in (0, 1, 2, 3, 4, 5) * 3:
        bench.asked(bench.log, offset)
        assert len(bench.cache._known) <= 4 + 3


def test_cold_records_are_cached_once_a_thread_has_read_them(bench: Bench) -> None:
    bench.forget(0, 6 * MIB)
    part, is_cold = bench.cache.read(bench.log, 0, 3 * MIB, bench.log.end_offset)
    assert part is not None
    assert is_cold
    heard: list[BaseException | None] = []
    warm(bench.world.tasks, [part], heard.append)
    bench.world.settle()
    part.release()
    assert heard == [None]
    assert not bench.is_cold(bench.log, 0, 3 * MIB)
