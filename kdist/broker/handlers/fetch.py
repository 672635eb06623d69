"""Fetch (key 1): record batches for consumers and followers.

A fetch collects the available records of its partitions, in their order and within its byte limits,
as file slices, which the network sends and releases. It is answered once it has enough, or
`max_wait_ms` has passed. Enough is
- an error or a diverging epoch to report, or
- what `fetch_checks.is_enough` says is.

Measured with Debian's Python 3.11, one partition, from `handle` to `reply`: 7 µs at the tail of a
log, with making and releasing the slice; 6 µs for a fetch that waits and is cancelled. Most of it
is creating objects, so within a session none is created for a partition that has nothing new.

A follower's fetch tells how far its log reaches. That is noted once the records from there on are
found, so that a fetch that fails, or that diverges, counts for nothing (KAFKA-8400).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kdist.broker.down_conversion import MessageSets, convert
from kdist.broker.fetch_sessions import (
    NO_SESSION,
    CachedPartition,
    FetchContext,
    FetchSessions,
    Results,
)
from kdist.broker.handlers import Call
from kdist.broker.handlers.fetch_checks import (
    LAST_VERSION_OF_MAGIC_1,
    Read,
    bytes_wanted,
    check_format,
    find_divergence,
    is_awaited,
    is_cut_short,
    is_enough,
    require_replica,
)
from kdist.broker.redirection import LeaderHints, NearestReplica
from kdist.errors import ApiError, Error
from kdist.model import NO_EPOCH, NO_OFFSET, ZERO_UUID
from kdist.protocol.fetch import (
    CONSUMER,
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopicResult,
)
from kdist.protocol.offset_for_leader_epoch import DEBUG_CONSUMER
from kdist.replication.delayed import DelayedOperation, Watched
from kdist.replication.in_sync import FollowerFetch
from kdist.replication.partition import READ_COMMITTED, Partition
from kdist.replication.replicas import Replicas
from kdist.replication.throttles import is_listed
from kdist.security.acls import CLUSTER_NAME, Operation, ResourceType
from kdist.storage.reading import PageCache, Slice, read, trim, warm

FIRST_VERSION_OF_ZSTD = 10

_LAST_VERSION_OF_MAGIC_0 = 1
_FIRST_VERSION_OF_WHOLE_BATCHES = 3
_FIRST_VERSION_OF_LEADERS = 12
_FIRST_VERSION_OF_ENDPOINTS = 16
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


class FetchHandler:
    """Owner: the broker."""

    def __init__(
        self,
        replicas: Replicas,
        sessions: FetchSessions,
        hints: LeaderHints,
        bytes_max: int,
        nearest: NearestReplica | None = None,
    ) -> None:
        """`bytes_max`: of records in an answer, except that one whole batch always fits.

        `nearest` sends consumers to followers; None: none is.
        """
        self.replicas = replicas
        self.sessions = sessions
        self.hints = hints
        self.tasks = replicas.directory.context.tasks
        self.now_ns = replicas.directory.context.clock.monotonic_ns
        self.page_cache = PageCache(self.now_ns)
        self.bytes_max = bytes_max
        self.nearest = nearest

    def handle(self, request: FetchRequest, call: Call) -> None:
        """Answer now, or later unless `call.connection` ends first."""
        context = self._open(request, call)
        if context is not None:
            self.go_on(request, call, context)

    def hold(self, request: FetchRequest, call: Call) -> None:
        """Answer with nothing, at once: the client is over its quota (KIP-219).

        What is new in its session stays so. No session is begun; the client asks for one again.
        """
        context = self._open(request, call)
        if context is not None:
            session_id = context.session.id if context.session else NO_SESSION
            call.answer(FetchResponse(session_id=session_id, responses=[]))

    def _open(self, request: FetchRequest, call: Call) -> FetchContext | None:
        """What the request fetches; None if it was answered with an error."""
        owner = call.connection.subject
        session = self.sessions.get(request.session_id, owner)
        if session is not None and session.watchers:
            self.replicas.delayed.changed(session)  # this request overtakes those that wait
        try:
            return self.sessions.open(request, call.version, owner)
        except ApiError as error:
            call.answer(FetchResponse(error_code=error.error, responses=[]))
            return None

    def go_on(self, request: FetchRequest, call: Call, context: FetchContext) -> None:
        """As `handle`, for a request that was already applied to its session."""
        is_near = request.rack_id and request.follower_id == CONSUMER
        kind = _NearFetch if is_near else _Fetch
        kind(self, request, call, context, min(request.max_bytes, self.bytes_max)).begin()


_Found = tuple[CachedPartition, Partition | None, Slice | FetchPartitionResult | None]
"""One partition's outcome: records, None (nothing new), or a result with an error or divergence.

