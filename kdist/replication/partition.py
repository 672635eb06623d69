"""A partition's replica on this broker: appends, and what is visible to clients.

    log start offset      last stable offset    high watermark      log end offset
           | committed, decided  | committed, open       | not committed      |

A record is committed when every in-sync replica has it. For now there is one replica, so that is at
once or, with `flush.before.expose`, when it is flushed. Producer states, bytes and files are the
log's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kdist.config.topic import TopicSettings
from kdist.errors import ApiError, Error, PoisonousRequest
from kdist.model import NO_EPOCH, LeaderAndIsr, TopicPartition
from kdist.records.batch import Batch, TimestampType
from kdist.records.compression import Codec
from kdist.records.validate import Rules, validate
from kdist.replication.delayed import DelayedOperation, DelayedOperations, Dependent
from kdist.replication.delayed_produce import DelayedProduce, OnCommitted
from kdist.replication.roles import Following, Leading, Role
from kdist.replication.writer import Writer, Writers
from kdist.storage.append import Append
from kdist.storage.epochs import EpochEnd
from kdist.storage.flushing import Flusher
from kdist.storage.log import Log
from kdist.wire.varint import Buffer

READ_COMMITTED = 1  # of Fetch's and ListOffsets' isolation levels
ACKS_ALL = -1
NOBODY = LeaderAndIsr(leader=-1, leader_epoch=-1, isr=(), controller_epoch=-1, zk_version=-1)

# The most that records may take when decompressed, where that is necessary (an old format, a
# compacted topic). It bounds the cost of a request with highly compressed zeros: the conversion
# holds some three times as much.
_BODY_BYTES_MAX = 64 << 20
_BODY_RATIO_MAX = 16

_TOPIC_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


class PartitionContext(NamedTuple):
    """What every partition is given by its owner, `Replicas`."""

    broker_id: int
    writers: Writers
    delayed: DelayedOperations
    flusher: Flusher


class Partition:
    """Owner: `Replicas`. Whoever keeps a reference must check `is_leader` before each use."""

    __slots__ = (
        "_append",
        "_context",
        "_is_flushing",
        "_rules",
        "_writer",
        "dependents",
        "fast_path_rules",
        "high_watermark",
        "key",
        "log",
        "refused",
        "replicas",
        "role",
        "state",
        "topic_id",
        "watchers",
    )

    def __init__(
        self, context: PartitionContext, log: Log, topic_id: uuid.UUID, high_watermark: int = 0
    ) -> None:
        """`high_watermark`: as it was last saved, if it was."""
        self._context = context
        self._writer = Writer(log, context.writers, self.advance_high_watermark)
        self._append = self._writer.append
        self._is_flushing = False
        self.key: TopicPartition = log.partition
        self.log = log
        self.topic_id = topic_id
        self.refused = context.writers.refused
        self.state = NOBODY
        self.replicas: tuple[int, ...] = ()
        self.role: Role = Following(NO_EPOCH, NOBODY.leader)
        # The first offset that is not committed, as far as this replica knows. Invariant: within
        # the log, and while this broker leads in one epoch it never goes back.
        self.high_watermark = min(max(high_watermark, log.start_offset), log.end_offset)
        self.watchers: dict[DelayedOperation, None] = {}
        self.dependents: dict[Dependent, None] = {}
        # A batch that meets these rules needs no `check`; None while every batch does.
        self.fast_path_rules: Rules | None = None
        self.configure(log.settings)

    def __repr__(self) -> str:
        return f"<Partition {self.key} epoch {self.leader_epoch} of {self.log!r}>"

    def configure(self, settings: TopicSettings) -> None:
        """Apply new values of the topic's settings."""
        if settings is not self.log.settings:
            self.log.configure(settings)
        self._rules = rules_of(settings)
        self._choose_fast_path_rules()
        self.advance_high_watermark()

    # Who leads

    def lead_or_follow(self, state: LeaderAndIsr, replicas: tuple[int, ...]) -> None:
        """Apply the controller's newer state."""
        self.state, self.replicas = state, replicas
        epoch, leader = state.leader_epoch, state.leader
        if leader == self._context.broker_id:
            self.role = Leading(epoch)
            self.log.begin_epoch(epoch)
        else:
            self.role = Following(epoch, leader)
        self._choose_fast_path_rules()
        self.advance_high_watermark()
        self._context.delayed.changed(self)

    def resign(self) -> None:
        """Stop leading: appends and reads are refused from here on, and waiting ones end."""
        self.role = Following(self.role.epoch, NOBODY.leader)
        self.state = self.state._replace(leader=NOBODY.leader)  # else clients would be sent back
        self._choose_fast_path_rules()
        self._context.delayed.changed(self)

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return isinstance(self.role, Leading)

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this broker leads or follows."""
        return self.role.epoch

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once no append is in progress, perhaps at once."""
        self._writer.when_idle(callback)

    def require_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER if this broker does not lead the partition.

        If the client sent an epoch: FENCED_LEADER_EPOCH if it is older than the partition's,
        UNKNOWN_LEADER_EPOCH if it is newer (KIP-320).
        """
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise ApiError(Error.FENCED_LEADER_EPOCH)
            raise ApiError(Error.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader:
            raise ApiError(Error.NOT_LEADER_OR_FOLLOWER)

    # Appending

    def check(self, records: Buffer, version: int, acks: int, now_ms: int) -> list[Batch]:
        """The batches in the records of a Produce of `version`, for `append`.

        None for an empty message set. Raises `ApiError` if this broker may not take them.
        """
        self.require_leader()
        if acks == ACKS_ALL and self.is_under_min_isr:
            raise ApiError(Error.NOT_ENOUGH_REPLICAS)
        try:
            batches = validate(records, self._rules, api_version=version, now_ms=now_ms)
        except ApiError:
            raise
        except Exception as error:
            raise PoisonousRequest(f"records for {self.key} cannot be validated") from error
        size = sum(len(data) for _, data in batches)  # as stored, after conversion
        if size > self.log.settings.segment_bytes:
            raise ApiError(Error.RECORD_LIST_TOO_LARGE, f"{size} bytes do not fit a segment")
        return batches

    def append(self, batches: Sequence[Batch], now_ms: int) -> Append:
        """Append checked batches as the leader, all or none.

        What is returned is published or, if the disk is slow, will be. The records are then in this
        log; `await_committed` waits until all in-sync replicas have them. Raises `ApiError` if they
        are refused, and `DiskFailed`.
        """
        self.require_leader()
        if self.refused.noted:
            self.refused.acceptable(self.key, batches[:1], self.log.producers)
        append = self._append(self.log.prepare_as_leader, batches, self.role.epoch, now_ms)
        self.advance_high_watermark()
        return append

    def append_coalesced(self, batches: Sequence[Batch], now_ms: int) -> Append:
        """As `append`, for batches of separate requests: the first, and those that share its write.

        Those are as many as `Append.offsets`. An error is that of the first alone.
        """
        if self.fast_path_rules is None:  # which it is not while this broker leads and may append
            self.require_leader()
        log = self.log
        if self.refused.noted:
            batches = self.refused.acceptable(self.key, batches, log.producers)
        prepare = log.prepare_coalesced if len(batches) > 1 else log.prepare_as_leader
        append = self._append(prepare, batches, self.role.epoch, now_ms)
        self.advance_high_watermark()
        return append

    @property
    def is_under_min_isr(self) -> bool:
        """Whether too few replicas are in sync for acks=all.

        Needed are `min.insync.replicas`, but no more than there are replicas, as in Kafka:
        otherwise a partition with one replica could never be written with acks=all.
        """
        needed = min(self.log.settings.min_insync_replicas, len(self.replicas))
        return len(self.state.isr) < needed

    @property
    def is_append_time(self) -> bool:
        """Whether the broker sets the records' timestamps (log append time)."""
        return self._rules.is_append_time

    def _choose_fast_path_rules(self) -> None:
        """Set `fast_path_rules`, so that a fast path checks one attribute instead of all these."""
        rules = self._rules
        passes_check = (
            self.is_leader
            and rules.is_plain
            and rules.message_bytes_max <= self.log.settings.segment_bytes
            and not self.is_under_min_isr
        )
        self.fast_path_rules = rules if passes_check else None

    # The high watermark

    def advance_high_watermark(self) -> None:
        """Move the high watermark to where records are committed now, if this broker leads.

        Called when that may have changed: an append was published; with `flush.before.expose`, the
        log was flushed; that setting changed; this broker began to lead. Operations that wait for
        it are attempted when this tick of the loop ends.
        """
        log = self.log
        committed = log.recovery_point if log.settings.flush_before_expose else log.end_offset
        if committed > self.high_watermark and isinstance(self.role, Leading):
            self.high_watermark = committed
        elif len(self.replicas) <= 1:
            return
        # Else a follower may find more all the same: it reads up to the log end offset.
        if self.watchers or self.dependents:
            self._context.delayed.changed(self)

    def await_committed(
        self, role: Role, end_offset: int, timeout_ms: int, client: object, done: OnCommitted
    ) -> None:
        """Call `done` with NONE once everything below `end_offset` is committed, or with an error.

        `role`: the partition's when it was appended, which may be a while before it is published.
        REQUEST_TIMED_OUT; NOT_LEADER_OR_FOLLOWER once the role is another; KAFKA_STORAGE_ERROR if
        the log cannot be flushed.
        """
        operation = DelayedProduce(self, role, end_offset, done)
        if not operation.attempt():
            self._context.delayed.add(operation, (self,), timeout_ms, client)

    def request_flush(self) -> None:
        """Have the log flushed, which may advance the high watermark."""
        if not self._is_flushing:
            self._is_flushing = True
            self._context.flusher.request(self.log, self._flushed)

    def _flushed(self, error: BaseException | None) -> None:
        self._is_flushing = False
        if isinstance(error, ApiError):  # the flusher reports a failed disk
            for operation in tuple(self.watchers):
                if isinstance(operation, DelayedProduce):
                    self._context.delayed.end(operation)
                    operation.done(error.error)

    def flushed(self) -> None:
        """The log was flushed, for whatever reason: have waiting operations attempted."""
        if self.log.settings.flush_before_expose:
            self.advance_high_watermark()
            self._context.delayed.changed(self)

    # Reading

    @property
    def last_stable_offset(self) -> int:
        """The first offset of an open transaction, or the high watermark."""
        return self.offset_snapshot[1]

    @property
    def offset_snapshot(self) -> tuple[int, int]:
        """The high watermark and the last stable offset; cheaper than both separately."""
        high_watermark = self.high_watermark
        unstable = self.log.producers.first_unstable_offset
        if unstable is None or unstable > high_watermark:
            return high_watermark, high_watermark
        return high_watermark, unstable

    def visible_end(self, replica_id: int, isolation_level: int) -> int:
        """The first offset not visible to a consumer (`replica_id` -1) or to a follower."""
        if replica_id >= 0:
            return self.log.end_offset
        if isolation_level == READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def epoch_end(self, leader_epoch: int) -> EpochEnd:
        """The end of the newest epoch up to `leader_epoch`, as OffsetForLeaderEpoch answers it."""
        return self.log.epochs.end_offset_for(leader_epoch, self.log.end_offset)


def rules_of(settings: TopicSettings) -> Rules:
    """The rules for a topic's records, from its settings (pure)."""
    return Rules(
        message_bytes_max=settings.max_message_bytes,
        codec=_TOPIC_CODECS[settings.compression_type],
        is_compacted="compact" in settings.cleanup_policy,
        timestamp_type=_TIMESTAMP_TYPES[settings.message_timestamp_type],
        timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
        timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
        body_bytes_max=max(_BODY_BYTES_MAX, _BODY_RATIO_MAX * settings.max_message_bytes),
    )
