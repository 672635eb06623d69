"""Delayed operations: requests that wait until a partition they watch changes, or they time out.

An operation ends once: by a successful `attempt`, by `expire`, or because its client's connection
is gone. Operations that watch what changed in a tick of the loop are attempted when the tick ends.

Deadlines are kept in buckets of one millisecond, with one timer for the earliest bucket in use.
Most operations end long before their deadline; leaving a bucket is one deletion, whereas a heap of
operations would keep each until it is due. Measured with 10,000 waiting (Debian's Python 3.11):
adding and ending one takes 0.8 µs with all bookkeeping, a cancelled `loop.call_later` 1.5.

    operation       waits, in the role in which it began, until
    DelayedProduce  all in-sync replicas have its records: the high watermark has passed them
    DelayedDelete   every replica that is alive has deleted the records (KIP-107)

A delayed fetch is the fetch handler's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Protocol

from kdist.errors import Error
from kdist.metrics.replication import ReplicationMetrics
from kdist.replication.leadership import Role, still_leads
from kdist.runtime.clock import Clock
from kdist.runtime.tasks import Tasks, Timer

AtTickEnd = Callable[[Callable[[], None]], None]
"""Schedules a callback for the end of this tick of the loop."""

_NS_PER_MS = 1_000_000
_NOT_NOW = -1  # as the armed tick while expiring: earlier than any, so `add` does not re-arm
# As a follower that is read from is told each new high watermark, its leader may have to answer as
# many fetches more. Kafka did so at once, and took it back (KAFKA-9731, KAFKA-9952).
_HASTENED_EVERY_MS = 5
_READ_NEARBY_MS = 600_000  # consumers ask the leader again every 5 minutes, by default
_BUCKETS_MIN = 10_000  # this many buckets are no burden, even if all are empty


class Watched(Protocol):
    """What operations watch for changes: a partition, or a fetch session of partitions."""

    watchers: dict[DelayedOperation, None]

    @property
    def dependents(self) -> Iterable[Dependent]:
        """The fetch sessions that it is in; a session is in none."""
        ...


class Dependent(Protocol):
    """A partition's place in a fetch session."""

    @property
    def session(self) -> Watched: ...

    @property
    def is_dirty(self) -> bool:
        """Whether there may be something to tell."""
        ...

    def mark_dirty(self) -> None:
        """Note at once that the partition has changed: a fetch may come before this tick ends."""
        ...


class DelayedOperation:
    """The base class of delayed operations. Owner: `DelayedOperations`, from `add` to its end."""

    __slots__ = ("_bucket", "_owner", "_watched")
    _bucket: dict[DelayedOperation, None]
    _owner: object
    _watched: tuple[Watched, ...]

    def attempt(self) -> bool:
        """Try to complete; return whether it did. It is not called again after True."""
        raise NotImplementedError

    def expire(self) -> None:
        """Time is up: complete with what there is."""
        raise NotImplementedError


class Growth:
    """What a follower's fetch watches of a partition: that its log has grown, committed or not.

    `is_read_nearby`: consumers read from followers, so these are told new high watermarks early.
    """

    __slots__ = ("dependents", "is_read_nearby", "read_nearby_ms", "watchers")

    def __init__(self) -> None:
        self.is_read_nearby = False
        self.read_nearby_ms = 0  # when a consumer was last sent to a follower
        self.watchers: dict[DelayedOperation, None] = {}
        self.dependents: dict[Dependent, None] = {}