The `Partition` is None only with an error: this broker may not host it.
"""


class _Fetch(DelayedOperation):
    """One request. Owner: itself, and `DelayedOperations` while it waits.

    Between `_collect` and the answer it holds file slices; while it waits it holds none.
    """

    __slots__ = (
        "_bytes_max",
        "_call",
        "_cold",
        "_context",
        "_due_ns",
        "_follower_id",
        "_found",
        "_handler",
        "_is_due",
        "_is_warmed",
        "_request",
        "_size",
        "_version",
        "_wanted",
        "_watched_partitions",
    )

    def __init__(
        self,
        handler: FetchHandler,
        request: FetchRequest,
        call: Call,
        context: FetchContext,
        bytes_max: int,
    ) -> None:
        self._handler = handler
        self._request = request
        self._call = call
        self._version = call.version
        self._follower_id = request.follower_id
        self._context = context
        self._bytes_max = bytes_max
        self._wanted = bytes_wanted(request, bytes_max)
        self._is_warmed = False
        self._due_ns = handler.now_ns() + request.max_wait_ms * _NS_PER_MS

    def begin(self) -> None:
        """Answer now, or start to wait."""
        _, session, *_ = context = self._context
        is_last = self._request.max_wait_ms <= 0 or not (session or context.partitions)
        if not self._proceed(is_last):
            self._wait()

    def attempt(self) -> bool:
        _, session, epoch, *_ = self._context
        is_overtaken = session is not None and session.epoch != epoch
        return self._proceed(is_last=is_overtaken)

    def expire(self) -> None:
        self._proceed(is_last=True)

    def _proceed(self, is_last: bool) -> bool:
        """Answer, or have cold records read first; False if the fetch has to wait for more.

        A fetch changes nothing that others trust, so a bug costs only this one.
        """
        try:
            self._collect()
            if self._cold:
                self._warm(is_last)
            elif is_last or self._is_due or is_enough(self._size, self._wanted, self._reads()):
                self._answer()
            else:
                self._release()
                return False
        except Exception as error:  # noqa: BLE001 - `Crashes` says what it costs
            self._release()
            self._call.crash(error)
        return True

    def _wait(self) -> None:
        handler = self._handler
        left_ms = max(0, self._due_ns - handler.now_ns()) // _NS_PER_MS
        session = self._context.session
        watched: Sequence[Watched] = (session,) if session else self._watched_partitions
        if session is None and self._follower_id >= 0:
            watched = [each.growth for each in self._watched_partitions]
        handler.replicas.delayed.add(self, watched, left_ms, self._call.connection)

    def _warm(self, is_last: bool) -> None:
        """Have a thread read the cold slices into the page cache, then go on."""
        self._release()
        handler, cold = self._handler, self._cold
        metrics, started_ns = handler.replicas.metrics, handler.now_ns()
        metrics.cold_fetches += 1

        def warmed(error: BaseException | None) -> None:
            metrics.cold_seconds.observe((handler.now_ns() - started_ns) / _NS_PER_S)
            for part in cold:
                part.release()
            if error is not None:
                self._call.crash(error)
                return
            self._is_warmed = True  # do not ask the page cache again, even if it evicted them
            has_ended = self._proceed(is_last)
            self._is_warmed = False
            if not has_ended:
                self._wait()

        warm(handler.tasks, cold, warmed)

    def _reads(self) -> Iterator[Read]:
        for _, partition, what in self._found:
            if partition is not None and isinstance(what, Slice):
                end = partition.visible_end(self._follower_id, self._request.isolation_level)
                yield partition.log, what, end

    # Reading

    def _collect(self) -> None:
        """Find the outcome for each partition.

        Outside a session all partitions are checked at each request and each time that one of them
        grows, though most have nothing new: so the check is one call, and makes no result object.
        In a session only the dirty ones are.
        """
        self._is_due = False
        self._size = 0
        self._found: list[_Found] = []
        self._cold: list[Slice] = []  # what would have to come from the disk
        self._watched_partitions: list[Partition] = []
        partitions, session = self._handler.replicas.partitions, self._context.session
        is_limited = self._call.connection.subject.is_limited
        if is_limited and session is not None:
            session.note_rights()
        for cached in self._context.partitions if session is None else list(session.dirty):
            partition, what = partitions.get(cached.key), None
            if session is not None:
                is_follower = self._follower_id >= 0
                cached.depend_on(partition.growth if partition and is_follower else partition)
            try:
                if is_limited:
                    self._require_right(cached)
                if partition is None or not self._is_at_end(partition, cached):
                    partition, what = self._read(cached)
                elif self._follower_id >= 0:
                    self._note_follower(partition, cached.asked)
            except ApiError as error:
                self._is_due = True
                self._found.append((cached, None, self._refuse(cached, error)))
                continue
            self._watched_partitions.append(partition)
            if session is not None and what is None and self._is_clean(partition, cached):
                session.clean(cached)
            else:
                self._found.append((cached, partition, what))

    def _require_right(self, cached: CachedPartition) -> None:
        """Raise `ApiError` if the client may not read this, now; a waiting fetch asks again."""
        cached.resolve(self._handler.sessions.name_of)
        subject, topic = self._call.connection.subject, cached.key.topic
        if not (
            subject.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
            if self._follower_id >= 0
            else subject.may(Operation.READ, ResourceType.TOPIC, topic)
        ):
            raise ApiError(Error.TOPIC_AUTHORIZATION_FAILED)

    def _is_at_end(self, partition: Partition, cached: CachedPartition) -> bool:
        """Whether the fetch is valid and at the log end, so there is nothing to read."""
        asked, log, follower_id = cached.asked, partition.log, self._follower_id
        return (
            asked.fetch_offset == log.end_offset
            and partition.is_leader
            and (
                asked.current_leader_epoch < 0
                or asked.current_leader_epoch == partition.leader_epoch
            )
            # In the newest epoch nothing before the log end diverges.
            and (asked.last_fetched_epoch < 0 or asked.last_fetched_epoch == log.epochs.latest)
            and self._version >= FIRST_VERSION_OF_ZSTD
            and (follower_id < 0 or follower_id in partition.replicas)
            and cached.is_of(partition)
        )

    def _is_clean(self, partition: Partition, cached: CachedPartition) -> bool:
        """Whether there will be nothing new of a session's partition until it changes."""
        request, told = self._request, (partition.high_watermark, partition.log.start_offset)
        end = partition.visible_end(self._follower_id, request.isolation_level)
        return cached.asked.fetch_offset >= end and cached.was_told(*told)

    def _read(
        self, cached: CachedPartition
    ) -> tuple[Partition, Slice | FetchPartitionResult | None]:
        """The outcome for one partition, in the general case. Raises `ApiError`."""
        version, asked, follower_id = self._version, cached.asked, self._follower_id
        cached.resolve(self._handler.sessions.name_of)
        partition = self._handler.replicas.get(cached.key)
        if not cached.is_of(partition):
            raise ApiError(Error.INCONSISTENT_TOPIC_ID)
        self._require_role(partition, asked.current_leader_epoch)
        if version < FIRST_VERSION_OF_ZSTD:
            check_format(partition.log, version)
        if follower_id >= 0 and follower_id not in partition.replicas:
            # The assignment with that replica may be on its way (KAFKA-14078).
            raise ApiError(Error.UNKNOWN_LEADER_EPOCH, "only a replica may fetch as one")
        diverging = find_divergence(partition, asked) if asked.last_fetched_epoch >= 0 else None
        if diverging is None:
            log = partition.log
            if follower_id >= 0 and log.end_offset < asked.fetch_offset <= log.reserved_offset:
                return partition, None  # it has what is still being written here
            if follower_id >= 0 and self._maybe_hold_back(partition, asked):
                return partition, None  # it stays dirty, and is looked at when the wait ends
            cold_before = len(self._cold)
            part = self._take(partition, asked)
            if follower_id >= 0 and len(self._cold) == cold_before:
                self._note_follower(partition, asked)
            return partition, part
        self._is_due = True
        result = self._result(cached.key.partition, partition, None)
        result.diverging_epoch = diverging
        return partition, result

    def _require_role(self, partition: Partition, current_leader_epoch: int) -> None:
        """Raise `ApiError` unless this replica may be read from."""
        if self._follower_id == DEBUG_CONSUMER:
            require_replica(partition, current_leader_epoch)
        else:
            partition.require_leader(current_leader_epoch)

    def _maybe_hold_back(self, partition: Partition, asked: FetchPartition) -> bool:
        """Whether a follower is sent no records for now, as it is throttled (KIP-73).

        What it has is noted first: with that it may be one that producers wait for.
        """
        log, in_sync = partition.log, partition.in_sync
        if (
            in_sync is None
            or not self._is_throttled(partition)
            or not log.start_offset <= asked.fetch_offset < log.end_offset
            or not self._handler.replicas.throttles.leader.is_exceeded
        ):
            return False
        self._note_follower(partition, asked)
        return not in_sync.waits_for(self._follower_id, self._handler.now_ns() // _NS_PER_MS)

    def _is_throttled(self, partition: Partition) -> bool:
        listed = partition.log.settings.leader_replication_throttled_replicas
        broker_id = self._handler.replicas.broker_id
        return bool(listed) and is_listed(listed, partition.key.partition, broker_id)

    def _counts(self, partition: Partition) -> bool:
        """Whether what is sent counts against the throttle: the follower is not in sync."""
        if self._follower_id < 0 or not self._is_throttled(partition):
            return False
        in_sync = partition.in_sync
        return in_sync is not None and self._follower_id not in in_sync.maximal_isr

    def _note_follower(self, partition: Partition, asked: FetchPartition) -> None:
        state = self._request.replica_state
        partition.follower_fetched(
            FollowerFetch(
                self._follower_id,
                asked.fetch_offset,
                asked.log_start_offset,
                NO_EPOCH if state is None else state.replica_epoch,
            )
        )

    def _result(self, index: int, partition: Partition, part: Slice | None) -> FetchPartitionResult:
        log, is_committed = partition.log, self._request.isolation_level == READ_COMMITTED
        high_watermark, last_stable_offset = partition.offset_snapshot
        return FetchPartitionResult(
            partition_index=index,
            error_code=0,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=log.start_offset,
            aborted_transactions=[] if is_committed else None,
            records=b"" if part is None else part,
        )

    def _take(
        self, partition: Partition, asked: FetchPartition
    ) -> Slice | FetchPartitionResult | None:
        """The records for one partition, within what remains of the byte limits."""
        request, log, offset = self._request, partition.log, asked.fetch_offset
        has_limit = self._version < _FIRST_VERSION_OF_WHOLE_BATCHES
        whole = not (has_limit or self._size)  # the first batch is sent whatever its size
        limit = max(0, min(asked.partition_max_bytes, self._bytes_max - self._size))
        end = partition.visible_end(self._follower_id, request.isolation_level)
        if self._is_warmed or offset >= end:
            part = read(log, offset, limit, end_offset=end, whole=whole)
        else:
            part, is_cold = self._handler.page_cache.read(log, offset, limit, end, whole=whole)
            if part is not None and is_cold:
                self._cold.append(part)
                return None
        if part is None:
            return None
        if not (whole or has_limit) and part.size == limit and is_cut_short(part):
            part.release()
            self._is_due = True  # what there is does not fit beside what was found already
            return None
        if part.size == limit and self._counts(partition):
            trim(part)  # what the follower would drop is not to count
        self._size += part.size
        return part

    def _refuse(self, cached: CachedPartition, error: ApiError) -> FetchPartitionResult:
        self._handler.replicas.metrics.failed_fetches += 1
        result = FetchPartitionResult(
            partition_index=cached.key.partition,
            error_code=error.error,
            high_watermark=NO_OFFSET,
            records=b"",
        )
        if self._version >= _FIRST_VERSION_OF_LEADERS and error.error in (
            Error.NOT_LEADER_OR_FOLLOWER,
            Error.FENCED_LEADER_EPOCH,
        ):
            result.current_leader = self._handler.hints.leader_of(cached.key)
        return result

    # Answering

    def _answer(self) -> None:
        results = self._results()
        if self._version <= LAST_VERSION_OF_MAGIC_1:
            self._convert(results)
        else:
            self._send(results)

    def _send(self, results: Results) -> None:
        try:
            session_id, results = self._handler.sessions.close(self._context, results)
        except ApiError as error:
            self._release()
            self._call.answer(FetchResponse(error_code=error.error, responses=[]))
            return
        topics: list[FetchTopicResult] = []
        for cached, result in results:
            topic, topic_id = cached.key.topic, cached.topic_id or ZERO_UUID
            if topics and topics[-1].topic == topic and topics[-1].topic_id == topic_id:
                topics[-1].partitions.append(result)
            else:
                topics.append(FetchTopicResult(topic=topic, topic_id=topic_id, partitions=[result]))
        response = FetchResponse(session_id=session_id, responses=topics)
        leaders = [each.current_leader for _, each in results if each.current_leader is not None]
        if leaders and self._version >= _FIRST_VERSION_OF_ENDPOINTS:
            response.node_endpoints = self._handler.hints.endpoints(leaders, self._call.listener)
        self._call.answer(response)

    def _results(self) -> Results:
        """The results to send; in a session, without what the client was told before."""
        is_told, results = self._context.session is not None, []
        for cached, partition, what in self._found:
            if isinstance(what, FetchPartitionResult):
                results.append((cached, what))
                continue
            assert partition is not None
            told = partition.high_watermark, partition.log.start_offset
            if what is None and is_told and cached.was_told(*told):
                continue
            if what is not None and self._counts(partition):
                self._handler.replicas.throttles.leader.record(what.size)
            results.append((cached, self._result(cached.key.partition, partition, what)))
        return results

    def _convert(self, results: Results) -> None:
        """Convert the slices to message sets for an old client (which never has a session)."""
        handler, magic = self._handler, int(self._version > _LAST_VERSION_OF_MAGIC_0)
        self._found = []  # `convert` releases the slices
        pairs = zip(self._context.partitions, results, strict=True)
        asked = [(result.records, cached.asked.fetch_offset) for cached, (_, result) in pairs]
        handler.replicas.metrics.converted_fetches += sum(bool(part) for part, _ in asked)

        def converted(message_sets: MessageSets) -> None:
            for number, message_set in enumerate(message_sets):
                cached, result = results[number]
                if isinstance(message_set, ApiError):
                    results[number] = cached, self._refuse(cached, message_set)
                else:
                    result.records = message_set
            try:
                self._send(results)
            except Exception as error:  # noqa: BLE001 - `Crashes` says what it costs
                self._call.crash(error)

        conversions, client = handler.replicas.conversions, self._call.connection
        convert(conversions, asked, magic, lambda: client.has_room, converted, self._call.crash)

    def _release(self) -> None:
        """Release the slices that will not be sent."""
        if self._size:
            for _, _, what in self._found:
                if isinstance(what, Slice):
                    what.release()
            self._found = []


class _NearFetch(_Fetch):
    """Of a consumer that says its rack (KIP-392): its leader sends it to a follower there.

        at a follower, the offset is               it is answered
        below its high watermark                   records
        at it, and the leader's is no higher       nothing, in the end
        at it or above, but as far as is known     OFFSET_NOT_AVAILABLE, in the end
        committed, or in this log
        neither, or deleted here                   OFFSET_OUT_OF_RANGE

    After either error the consumer asks the leader. Till the end of its wait the first one is not
    answered: most who come are at the leader's high watermark, and this one follows within ms.
    """

    __slots__ = ("_is_last",)

    def _proceed(self, is_last: bool) -> bool:
        self._is_last = is_last
        return super()._proceed(is_last)

    def _is_at_end(self, partition: Partition, cached: CachedPartition) -> bool:
        return self._handler.nearest is None and super()._is_at_end(partition, cached)

    def _is_clean(self, partition: Partition, cached: CachedPartition) -> bool:
        is_here = partition.is_leader or not is_awaited(partition, cached.asked.fetch_offset)
        return is_here and super()._is_clean(partition, cached)

    def _require_role(self, partition: Partition, current_leader_epoch: int) -> None:
        require_replica(partition, current_leader_epoch)

    def _take(
        self, partition: Partition, asked: FetchPartition
    ) -> Slice | FetchPartitionResult | None:
        handler, offset = self._handler, asked.fetch_offset
        if not partition.is_leader:
            if not is_awaited(partition, offset):
                return super()._take(partition, asked)
            if self._is_last:
                raise ApiError(Error.OFFSET_NOT_AVAILABLE)
            return None
        rack, listener = self._request.rack_id, self._call.listener
        found = handler.nearest and handler.nearest.find(partition, offset, rack, listener)
        if not isinstance(found, int):
            return super()._take(partition, asked)
        handler.replicas.delayed.read_nearby(partition.growth)
        self._is_due = True
        result = self._result(partition.key.partition, partition, None)
        result.preferred_read_replica = found
        return result
