"""`__consumer_offsets` for the group coordinator: appended to, and loaded.

A partition is loaded when this broker becomes its leader, in steps: a thread reads bytes, perhaps
from the disk, and the loop replays them. Of all partitions that load, one slice of work is done in
each tick of the loop; so anything may happen to a partition between two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from kdist.errors import ApiError, CorruptRecords, DiskFull, Error, ProtocolError
from kdist.groups.context import LogRecord
from kdist.groups.coordinator import GroupCoordinator
from kdist.groups.records import Loading
from kdist.model import OFFSETS_TOPIC
from kdist.records.batch import Batch, iter_headers, read_header
from kdist.records.build import build_batch
from kdist.replication.leadership import Role
from kdist.replication.partition import Partition
from kdist.replication.replicas import Replicas
from kdist.runtime.clock import Clock
from kdist.runtime.steps import CountedSteps
from kdist.runtime.tasks import Tasks
from kdist.storage.append import Append
from kdist.storage.reading import Slice, read

logger = logging.getLogger(__name__)

_STEP_BYTES = 1 << 16
_RETRY_MS = 500
_TRUNCATING_MS = 20


class PartitionedOffsetsLog:
    """An `OffsetsLog` on the partitions hosted here. Owner: the broker."""

    def __init__(self, replicas: Replicas, clock: Clock, timeout_ms: Callable[[], int]) -> None:
        """`timeout_ms` returns the current `offsets.commit.timeout.ms`."""
        self._replicas = replicas
        self._clock = clock
        self._timeout_ms = timeout_ms

    def append(
        self, partition: int, records: list[LogRecord], done: Callable[[Error], None]
    ) -> None:
        """As `OffsetsLog` says. Raises `DiskFailed`."""
        now_ms = self._clock.now_ms()
        keys, values = [key for key, _ in records], [value for _, value in records]
        data = build_batch(values, keys, timestamp_ms=now_ms)
        try:
            host = self._replicas.get((OFFSETS_TOPIC, partition))
            if len(data) > host.log.settings.max_message_bytes:
                raise ApiError(Error.MESSAGE_TOO_LARGE)
            host.require_leader()
            if host.is_under_min_isr:  # as a produce with acks=all
                raise ApiError(Error.NOT_ENOUGH_REPLICAS)
            append = host.append([Batch(read_header(data), data)], now_ms)
        except ApiError as error:
            done(error.error)
        else:
            append.then(partial(self._ended, host, host.role, done))

    def _ended(
        self, host: Partition, role: Role, done: Callable[[Error], None], outcome: Append | ApiError
    ) -> None:
        if isinstance(outcome, ApiError):
            done(outcome.error)
        else:
            host.await_committed(role, outcome.end_offset, self._timeout_ms(), None, done)


class OffsetsLoader:
    """Loads the partitions that this broker leads into the coordinator. Owner: the broker."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        tasks: Tasks,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._coordinator = coordinator
        self._tasks = tasks
        self._on_failure = on_failure
        self._led: dict[int, Loading] = {}

    def begin(self, partition: Partition) -> None:
        """This broker leads the partition; nothing to do if it did already."""
        number = partition.key.partition
        if partition.key.topic != OFFSETS_TOPIC or number in self._led:
            return
        loading = self._led[number] = self._coordinator.begin_loading(number)
        self._read(partition, loading, 0)

    def end(self, partition: Partition) -> None:
        """This broker no longer leads the partition."""
        if partition.key.topic == OFFSETS_TOPIC:
            self._led.pop(partition.key.partition, None)
            self._coordinator.unload(partition.key.partition)

    def _read(
        self, partition: Partition, loading: Loading, offset: int, *, is_told: bool = False
    ) -> None:
        if self._led.get(loading.partition) is not loading:
            return  # led elsewhere meanwhile
        if partition.log.is_truncating:  # readers find nothing at its end, though there may be
            again = partial(self._read, partition, loading, offset, is_told=is_told)
            self._tasks.call_later(_TRUNCATING_MS, again)
            return
        offset = max(offset, partition.log.start_offset)  # retention may have moved that meanwhile
        try:
            part = read(partition.log, offset, _STEP_BYTES)
        except DiskFull as error:  # no descriptor left, for now
            if not is_told:
                logger.warning("loading of %s is paused, to be resumed: %s", partition.key, error)
            again = partial(self._read, partition, loading, offset, is_told=True)
            self._tasks.call_later(_RETRY_MS, again)
            return
        except (ApiError, ProtocolError) as error:
            self._give_up(loading, error)
            return
        if part is None:
            finish = partial(self._coordinator.finish_loading, loading)
            self._work(loading, self._coordinator.decode(loading), finish)
            return
        found: list[bytes] = []
        self._tasks.run_blocking(
            lambda: found.append(part.read()),
            partial(self._take_in, partition, loading, part, found),
        )

    def _take_in(
        self,
        partition: Partition,
        loading: Loading,
        part: Slice,
        found: list[bytes],
        error: BaseException | None,
    ) -> None:
        part.release()
        if error is not None:
            self._on_failure(error)
            return
        if self._led.get(loading.partition) is not loading:
            return
        try:
            batches, next_offset = _whole_batches(found[0])
        except CorruptRecords as fault:
            self._give_up(loading, fault)
            return
        read_on = partial(self._read, partition, loading, next_offset)
        self._work(loading, loading.replay(batches), read_on)

    def _work(self, loading: Loading, steps: CountedSteps, then: Callable[[], None]) -> None:
        self._coordinator.slices.add(self._watched(loading, steps, then))

    def _watched(
        self, loading: Loading, steps: CountedSteps, then: Callable[[], None]
    ) -> CountedSteps:
        """Do the steps, `then` the rest: as long as the partition is led, and its log is sound."""
        while self._coordinator.is_wanted(loading):
            try:
                step_us = next(steps, None)
            except (CorruptRecords, ProtocolError) as fault:
                self._give_up(loading, fault)
                return
            if step_us is None:
                then()
                return
            yield step_us

    def _give_up(self, loading: Loading, error: Exception) -> None:
        """Leave its groups without a coordinator, rather than with one that lost their offsets."""
        logger.error(
            "%s-%d cannot be read, so its groups are not served: %s",
            OFFSETS_TOPIC,
            loading.partition,
            error,
        )
        self._coordinator.unload(loading.partition)


def _whole_batches(data: bytes) -> tuple[memoryview, int]:
    """The whole batches, without a last one that is cut short, and the offset after them."""
    position = next_offset = 0
    for start, header in iter_headers(data, may_end_partial=True):
        position, next_offset = start + header.size, header.next_offset
    return memoryview(data)[:position], next_offset