class DelayedOperations:
    """All delayed operations of a broker. Owner: the event loop."""

    def __init__(
        self, tasks: Tasks, clock: Clock, schedule: AtTickEnd, metrics: ReplicationMetrics
    ) -> None:
        self._tasks = tasks
        self._clock = clock
        self._schedule = schedule
        self._metrics = metrics
        self._buckets: dict[
            int, dict[DelayedOperation, None]
        ] = {}  # by tick, the millisecond they are due
        self._ticks: list[int] = []  # a heap of the buckets' ticks
        self._sweep_at = _BUCKETS_MIN  # at this number of buckets, drop the empty ones
        self._armed_tick: float = math.inf
        self._timer: Timer | None = None
        self._clients: dict[object, dict[DelayedOperation, None]] = {}
        self._changed: dict[Watched, None] = {}
        self._is_scheduled = False
        self._hastened: dict[Growth, None] = {}
        self._hastened_ms = 0  # the last time

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(
        self,
        operation: DelayedOperation,
        watched: Iterable[Watched],
        timeout_ms: int,
        client: object,
    ) -> None:
        """Have an operation wait. The end of `client` cancels it, unless that is None.

        The caller must have attempted it just before, so that no change is missed.
        """
        operation._owner = client
        operation._watched = watched = tuple(watched)
        for each in watched:
            each.watchers[operation] = None
        if client is not None:
            self._clients.setdefault(client, {})[operation] = None
        tick = self._clock.monotonic_ns() // _NS_PER_MS + timeout_ms + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            if len(self._ticks) >= self._sweep_at:
                self._sweep()
            bucket = self._buckets[tick] = {}
            heappush(self._ticks, tick)
            if tick < self._armed_tick:
                self._arm()
        bucket[operation] = None
        operation._bucket = bucket

    def cancel_all(self, client: object) -> None:
        """End a client's operations without completing them: its connection is gone."""
        for operation in tuple(self._clients.get(client, ())):
            self.end(operation)

    def end(self, operation: DelayedOperation) -> None:
        """Remove an operation that has ended, for whatever reason."""
        del operation._bucket[operation]
        for each in operation._watched:
            del each.watchers[operation]
        client = operation._owner
        if client is not None:
            own = self._clients[client]
            del own[operation]
            if not own:
                del self._clients[client]

    # Changes

    def changed(self, watched: Watched) -> None:
        """Have the operations that watch it, or a session of it, attempted when this tick ends."""
        for dependent in watched.dependents:
            dependent.mark_dirty()
            self.changed(dependent.session)
        if watched.watchers:
            self._changed[watched] = None
            if not self._is_scheduled:
                self._is_scheduled = True
                self._schedule(self.attempt_changed)

    def attempt_changed(self) -> None:
        """Attempt the operations that watch what has changed, in the order they were added."""
        self._is_scheduled = False
        changed, self._changed = self._changed, {}
        for watched in changed:
            for operation in tuple(watched.watchers):
                if operation in watched.watchers and operation.attempt():
                    self.end(operation)

    # High watermarks, for followers that are read from (KIP-392)

    def read_nearby(self, growth: Growth) -> None:
        """A consumer is being sent to a follower, which is to know what is committed."""
        growth.is_read_nearby, growth.read_nearby_ms = True, self._now_ms()
        self.hasten(growth)

    def hasten(self, growth: Growth) -> None:
        """Have the followers' waiting fetches answered within some ms with what there is to tell,
        if the partition is still read from them."""
        now_ms = self._now_ms()
        if now_ms - growth.read_nearby_ms > _READ_NEARBY_MS:
            growth.is_read_nearby = False
            return
        if not self._hastened:
            delay_ms = max(0, self._hastened_ms + _HASTENED_EVERY_MS - now_ms)
            self._tasks.call_later(delay_ms, self._answer_hastened)
        self._hastened[growth] = None

    def _answer_hastened(self) -> None:
        """End them, unless an answer has told it meanwhile."""
        self._hastened_ms = self._now_ms()
        hastened, self._hastened = self._hastened, {}
        for growth in hastened:
            waiting = [growth.watchers]
            waiting += [each.session.watchers for each in growth.dependents if each.is_dirty]
            for watchers in waiting:
                for operation in tuple(watchers):
                    if operation in watchers:
                        self.end(operation)
                        operation.expire()

    # Time

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // _NS_PER_MS

    def _sweep(self) -> None:
        """Drop the empty buckets, since their deadlines may be weeks away."""
        buckets = self._buckets
        for tick in [tick for tick, bucket in buckets.items() if not bucket]:
            del buckets[tick]
        self._ticks[:] = sorted(buckets)  # a sorted list is a heap; in place for `_expire_due`
        self._sweep_at = max(_BUCKETS_MIN, 2 * len(buckets))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_tick = tick = self._ticks[0]
        delay_ns = max(0, tick * _NS_PER_MS - self._clock.monotonic_ns())
        self._timer = self._tasks.call_later(delay_ns / _NS_PER_MS, self._expire_due)

    def _expire_due(self) -> None:
        self._timer = None
        self._armed_tick = _NOT_NOW  # operations added meanwhile are covered by the `_arm` below
        now_tick = self._clock.monotonic_ns() // _NS_PER_MS
        ticks, buckets = self._ticks, self._buckets
        while ticks and (ticks[0] <= now_tick or not buckets[ticks[0]]):
            bucket = buckets.pop(heappop(ticks))
            while bucket:
                operation = next(iter(bucket))
                self.end(operation)
                self._metrics.expired_operations += 1
                operation.expire()
        self._armed_tick = math.inf
        if ticks:
            self._arm()


class ReplicatedPartition(Protocol):
    """What the operations below need of a partition."""

    high_watermark: int
    role: Role

    @property
    def is_under_min_isr(self) -> bool: ...

    @property
    def low_watermark(self) -> int: ...

    def request_flush(self) -> None: ...


OnCommitted = Callable[[Error], None]
OnDeleted = Callable[[Error], None]


class _DelayedInRole(DelayedOperation):
    """Waits for `offset`, for as long as this broker leads on: `role` is the one in which it began.

    Once it has not led for a while, there may be other records at the same offsets.
    """

    __slots__ = ("_offset", "_partition", "_role", "done")

    def __init__(
        self, partition: ReplicatedPartition, role: Role, offset: int, done: Callable[[Error], None]
    ) -> None:
        self._partition = partition
        self._role = role
        self._offset = offset
        self.done = done

    def expire(self) -> None:
        self.done(Error.REQUEST_TIMED_OUT)


class DelayedProduce(_DelayedInRole):
    """A produce with acks=all: waits until all below `offset` is committed.

    It ends with an error once the high watermark may have passed other records, whatever it is; and
    once too few replicas are in sync, since it then stands still. All these errors mean "perhaps":
    the records stay, and may be committed yet.
    """

    __slots__ = ()

    def attempt(self) -> bool:
        partition = self._partition
        if not still_leads(self._role, partition.role):
            self.done(Error.NOT_LEADER_OR_FOLLOWER)
        elif partition.high_watermark >= self._offset:
            self.done(Error.NONE)
        elif partition.is_under_min_isr:
            self.done(Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        else:
            partition.request_flush()
            return False
        return True


class DelayedDelete(_DelayedInRole):
    """A DeleteRecords: waits until the low watermark is `offset`, or more.

    That is the lowest log start offset of the live replicas: what lies below it is nowhere.
    """

    __slots__ = ()

    def attempt(self) -> bool:
        partition = self._partition
        if not still_leads(self._role, partition.role):
            self.done(Error.NOT_LEADER_OR_FOLLOWER)
        elif partition.low_watermark >= self._offset:
            self.done(Error.NONE)
        else:
            return False
        return True
