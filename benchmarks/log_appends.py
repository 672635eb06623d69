"""Appending to one log and to a thousand, beside a loop of `os.write` with the same bytes.

A batch of 64 KiB is a writable view into a receive buffer of 1 MiB, as from a socket. Each goes
through what a produce does: `validate` with the CRC check, and `Log.append` with indexes, at
default settings. Files are open before the clock starts, as on a broker that has run for a second.
One log takes 1 GiB and 16 MiB, and so rolls once.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import pairwise

import measuring
from log_world import (
    LEADER_EPOCH,
    START_MS,
    HastyDisk,
    Place,
    Sample,
    create_logs,
    log_directory,
    make_batch,
    speeds,
    tell,
)
from measuring import Contender, Row

from kdist.config.topic import TopicSettings
from kdist.records.batch import CHECKED_POSITION
from kdist.records.validate import Rules, validating
from kdist.runtime.disk import DiskFile
from kdist.runtime.files import Buffer
from kdist.runtime.steps import run_steps
from kdist.storage.log import Log
from kdist.wire.crc32c import crc32c

BATCH_BYTES = 65_536
IN_BUFFER = 16  # batches that the receive buffer holds
PRODUCE_VERSION = 9
RULES = Rules(message_bytes_max=TopicSettings().max_message_bytes)
NO_OFFSET = bytes(8)
FLUSHED_EACH_SECOND = TopicSettings(flush_ms=1000)  # only its early writeback has an effect here
YARDSTICK = "os.write"


def receive_buffer() -> list[memoryview]:
    """Consecutive batches, as views into one buffer."""
    batches = [make_batch(BATCH_BYTES, number) for number in range(IN_BUFFER)]
    buffer = memoryview(bytearray().join(batches))
    ends = [sum(map(len, batches[:number])) for number in range(IN_BUFFER + 1)]
    return [buffer[start:end] for start, end in pairwise(ends)]


def append(log: Log, data: memoryview) -> None:
    """What the log does for a produce of one batch to one partition."""
    data[:8] = NO_OFFSET  # the append before this one wrote its offset there
    accepted = run_steps(validating(data, RULES, PRODUCE_VERSION, START_MS))
    log.append_as_leader(accepted, LEADER_EPOCH, START_MS)


@contextmanager
def kdist_sample(
    path: str, logs: int, rounds: int, settings: TopicSettings
) -> Iterator[Callable[[], None]]:
    """Append to each log in turn."""
    buffer = receive_buffer()
    try:
        with log_directory(path) as directory:
            targets = create_logs(directory, logs, settings)
            for log in targets:
                append(log, buffer[0])

            def work() -> None:
                for number in range(rounds):
                    data = buffer[number % IN_BUFFER]
                    for log in targets:
                        append(log, data)

            yield work
    finally:
        shutil.rmtree(path)


@contextmanager
def raw_sample(
    path: str, files: int, rounds: int, write: Callable[[int, memoryview], object]
) -> Iterator[Callable[[], None]]:
    """Write to each file in turn."""
    buffer = receive_buffer()
    os.mkdir(path)
    try:
        with ExitStack() as stack:
            targets = [_create(f"{path}/{number}", stack) for number in range(files)]
            for target in targets:
                os.write(target, buffer[0])

            def work() -> None:
                for number in range(rounds):
                    data = buffer[number % IN_BUFFER]
                    for target in targets:
                        write(target, data)

            yield work
    finally:
        shutil.rmtree(path)


def _create(path: str, stack: ExitStack) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    stack.callback(os.close, descriptor)
    return descriptor


def check_and_write(descriptor: int, data: memoryview) -> None:
    """The CRC and the write, which no log can do without."""
    crc32c(data[CHECKED_POSITION:])
    os.write(descriptor, data)


def measure_appends(place: Place) -> list[Row]:
    """The rows for one log, for a thousand, and for one call without its write."""
    megabytes = place.scaled(1040, 4)
    logs = place.scaled(1000, 8)
    batches = megabytes * IN_BUFFER
    return [
        *_measure(place, "1 log", 1, batches, 0.7),
        *_measure(place, f"{logs:,} logs", logs, max(batches // logs, 2), 0.5),
        *measure_calls(place),
    ]


def _measure(place: Place, task: str, logs: int, rounds: int, budget: float) -> list[Row]:
    tell(f"append to {task}: {logs * rounds * BATCH_BYTES >> 20:,} MiB a sample")
    path = f"{place.path}/appends"
    samples: dict[str, Sample] = {
        "kdist": partial(kdist_sample, path, logs, rounds, TopicSettings()),
        YARDSTICK: partial(raw_sample, path, logs, rounds, os.write),
        "CRC and os.write": partial(raw_sample, path, logs, rounds, check_and_write),
        "kdist, early writeback": partial(kdist_sample, path, logs, rounds, FLUSHED_EACH_SECOND),
    }
    found = speeds(place, samples, logs * rounds * len(receive_buffer()[0]))
    return [
        *_rows(f"append, {task}, CPU", {name: each.cpu for name, each in found.items()}, budget),
        *_rows(f"append, {task}, wall", {name: each.wall for name, each in found.items()}),
    ]


def _rows(task: str, found: Mapping[str, float], budget: float | None = None) -> list[Row]:
    rows = [
        Row(task, name, rate, "B/s", {YARDSTICK: rate / found[YARDSTICK]})
        for name, rate in found.items()
    ]
    if budget is not None:
        is_met = rows[0].ratios[YARDSTICK] >= budget
        rows[0] = rows[0]._replace(budget=f"{budget:.2f} x {YARDSTICK}", is_met=is_met)
    return rows


# --- one call, without the write ----------------------------------------------------------------


class VoidFile(DiskFile):
    """A file whose writes do nothing, so that only the Python part of an append remains."""

    __slots__ = ()

    def write(self, buffers: Sequence[Buffer], position: int) -> int:  # noqa: ARG002
        return sum(map(len, buffers))

    def preallocate(self, position: int, size: int) -> None:
        pass

    def start_writeback(self, position: int, size: int) -> None:
        pass


class VoidDisk(HastyDisk):
    """A disk whose new `.log` files are void."""

    def create(self, path: str, *, is_secret: bool = False) -> DiskFile:
        file = super().create(path, is_secret=is_secret)
        if not path.endswith(".log"):
            return file
        with closing(file):
            descriptor = file.fileno()
            assert descriptor is not None
            return VoidFile(path, os.dup(descriptor))


def measure_calls(place: Place) -> list[Row]:
    """Calls per second of CPU time, with a batch of 64 KiB; the write itself does nothing."""
    tell("append without the write")
    data = receive_buffer()[0]
    accepted = run_steps(validating(data, RULES, PRODUCE_VERSION, START_MS))
    path = f"{place.path}/calls"
    try:
        with log_directory(path, VoidDisk()) as directory:
            (log,) = create_logs(directory, 1)

            def validate_one() -> None:
                data[:8] = NO_OFFSET
                run_steps(validating(data, RULES, PRODUCE_VERSION, START_MS))

            found = measuring.rates(
                {
                    "validate": Contender(validate_one, 1),
                    "Log.append, void file": Contender(
                        lambda: log.append_as_leader(accepted, LEADER_EPOCH, START_MS), 1
                    ),
                    "CRC alone": Contender(lambda: crc32c(data[CHECKED_POSITION:]), 1),
                },
                time.thread_time_ns,
            )
    finally:
        shutil.rmtree(path)
    return [
        Row(
            "one call, CPU",
            name,
            rate,
            "calls/s",
            {"CRC alone": rate / found["CRC alone"]},
            f"none; takes {1e6 / rate:.1f} us",
        )
        for name, rate in found.items()
    ]
