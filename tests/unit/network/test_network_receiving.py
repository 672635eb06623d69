"""Splitting received bytes into frames, however they arrive, and the buffers this takes."""

from __future__ import annotations

import asyncio
import errno
import importlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_world import framed

from kdist.errors import ProtocolError
from kdist.network.buffers import Buffers
from kdist.network.connection_state import CLOSED, HELD, OPEN
from kdist.network.receiving import FrameReceiver
from kdist.network.tick import ARENA_BYTES, Tick
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop

FRAME_BYTES_MAX = 10_000_000
LOOP = VirtualLoop(VirtualClock())  # not run: these ticks end when they are told to


class Receiver(FrameReceiver):
    """Keeps the frames; paused after each `pause_after` of them."""

    def __init__(
        self, tick: Tick, pause_after: int = 0, frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        super().__init__(tick, frame_bytes_max)
        self.frames: list[bytes] = []
        self.views: list[memoryview] = []
        self.refused: list[ProtocolError] = []
        self._pause_after = pause_after

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        self.views.append(frame)
        if self._pause_after and len(self.frames) % self._pause_after == 0:
            self.state = HELD

    def frame_refused(self, error: ProtocolError) -> None:
        self.refused.append(error)
        self.state = CLOSED

    def receive(self, data: bytes, at_most: int) -> None:
        """Receive as a transport does, `at_most` bytes at a time."""
        while data and self.state is OPEN:
            buffer = self.get_buffer(-1)
            size = min(len(buffer), len(data), at_most)
            assert size
            buffer[:size] = data[:size]
            data = data[size:]
            self.buffer_updated(size)

    def go_on(self) -> None:
        self.state = OPEN
        self.find_kept_frames()


@pytest.fixture
def tick() -> Tick:
    return new_tick()


def new_tick() -> Tick:
    return Tick(LOOP)


@given(st.lists(st.binary(max_size=2000), max_size=20), st.integers(1, 5000), st.integers(0, 30))
def test_frames_are_whole_however_their_bytes_arrive(
    contents: list[bytes], at_most: int, tick_every: int
) -> None:
    tick = new_tick()
    receiver = Receiver(tick)
    for number, content in enumerate(contents):
        receiver.receive(framed(content), at_most)
        if tick_every and number % tick_every == 0:
            tick.end()
    assert receiver.frames == contents
    tick.end()
    assert tick.buffers.taken_bytes == 0


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=30), st.integers(1, 5))
def test_a_paused_connection_loses_nothing(contents: list[bytes], pause_after: int) -> None:
    tick = new_tick()
    receiver = Receiver(tick, pause_after)
    data = b"".join(map(framed, contents))
    buffer = receiver.get_buffer(-1)
    buffer[: len(data)] = data
    receiver.buffer_updated(len(data))
    for _ in range(len(contents)):
        assert len(receiver.frames) % pause_after == 0 or len(receiver.frames) == len(contents)
        tick.end()
        receiver.go_on()
    assert receiver.frames == contents
    tick.end()
    assert tick.buffers.taken_bytes == 0


@given(st.binary(max_size=200))
def test_random_bytes_are_frames_refused_or_incomplete_and_hold_little_memory(data: bytes) -> None:
    tick = new_tick()
    receiver = Receiver(tick)
    receiver.receive(data, 64)
    tick.end()
    assert len(receiver.refused) <= 1
    assert tick.buffers.taken_bytes <= 2048
    receiver.drop_received()
    tick.end()
    assert tick.buffers.taken_bytes == 0


def test_a_frame_too_large_gets_no_room_on_a_held_connection_and_is_refused_once_that_goes_on(
    tick: Tick,
) -> None:
    receiver = Receiver(tick, pause_after=2)
    receiver.receive(framed(bytes(2 << 20)), ARENA_BYTES)
    hold, beginning = framed(b"hold"), b"\x7f\xff\xff\xff" + bytes(3 << 19)
    receiver.receive(hold + beginning, len(hold + beginning))
    tick.end()
    assert (len(receiver.frames), receiver.refused, receiver.state) == (2, [], HELD)
    assert tick.buffers.taken_bytes <= 4 << 20
    receiver.go_on()
    tick.end()
    assert (len(receiver.frames), len(receiver.refused)) == (2, 1)
    assert tick.buffers.taken_bytes == 0


def test_views_stay_valid_until_the_tick_ends(tick: Tick) -> None:
    receivers = [Receiver(tick) for _ in range(10)]
    for number, receiver in enumerate(receivers):
        receiver.receive(framed(bytes((number,)) * 3000) * 3, 2500)
    for receiver in receivers:
        assert [bytes(view) for view in receiver.views] == receiver.frames


def test_a_tick_whose_arena_is_full_ends_early(tick: Tick) -> None:
    ends: list[int] = []
    receiver = Receiver(tick)
    tick.at_end(lambda: ends.append(len(receiver.frames)))
    receiver.receive(framed(b"x" * 1020) * (ARENA_BYTES // 1024 * 3), 1024 * 16)
    assert len(ends) >= 2
    assert len(receiver.frames) == ARENA_BYTES // 1024 * 3


def test_a_large_size_field_alone_takes_little_memory(tick: Tick) -> None:
    receivers = [Receiver(tick) for _ in range(1000)]
    for receiver in receivers:
        receiver.receive(FRAME_BYTES_MAX.to_bytes(4, "big") + b"x", 5)
    tick.end()
    assert tick.buffers.taken_bytes == 1000 * 512


class Counting(Buffers):
    """Notes what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def take(self, size: int) -> memoryview:
        self.sizes.append(size)
        return super().take(size)


def test_a_huge_frame_gets_its_full_buffer_only_once_much_of_it_arrived(
    tick: Tick,
) -> None:
    tick.buffers = counting = Counting()
    size = 50 << 20
    receiver = Receiver(tick, frame_bytes_max=size)
    receiver.receive(framed(bytes(size - 4) + b"last"), 1 << 19)
    assert [len(frame) for frame in receiver.frames] == [size]
    assert receiver.frames[0].endswith(b"last")
    assert counting.sizes[-1] == size + 4
    assert sum(counting.sizes[:-1]) < 8 << 20


def test_connections_between_frames_hold_no_buffer(tick: Tick) -> None:
    receivers = [Receiver(tick) for _ in range(1000)]
    for receiver in receivers:
        receiver.receive(framed(b"x" * 700), 400)
        tick.end()
    assert tick.buffers.taken_bytes == 0
    assert tick.buffers.free_bytes <= 4096


def test_free_buffers_are_bounded_and_reused() -> None:
    buffers = Buffers()
    taken = [buffers.take(1_000_000) for _ in range(100)]
    assert buffers.taken_bytes == sum(map(len, taken))
    for buffer in taken:
        buffers.give_back(buffer)
    assert buffers.taken_bytes == 0
    assert 0 < buffers.free_bytes <= 16 << 20
    free = buffers.free_bytes
    again = buffers.take(999_000)
    assert any(again is buffer for buffer in taken)
    assert buffers.free_bytes == free - len(again)


def test_a_lent_buffer_is_reused_once_no_view_of_it_is_left() -> None:
    buffers = Buffers()
    lent = buffers.take(1_000_000)
    lent[:4] = b"mark"
    part = lent[10:20]
    buffers.lend(lent)
    del lent
    assert buffers.taken_bytes == 0
    assert buffers.take(1_000_000)[:4] == bytes(4)
    del part
    assert buffers.take(1_000_000)[:4] == b"mark"
    assert buffers.free_bytes == 0


def test_a_buffer_with_a_view_is_not_reused_however_python_counts_references(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.14 does not count a reference that a call borrows from a local name."""
    count = sys.getrefcount
    with monkeypatch.context() as patch:
        patch.setattr(sys, "getrefcount", lambda thing: count(thing) - 2)
        counting_less = importlib.reload(importlib.import_module(Buffers.__module__))
        pool = counting_less.Buffers()
        lent = pool.take(1_000_000)
        seen = lent[10:20]
        pool.lend(lent)
        del lent
        assert pool.take(1_000_000).obj is not seen.obj
    importlib.reload(counting_less)


def test_a_buffer_without_memory_for_it_does_not_count_as_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    pool = Buffers()
    monkeypatch.setitem(Buffers.take.__globals__, "_pages", refuse)
    with pytest.raises(OSError, match="no memory"):
        pool.take(100 << 20)
    assert pool.taken_bytes == 0


def test_the_number_of_lent_buffers_kept_for_reuse_is_bounded() -> None:
    buffers = Buffers()
    kept = [buffers.take(1_000_000) for _ in range(100)]
    for each in kept:
        buffers.lend(each)
    del each
    kept.clear()
    taken = [buffers.take(1_000_000) for _ in range(100)]
    assert sum(map(len, taken)) == buffers.taken_bytes
    assert buffers.free_bytes == 0


def test_a_hook_that_was_removed_is_not_called(tick: Tick) -> None:
    called: list[str] = []

    def hook() -> None:
        called.append("hook")

    tick.at_end(hook)
    tick.take_received(1)
    tick.end()
    tick.remove(hook)
    tick.take_received(1)
    tick.end()
    assert called == ["hook"]


def test_a_tick_ends_by_itself_once_its_loop_has_read_everything() -> None:
    loop = VirtualLoop(VirtualClock())
    tick = Tick(loop)
    called: list[int] = []
    tick.at_end(lambda: called.append(1))
    tick.take_received(10)
    tick.take_received(10)
    assert called == []
    loop.run_until_complete(asyncio.sleep(0))
    assert called == [1]
    loop.close()


def test_work_scheduled_while_nothing_is_received_is_done_once_after_the_hooks() -> None:
    loop = VirtualLoop(VirtualClock())
    tick = Tick(loop)
    called: list[str] = []
    tick.at_end(lambda: called.append("hook"))
    loop.call_soon(tick.schedule, lambda: called.append("work"))  # as a timer or a thread does
    loop.run_until_complete(asyncio.sleep(1))
    assert called == ["hook", "work"]
    loop.close()


def test_what_scheduled_work_schedules_is_done_in_the_same_tick(tick: Tick) -> None:
    called: list[str] = []
    tick.schedule(lambda: tick.schedule(lambda: called.append("second")))
    tick.end()
    assert called == ["second"]


def test_scheduled_work_that_was_removed_is_not_done(tick: Tick) -> None:
    called: list[str] = []

    def work() -> None:
        called.append("work")

    tick.schedule(work)
    tick.remove(work)
    tick.end()
    assert called == []


def test_a_tick_whose_hook_failed_is_followed_by_another() -> None:
    loop = VirtualLoop(VirtualClock())
    loop.set_exception_handler(lambda _loop, context: failures.append(context))
    tick = Tick(loop)
    failures: list[dict[str, object]] = []
    called: list[int] = []

    def fail_once() -> None:
        called.append(1)
        assert len(called) > 1

    tick.at_end(fail_once)
    for _ in range(2):
        tick.take_received(10)
        loop.run_until_complete(asyncio.sleep(0))
    assert (len(called), len(failures)) == (2, 1)
    loop.close()


def test_after_a_large_frame_the_next_gets_a_full_buffer_at_once(tick: Tick) -> None:
    receiver = Receiver(tick)
    frame = framed(bytes(300_000))
    receiver.receive(frame, len(frame))
    tick.end()
    assert len(receiver.get_buffer(-1)) == len(frame)
    receiver.receive(frame, len(frame))  # with one receive, into a buffer that nothing follows in
    receiver.receive(framed(b"small"), 100)
    assert [len(each) for each in receiver.frames] == [300_000, 300_000, 5]
    tick.end()
    assert tick.buffers.taken_bytes == 0


def test_after_a_large_frame_one_no_larger_gets_a_full_buffer_at_once(tick: Tick) -> None:
    receiver = Receiver(tick)
    frame = framed(bytes(200_000))
    receiver.receive(frame, len(frame))
    receiver.receive(framed(b"small"), 100)
    receiver.receive(frame[:100], 100)
    assert len(receiver.get_buffer(-1)) == len(frame) - 100
    receiver.receive(frame[100:], len(frame))
    assert len(receiver.frames) == 3


def test_memory_for_large_frames_is_bounded(tick: Tick) -> None:
    receivers = [Receiver(tick) for _ in range(100)]
    for receiver in receivers:
        receiver.receive(framed(bytes(1_000_000)), 1 << 18)
        tick.end()
    for receiver in receivers:
        receiver.get_buffer(-1)
    assert tick.buffers.taken_bytes < 36 << 20
